"""What is kept of a replicate: its result, the configuration and the versions behind it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from benchmarks.framework.config import config_hash, describe

PACKAGES = ("torch", "botorch", "gpytorch", "botorch_calib", "numpy", "scipy")


class Named(Protocol):
    """A problem or a method, of whatever kind: its name and what `describe` makes of it count."""

    @property
    def name(self) -> str:
        """Names it within a suite, and its folder."""


@dataclass(frozen=True)
class Result:
    """One replicate. Points are in order of evaluation, the initial ones first.

    Traces have ``num_evaluations + 1`` entries, the first after the initial design. An
    inference trace holds the index of the point that would be reported: the one with the
    largest observed outcome, or with the largest posterior mean (``None`` without a model).
    Regret is the optimal value minus the noise-free value there.
    """

    problem: str
    method: str
    seed: int
    num_initial: int
    X: list[list[float]]
    y: list[float]
    f: list[float]
    inference_by_outcome: list[int]
    inference_by_mean: list[int] | None
    regret_by_outcome: list[float]
    regret_by_mean: list[float] | None
    fit_seconds: list[float]
    acquisition_seconds: list[float]
    extras: dict[str, list[float | None]]
    config: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The result as one JSON object."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read ``to_json`` back; raises ``ValueError`` for anything else."""
        data = json.loads(text)
        names = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise ValueError("Not a benchmark result: its fields are not those of `Result`.")
        return cls(**data)

    @property
    def config_hash(self) -> str:
        """Hash of the configuration that was run."""
        return config_hash(self.config)


def replicate_config(problem: Named, method: Named) -> dict[str, Any]:
    """The configuration of a replicate, as JSON."""
    config: dict[str, Any] = describe({"problem": problem, "method": method})
    return config


def installed_versions() -> dict[str, str]:
    """Versions of python and of the packages that decide the numbers."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions

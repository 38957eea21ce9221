"""`Suite`: methods, the problems on which they run, and the report of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from matplotlib.figure import Figure
from typing_extensions import TypeVar

from benchmarks.framework import sequential
from benchmarks.framework.config import config_hash
from benchmarks.framework.replicate_result import Collected, Named, Result, replicate_config
from benchmarks.framework.stored_results import REGRETS, Condensation

P = TypeVar("P", bound=Named, default=sequential.Problem)
M = TypeVar("M", bound=Named, default=sequential.Method)


class Report(Protocol):
    """How a suite presents its results."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The lines of the report between its title and the versions, as markdown."""

    def figure(self, collected: Collected) -> Figure:
        """The figure of the report."""


@dataclass(frozen=True)
class Suite(Generic[P, M]):
    """Problems, and methods that run on all of them and are compared with a baseline method.

    Args:
        name: The name of the suite.
        problems: The problems.
        methods: The methods.
        baseline: The name of the method with which the other methods are compared.
        report: Makes the table and the figure of the results.
        seeds: The default seeds.
        replicate: Runs a method on a problem with a seed. The default is for the problems and
            methods of `framework.sequential`.
        protocol: The name of the suite's protocol, if it has one (see `framework.protocol`).
        archive: The data of a result that are kept (see `framework.stored_results`); the default
            keeps regrets and extras.
    """

    name: str
    problems: tuple[P, ...]
    methods: tuple[M, ...]
    baseline: str
    report: Report
    seeds: range = range(30)
    replicate: Callable[[Any, Any, int], Result] = sequential.replicate
    protocol: str | None = None
    archive: Condensation = REGRETS

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        if self.baseline not in names:
            raise ValueError(f"The baseline {self.baseline!r} is not among {names}.")
        for kind in (names, [problem.name for problem in self.problems]):
            if len(set(kind)) != len(kind):
                raise ValueError(f"Names must be unique within a suite, got {kind}.")

    def config_hashes(self) -> dict[tuple[str, str], str]:
        """The hash of the configuration of each problem with each method."""
        return {
            (problem.name, method.name): config_hash(replicate_config(problem, method))
            for problem in self.problems
            for method in self.methods
        }

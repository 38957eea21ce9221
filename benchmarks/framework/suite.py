"""A suite: which methods run on which problems, and what is reported of them."""

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
        """The figure that goes with it."""


@dataclass(frozen=True)
class Suite(Generic[P, M]):
    """Problems times methods, compared in pairs with the method named ``baseline``.

    Args:
        name: Names the suite.
        problems: Its problems.
        methods: Its methods.
        baseline: The name of the method that the others are compared with.
        report: Makes the table and the figure of the results.
        seeds: The seeds by default.
        replicate: Runs a method on a problem with a seed; problems and methods of another kind
            than those of `framework.sequential` bring their own.
        protocol: The name of its protocol, if it has one (see `framework.protocol`).
        archive: What is kept of a result (see `framework.stored_results`), by default regrets and
            records.
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

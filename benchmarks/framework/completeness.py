"""Which of a suite's replicates a report rests on, and what it says of those that are missing.

Replicates come in one by one, and expensive methods last. Means over the seeds that a method
happens to have cannot be compared with means over those of another one: by default only seeds count
that all methods shown have on all problems.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.framework.collected import Collected
from benchmarks.framework.markdown import table
from benchmarks.framework.suite import Suite


class IncompleteError(ValueError):
    """What is there of a suite is too little for the report that is asked for."""


@dataclass(frozen=True)
class Selection:
    """What a report shall rest on.

    Args:
        seeds: These seeds, as a pilot; by default those of the suite.
        without: Names of methods that are left out, since they have not been run.
        incomplete_seeds: Whether seeds count that not all methods shown have on all problems.
    """

    seeds: Collection[int] | None = None
    without: Collection[str] = ()
    incomplete_seeds: bool = False

    def check(self, suite: Suite[Any, Any]) -> None:
        """Raise `ValueError` if a method is left out that the suite lacks or cannot do without."""
        names = [method.name for method in suite.methods]
        unknown = sorted(set(self.without) - set(names))
        if unknown:
            raise ValueError(f"Suite {suite.name!r} has no methods {unknown}; it has {names}.")
        if suite.baseline in self.without:
            raise ValueError(
                f"The baseline {suite.baseline!r} cannot be left out: the others are compared "
                "with it."
            )

    def seeds_of(self, suite: Suite[Any, Any]) -> Collection[int]:
        """The seeds that are asked for."""
        return suite.seeds if self.seeds is None else self.seeds

    def options(self) -> str:
        """The options of the command line that ask for it, each with a space before it."""
        parts = ["--without", *sorted(self.without)] if self.without else []
        if self.incomplete_seeds:
            parts.append("--incomplete-seeds")
        if self.seeds is not None:
            parts += ["--seeds", ",".join(map(str, sorted(self.seeds)))]
        return "".join(f" {part}" for part in parts)


@dataclass(frozen=True)
class Completeness:
    """How much there is of what is asked for, and what of it a report uses.

    Args:
        selection: What the report shall rest on.
        asked: The number of replicates of each method.
        there: How many of them there are, by method.
        complete: The number of seeds that a method has on all problems, by method.
        used: The seeds that are used, in order.
        unused: The number of replicates of methods that are shown whose seeds are not used.
        untouched: The problems that nothing shown has been run on.
    """

    selection: Selection
    asked: int
    there: Mapping[str, int]
    complete: Mapping[str, int]
    used: tuple[int, ...]
    unused: int
    untouched: tuple[str, ...]

    def lines(self) -> list[str]:
        """The statement at the top of a report, as markdown: one sentence if all is there."""
        total, asked = sum(self.there.values()), self.asked * len(self.there)
        text = f"{total} of {asked} replicates have been run."
        interim = f"**Incomplete: {text}** This is an interim look, and what follows may change."
        lines = [text if total == asked else interim, ""]
        if self.selection.seeds is not None:
            asked_for = listed(self.selection.seeds)
            lines = [f"**A pilot on the seeds {asked_for}, no evidence.**", "", *lines]
        for method in sorted(self.selection.without):
            lines += [
                f"**Deviation: `{method}` is left out**; {self.there[method]} of its {self.asked} "
                "replicates have been run. Comparisons with it are missing, but the correction for "
                "the number of comparisons counts them.",
                "",
            ]
        if total < asked:
            lines += [*self._by_method(), "", self._seeds(), ""]
        return lines

    def _by_method(self) -> list[str]:
        rows = [
            [method, f"{number} of {self.asked}", str(self.complete[method])]
            for method, number in self.there.items()
        ]
        return table(["method", "replicates", "seeds on all problems"], rows)

    def _seeds(self) -> str:
        used = f"Seeds used: {listed(self.used)}, {len(self.used)} in all"
        if not self.selection.incomplete_seeds:
            return (
                f"{used}: those with which all methods shown have been run on all problems. "
                f"{self.unused} further replicates of these methods are not used."
            )
        untouched = ""
        if self.untouched:
            names = ", ".join(f"`{problem}`" for problem in self.untouched)
            untouched = f" Nothing has been run on {names}: averages over problems leave this out."
        return (
            f"{used}, including seeds that some methods lack on some problems. **Means of two "
            "methods may be over different seeds;** comparisons are paired by those that both have."
            + untouched
        )


def select(
    suite: Suite[Any, Any], collected: Collected, selection: Selection
) -> tuple[Collected, Completeness]:
    """What of the results a report shows, and its statement of what is missing.

    Raises:
        IncompleteError: If no seed is left.
    """
    seeds = frozenset(selection.seeds_of(suite))
    found = {
        method.name: [
            {result.seed for result in collected.get(problem.name, {}).get(method.name, [])} & seeds
            for problem in suite.problems
        ]
        for method in suite.methods
    }
    complete = {method: set.intersection(*by_problem) for method, by_problem in found.items()}
    there = {method: sum(map(len, by_problem)) for method, by_problem in found.items()}
    shown = [method for method in found if method not in selection.without]
    if selection.incomplete_seeds:
        used = set().union(*(each for method in shown for each in found[method]))
    else:
        used = set.intersection(*(complete[method] for method in shown))
    if not used:
        raise IncompleteError(_nothing_complete(suite.name, shown, complete))
    kept = {
        problem: {
            method: [result for result in results if result.seed in used]
            for method, results in by_method.items()
            if method in shown
        }
        for problem, by_method in collected.items()
    }
    kept = {
        problem: {method: results for method, results in by_method.items() if results}
        for problem, by_method in kept.items()
        if any(by_method.values())
    }
    num_used = sum(len(results) for by_method in kept.values() for results in by_method.values())
    return kept, Completeness(
        selection=selection,
        asked=len(seeds) * len(suite.problems),
        there=there,
        complete={method: len(each) for method, each in complete.items()},
        used=tuple(sorted(used)),
        unused=sum(there[method] for method in shown) - num_used,
        untouched=tuple(p.name for p in suite.problems if p.name not in kept),
    )


def listed(seeds: Collection[int]) -> str:
    """Seeds in words: runs of three and more as ``first to last``."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def _nothing_complete(
    suite: str, shown: Sequence[str], complete: Mapping[str, Collection[int]]
) -> str:
    counts = ", ".join(f"{method} {len(complete[method])}" for method in shown)
    return (
        f"No seed of suite {suite!r} has been run with all methods on all problems (numbers of "
        f"seeds on all problems: {counts}). Leave methods out with --without, or pass "
        "--incomplete-seeds."
    )

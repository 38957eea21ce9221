"""Comparison of the rule that counts violations with the previous rule, which counted misses.

The study pairs archived runs of ``budget`` (or ``budget_spread``, or ``budget_sharp``) and
``misses`` on the same problem and seed, from the suites on decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.decisions import (
    faults_and_small_sets,
    limits_and_workers,
    random_functions,
    real_limits,
)
from benchmarks.decisions.suites import (
    BBOB_CONSTRAINED,
    BUDGET,
    FAULTS,
    FURTHER,
    RANDOM,
    REAL,
    SMALL_SETS,
)
from benchmarks.decisions.tasks import CASES
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.framework.stored_results import (
    ARCHIVE_SUFFIX,
    ARCHIVES_DIR,
    decode,
    read_entries,
    write_atomically,
)
from benchmarks.framework.suite import Suite
from benchmarks.studies.command_line import study_parser

COMMAND = "python -m benchmarks.studies.decisions_violations"
BEFORE, METHODS = "misses", ("budget", "budget_spread", "budget_sharp")
SUITES: tuple[tuple[Suite[Any, Any], list[str]], ...] = (
    (BUDGET, [*CASES]),
    (FAULTS, [*faults_and_small_sets.FAULTS]),
    (REAL, [task.outcome.name for task in real_limits.TASKS]),
    (FURTHER, [*limits_and_workers.CASES]),
    (SMALL_SETS, [*faults_and_small_sets.SMALL_SETS]),
    (RANDOM, [*random_functions.RELATIONS]),
    (BBOB_CONSTRAINED, []),  # without the earlier rule, in the second table alone
)
HEAD = ["problems", "method", "pairs", "violated, %", "before", "certified, %", "before"]
HEAD += ["reward", "before", "change of the reward", "safe", "before"]
# Ranges of rounds, which are the columns of the second table
RANGES = ((0, 12), (12, 24), (24, 48), (48, 80), (80, None))


class Run(NamedTuple):
    """The data of a run. The first two fields have an entry for each round."""

    certified: Sequence[float]  # 0 or 1
    violations: Sequence[float]  # 1 if the round was certified and the limit was violated
    reward: float
    is_safe: bool  # whether the recommended point is safe

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Run:
        named = {key: decode(value) for key, value in kept["extras"].items()}
        certified, violated = named["certified"], named["violated"]
        (probability,) = named["recommended_probability"]
        return cls(
            certified,
            [c * v for c, v in zip(certified, violated, strict=True)],
            named["mean_reward"][0],
            probability is not None and probability <= 0.1,
        )


def row(label: str, method: str, pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    """A row of the first table, whose interval is over pairs of runs."""
    cells = [label, method, str(len(pairs))]
    both = [*zip(*pairs, strict=True)]

    def each(form: str, score: Any) -> Iterable[str]:
        return [format(score(runs), form) for runs in both]

    def rate_of_violations(runs: Sequence[Run]) -> float:
        return 100 * sum(sum(r.violations) for r in runs) / sum(sum(r.certified) for r in runs)

    def share_certified(runs: Sequence[Run]) -> float:
        return 100 * sum(sum(r.certified) for r in runs) / sum(len(r.certified) for r in runs)

    cells += each(".1f", rate_of_violations)
    cells += each(".0f", share_certified)
    cells += each(".2f", lambda runs: sum(r.reward for r in runs) / len(runs))
    cells.append(mean_with_interval([new.reward - old.reward for new, old in pairs], "+.2f"))
    return cells + [*each("d", lambda runs: sum(r.is_safe for r in runs))]


def by_round(suite: str, method: str, runs: Sequence[Run]) -> list[str]:
    """A row of the second table: the share of violations in each range of rounds."""
    cells = []
    for start, end in RANGES:
        certified = sum(sum(run.certified[start:end]) for run in runs)
        violations = sum(sum(run.violations[start:end]) for run in runs)
        share = f"{100 * violations / certified:.1f}" if certified else "–"
        cells.append(f"{share} of {certified:.0f}")
    return [suite, method, *cells]


def main(argv: Sequence[str] | None = None) -> int:
    args = study_parser(COMMAND, __doc__, []).parse_args(argv)
    rows, pooled, by_rounds = [], [], []
    for suite, cases in SUITES:
        _, entries = read_entries(ARCHIVES_DIR / f"{suite.name}{ARCHIVE_SUFFIX}", suite.name)
        runs = {key: Run.of(entry.kept) for key, entry in entries.items()}
        for method in METHODS:
            pairs = [
                (key.problem, new, runs[key._replace(method=BEFORE)])
                for key, new in runs.items()
                if key.method == method and key._replace(method=BEFORE) in runs
            ]
            pooled += [(new, old) for _, new, old in pairs if method == METHODS[0]]
            for case in cases:
                own = [(new, old) for name, new, old in pairs if name.endswith(case)]
                rows += [row(case, method, own)] if own else []
        for method in (*METHODS, "plain"):
            same = [run for key, run in runs.items() if key.method == method]
            by_rounds += [by_round(suite.name, method, same)] if same else []
    rows.append(row("all", METHODS[0], pooled))
    lines = ["# The rule that counts violations", "", f"Reproduce with `{COMMAND}`.", ""]
    lines += [*table(HEAD, rows), "", "Violations in % of the certified rounds, by round:", ""]
    heads = [f"{start + 1} to {end}" if end else f"from {start + 1}" for start, end in RANGES]
    lines += [*table(["suite", "method", *heads], by_rounds), ""]
    write_atomically(args.tables / "decisions_violations.md", "\n".join(lines))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Chance constraints whose width starts as if some violations had been counted already.

The protocol is ``benchmarks/protocols/decisions_start.md``.

    python -m benchmarks.studies.decisions_start
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from benchmarks.decisions import (
    bbob_constrained,
    faults_and_small_sets,
    limits_and_workers,
    real_limits,
    suites,
)
from benchmarks.decisions import tasks as decision_cases
from benchmarks.decisions.analysis import RecommendedSafe, reward
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.framework.suite import Suite
from benchmarks.studies.command_line import run_study
from botorch_calib.decisions import widening
from botorch_calib.decisions.budget import Account
from botorch_calib.decisions.widening import width

SEEDS = range(38000, 38003)
COMMAND = "python -m benchmarks.studies.decisions_start"
#: Violations that are counted before the first decision, and the number of certified rounds in
#: which they decay by a factor of ``e``.
EXCESS, ROUNDS = 3.0, 24.0
SUITES: tuple[tuple[Suite[Any, Any], str], ...] = (
    (suites.BUDGET, "budget"),
    (suites.FAULTS, "budget"),
    (suites.SMALL_SETS, "budget_sharp"),
    (suites.REAL, "budget"),
    (suites.FURTHER, "budget"),
    (suites.BBOB_CONSTRAINED, "budget"),
)
SAFE = RecommendedSafe(round(1.0 - decision_cases.LEVEL, 12))
EARLY = 12  # certified rounds
CASES = (
    *decision_cases.CASES,
    *faults_and_small_sets.FAULTS,
    *faults_and_small_sets.SMALL_SETS,
    *(task.outcome.name for task in real_limits.TASKS),
    *limits_and_workers.CASES,
    *bbob_constrained.CASES,
)


def with_start(account: Account) -> float:
    """The width of the present rule with ``EXCESS exp(-T / ROUNDS)`` more violations."""
    start = EXCESS * math.exp(-account.num_certified / ROUNDS)
    return width(account) * math.exp(widening.GAIN * start)


RULES: dict[str, Callable[[Account], float]] = {
    "present": width,
    "start": with_start,
}


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """Counts of certified rounds and of violations, early and in all, and what was earned."""
    suite, name = next(each for each in SUITES if each[0].name == cell["suite"])
    (task,) = (each for each in suite.problems if each.name == cell["problem"])
    (method,) = (each for each in suite.methods if each.name == name)
    with mock.patch.object(widening, "width", RULES[cell["rule"]]):
        result = suite.replicate(task, method, seed)
    pairs = zip(result.extras["certified"], result.extras["violated"], strict=True)
    violated = [int(v or 0.0) for c, v in pairs if c]
    return {
        "rounds": len(result.extras["certified"]),
        "certified": len(violated),
        "violated": sum(violated),
        "early": len(violated[:EARLY]),
        "early_violated": sum(violated[:EARLY]),
        "reward": round(reward(result), 6),
        "safe": bool(SAFE(result)),
    }


Pair = tuple[dict[str, Any], dict[str, Any]]  # by the present rule, with the start


def row(label: str, pairs: Sequence[Pair]) -> list[str]:
    """A row of the table, whose intervals are over pairs of runs."""
    cells = [label, str(len(pairs))]
    for violated, certified in (("early_violated", "early"), ("violated", "certified")):
        for own in zip(*pairs, strict=True):
            num = sum(each[certified] for each in own)
            cells.append(f"{100 * sum(each[violated] for each in own) / num:.1f}")
    for own in zip(*pairs, strict=True):
        share = sum(each["certified"] for each in own) / sum(each["rounds"] for each in own)
        cells.append(f"{100 * share:.0f}")
    for own in zip(*pairs, strict=True):
        cells.append(f"{sum(each['reward'] for each in own) / len(pairs):.2f}")
    cells.append(mean_with_interval([b["reward"] - a["reward"] for a, b in pairs], "+.2f"))
    return cells + [str(sum(each["safe"] for each in own)) for own in zip(*pairs, strict=True)]


def report(runs: list[dict[str, Any]]) -> str:
    """A table of both rules by case, and of the difference of early violations."""
    by_key = {(each["problem"], each["seed"], each["rule"]): each for each in runs}
    pairs = {
        (problem, seed): (old, by_key[problem, seed, "start"])
        for (problem, seed, rule), old in by_key.items()
        if rule == "present" and (problem, seed, "start") in by_key
    }
    heads = ["case", "pairs", "early, %", "with start", "violated, %", "with start"]
    heads += ["certified, %", "with start", "reward", "with start", "change of the reward"]
    heads += ["safe", "with start"]
    rows = []
    for case in CASES:
        own = [pair for (name, _), pair in pairs.items() if name.endswith(case)]
        rows += [row(case, own)] if own else []
    rows.append(row("all", [*pairs.values()]))

    def early(each: Mapping[str, Any]) -> float:
        return 100 * each["early_violated"] / each["early"]

    both = [(a, b) for a, b in pairs.values() if a["early"] and b["early"]]
    change = mean_with_interval([early(b) - early(a) for a, b in both], "+.1f")
    lines = ["# A start of the width", "", f"Reproduce with `{COMMAND}`.", "", *table(heads, rows)]
    lines += ["", f"Change of the early violations of a run, in points of %: {change}.", ""]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and write the table."""
    cells = [
        {"suite": suite.name, "problem": task.name, "rule": rule}
        for suite, _ in SUITES
        for task in suite.problems
        for rule in RULES
    ]
    return run_study(COMMAND, __doc__, SEEDS, cells, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())

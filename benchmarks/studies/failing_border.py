"""What does the border of a failing region cost, whether or not the best point lies on it?

    python -m benchmarks.studies.failing_border [--seeds 10000:10010]

One query at a time is made of a function that rises towards a region in which queries fail. A
`DelayAwareProposer` has a rule that bounds the cost of such a border: the more values beside
failures came after the best one and were no better, the farther it keeps off, until ten of them end
the search there. It was made after a run that spent 20 trials in a row at a border.

Protocol (fixed before any run that counts; nothing is to be tuned on its seeds, 10000 and on).

* Functions, maximised on the unit cube: in ``hills``, ``ball`` and ``ramp`` the border is worth
  less than the best point elsewhere, so searching there is in vain; in ``disc`` and ``slope`` the
  best point lies on it. ``ball`` has three inputs, the others two. Their ranges are 0.8 to 2.7.
* Methods: the default strategy with the rule and without it (its `PATIENCE` is infinite), 40
  queries each, with the same seed of the search.
* A query is in vain if it comes after the first failure, fails or lies within `BORDER` of the
  region (times the root of the dimension), and brings no new best value. Recorded: the longest row
  of such queries, their number, the failures, and the gap, by which the best value found is below
  the best one outside of the region.
* Expected: (1) with the rule no row is longer than 12, for ten values and two failures; (2) on
  ``hills``, ``ball`` and ``ramp`` fewer queries are in vain with the rule: the 95 % interval of the
  difference, averaged over the three and paired by seed, is below 0; (3) it costs no result: the
  interval of the difference of the gaps, averaged over all five, ends below 0.02. Whatever comes is
  reported in these words.
* Seeds: ten. They are run one after the other, all functions and methods of each; where the
  machine's time ends before that, the report is on the whole seeds so far, and says how many.

Seeds 1000 and 1001 were looked at before, without the rule, to place the borders: a longest row of
18 was seen in ``ramp``, and of 4 at most in the other two of the first kind. Runs are kept in
``benchmarks/results/failing_border.jsonl``, so a study that was interrupted goes on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor

from benchmarks.framework.markdown import interval, mean_and_half_width, table
from benchmarks.studies.command_line import run_study
from botorch_calib.asynchronous import DelayAwareProposer, SearchSettings, feasibility
from botorch_calib.ledger import FeedbackLedger

QUERIES = 40
SEEDS = range(10000, 10010)
LONGEST_ROW, MARGIN = 12, 0.02
COMMAND = "python -m benchmarks.studies.failing_border"


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube, in a part of which queries fail.

    Attributes:
        dim: Number of its variables.
        value: Its value at a point of length ``dim``.
        outside: The point's distance from the part that fails; negative within.
        best: The greatest value outside, rounded down.
        in_vain: Whether that is not on the border.
    """

    dim: int
    value: Callable[[Tensor], float]
    outside: Callable[[Tensor], float]
    best: float
    in_vain: bool


def _distance(x: Tensor, *centre: float) -> float:
    return float((x - x.new_tensor(centre)).norm())


def _hill(x: Tensor, width: float, *centre: float) -> float:
    return math.exp(-((_distance(x, *centre) / width) ** 2))


PROBLEMS = {
    "hills": Problem(
        dim=2,
        value=lambda x: _hill(x, 0.28, 0.25, 0.7) + 0.8 * _hill(x, 0.28, 0.8, 0.3),
        outside=lambda x: _distance(x, 0.25, 0.7) - 0.145,
        best=0.8027,
        in_vain=True,
    ),
    "ball": Problem(
        dim=3,
        value=lambda x: 1.3 * _hill(x, 0.4, 0.2, 0.2, 0.2) + 0.9 * _hill(x, 0.4, 0.85, 0.8, 0.8),
        outside=lambda x: _distance(x, 0.2, 0.2, 0.2) - 0.26,
        best=0.901,
        in_vain=True,
    ),
    "ramp": Problem(
        dim=2,
        value=lambda x: 1.6 * float(x[0]) + 0.9 * _hill(x, 0.2, 0.3, 0.3),
        outside=lambda x: 0.8 - float(x[0]),
        best=1.4089,
        in_vain=True,
    ),
    "disc": Problem(
        dim=2,
        value=lambda x: 1.0 - 4.0 * _distance(x, 0.6, 0.6) ** 2,
        outside=lambda x: _distance(x, 0.6, 0.6) - 0.2,
        best=0.84,
        in_vain=False,
    ),
    "slope": Problem(
        dim=2,
        value=lambda x: float(x.sum()),
        outside=lambda x: (1.4 - float(x.sum())) / math.sqrt(2.0),
        best=1.4,
        in_vain=False,
    ),
}
WITH, WITHOUT = "with the rule", "without"
# Values in vain that end the search at a border
METHODS = {WITH: float(feasibility.PATIENCE), WITHOUT: math.inf}


def run(problem: Problem, patience: float, seed: int) -> dict[str, float]:
    """What one run cost and found, as the docstring of the module defines it."""
    ledger = FeedbackLedger(problem.dim)
    bounds = [[0.0] * problem.dim, [1.0] * problem.dim]
    propose = DelayAwareProposer(bounds, search=SearchSettings(seed=seed))
    border = feasibility.BORDER * math.sqrt(problem.dim)
    best, row, longest, in_vain, failures = -math.inf, 0, 0, 0, 0
    with patch.object(feasibility, "PATIENCE", patience):
        for _ in range(QUERIES):
            trial = ledger.submit(propose(ledger))
            x = ledger[trial].x
            is_better = False
            if problem.outside(x) < 0.0:
                failures += 1
                ledger.fail(trial)
            else:
                value = problem.value(x)
                ledger.observe(trial, value)
                is_better, best = value > best, max(value, best)
            counts = failures > 0 and problem.outside(x) < border and not is_better
            in_vain, row = in_vain + counts, row + 1 if counts else 0
            longest = max(longest, row)
    return {"row": longest, "in vain": in_vain, "failures": failures, "gap": problem.best - best}


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """The report on the seeds that are complete: expectations, and a row for each cell."""
    cells = [(name, method) for name in PROBLEMS for method in METHODS]
    by_seed: dict[int, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for each in runs:
        by_seed.setdefault(each["seed"], {})[each["name"], each["method"]] = each
    seeds = [found for found in by_seed.values() if len(found) == len(cells)]

    def values(cell: tuple[str, str], what: str) -> list[float]:
        return [float(found[cell][what]) for found in seeds]

    def differences(what: str, names: Sequence[str]) -> list[float]:
        """With the rule less without it: for each seed the mean over functions."""
        rows = [
            [found[name, WITH][what] - found[name, WITHOUT][what] for name in names]
            for found in seeds
        ]
        return [sum(row) / len(row) for row in rows]

    longest = int(max(max(values((name, WITH), "row")) for name in PROBLEMS))
    saved = differences("in vain", [name for name in PROBLEMS if PROBLEMS[name].in_vain])
    gaps = differences("gap", list(PROBLEMS))
    rows = [
        [
            *cell,
            mean_and_half_width(values(cell, "row"), 1),
            f"{max(values(cell, 'row')):.0f}",
            mean_and_half_width(values(cell, "in vain"), 1),
            mean_and_half_width(values(cell, "failures"), 1),
            mean_and_half_width(values(cell, "gap"), 3),
        ]
        for cell in cells
    ]
    header = ["function", "method", "longest row", "the greatest", "in vain", "failures", "gap"]
    return "\n".join(
        [
            f"Reproduce with `{COMMAND}`.",
            "",
            f"The border of a failing region: {QUERIES} queries, one at a time; {len(seeds)} of "
            f"{len(SEEDS)} seeds. Means ± half of Student's 95 % interval. A row is of queries at "
            "the border, or beyond it, that bring no new best value; the gap is to the best value "
            "outside of the region.",
            "",
            f"The longest row with the rule is {longest}; at most {LONGEST_ROW} was expected. "
            "Queries in vain where the best point is elsewhere, with the rule less without it: "
            f"{interval(saved, '.1f')}; expected below 0. The gap, with the rule less without it: "
            f"{interval(gaps, '.3f')}; expected below {MARGIN}.",
            "",
            *table(header, rows),
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the table."""

    def kept(cell: Mapping[str, str], seed: int) -> dict[str, float]:
        return run(PROBLEMS[cell["name"]], METHODS[cell["method"]], seed)

    cells = [{"name": name, "method": method} for name in PROBLEMS for method in METHODS]
    return run_study(COMMAND, __doc__, SEEDS, cells, kept, markdown, argv, "10000:10010")


if __name__ == "__main__":
    sys.exit(main())

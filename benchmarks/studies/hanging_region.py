"""What does a hanging region cost, where the best point lies in it?

Four workers evaluate a function, one evaluation taking 0.7 to 1.3 units of time. In a part of the
box an evaluation hangs: it ends without a value after a time-out of 30 units. Forty queries are
made, each as soon as a worker is free. The objective is greatest in that part, so the search is
drawn into it.

* Functions, to be maximised: ``disc``, a bowl in two dimensions that hangs in a disc about its top;
  ``corner``, a bowl in three whose top is in the corner that hangs; ``slope``, in two, which rises
  towards a border behind which it hangs; and ``hills``, in two, of which the higher one hangs.
  Their ranges outside are 2.7, 4.5, 1.4 and 0.8.
* Strategies: the names that a `DelayAwareProposer` takes, and its default with
  ``failures="impute"`` and with ``"ignore"``, for which a query that hangs is one that takes long.
* Recorded: the number of time-outs; the time lost, which is what a run takes beyond that of its
  evaluations had none hung, in units of the time-out (those that pass side by side count once);
  and the gap, by which the best value found is below the best one outside of that part.

The rule by which queries count as hanging was chosen on seeds from 1000 on, and these are some of
them: figures of another rule could be compared, but they are no proof of this one.

    python -m benchmarks.studies.hanging_region
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tqdm.auto import tqdm

from benchmarks.framework.markdown import mean_and_half_width, table
from benchmarks.framework.result_store import write_atomically
from benchmarks.framework.runner import one_torch_thread
from benchmarks.studies.command_line import study_parser
from benchmarks.studies.partly_evaluable import DISC, SLOPE, Problem, distance, hill
from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings
from botorch_calib.asynchronous.delay_strategy import STRATEGIES
from botorch_calib.ledger import FeedbackLedger

WORKERS, QUERIES, TIMEOUT = 4, 40, 30.0
SEEDS = range(1000, 1010)
COMMAND = "python -m benchmarks.studies.hanging_region"


PROBLEMS = {
    "disc": DISC,
    "corner": Problem(
        dim=3,
        value=lambda x: 1.5 - 2.0 * distance(x, 0.9, 0.9, 0.9) ** 2,
        outside=lambda x: 0.6 - float(x.min()),
        best=1.32,
    ),
    "slope": SLOPE,
    "hills": Problem(
        dim=2,
        value=lambda x: hill(x, 0.08**0.5, 0.25, 0.7) + 0.8 * hill(x, 0.08**0.5, 0.8, 0.3),
        outside=lambda x: distance(x, 0.25, 0.7) - 0.15,
        best=0.803,
    ),
}
# No value is less.
LEAST = {"disc": -4.0, "corner": -4.0, "slope": 0.0, "hills": 0.0}

METHODS: dict[str, DelayStrategy] = {
    '`"hallucinate"`, the default': STRATEGIES["hallucinate"],
    '`"ucb"`': STRATEGIES["ucb"],
    '`"ts"`': STRATEGIES["ts"],
    'the default, `failures="impute"`': replace(STRATEGIES["hallucinate"], failures="impute"),
    'the default, `failures="ignore"`': replace(STRATEGIES["hallucinate"], failures="ignore"),
}


@dataclass(frozen=True)
class Outcome:
    """What one run cost and found, as the docstring of the module defines it."""

    timeouts: int
    time_lost: float
    gap: float


def run(
    problem: Problem, least: float, strategy: DelayStrategy, search: SearchSettings, seed: int = 0
) -> Outcome:
    """One run; ``seed`` is that of the lengths of evaluations, and no value is below ``least``."""
    ledger = FeedbackLedger(problem.dim, censor_value=least)
    bounds = [[0.0] * problem.dim, [1.0] * problem.dim]
    propose = DelayAwareProposer(bounds, strategy, search=search)
    now, timeouts, best = 0.0, 0, -math.inf
    for now, trial in _ends(propose, ledger, problem, seed):  # noqa: B007
        x = ledger[trial].x
        if problem.outside(x) < 0.0:
            timeouts += 1
            ledger.fail(trial)
        else:
            best = max(best, problem.value(x))
            ledger.observe(trial, problem.value(x))
    return Outcome(timeouts, (now - QUERIES / WORKERS) / TIMEOUT, problem.best - best)


def _ends(
    propose: DelayAwareProposer, ledger: FeedbackLedger, problem: Problem, seed: int
) -> Iterator[tuple[float, int]]:
    """Times at which evaluations end, and their trials, in order; the caller tells the ledger."""
    lengths = random.Random(seed)
    running: list[tuple[float, int]] = []
    now = 0.0
    for count in range(QUERIES + WORKERS):
        if count >= WORKERS:
            now, trial = heapq.heappop(running)
            yield now, trial
        if count < QUERIES:
            x = propose(ledger)
            length = TIMEOUT if problem.outside(x) < 0.0 else lengths.uniform(0.7, 1.3)
            heapq.heappush(running, (now + length, ledger.submit(x)))


Outcomes = dict[tuple[str, str], list[Outcome]]


def study(seeds: Sequence[int]) -> Outcomes:
    """The outcomes of all seeds, by method and problem."""
    cells = [(method, problem) for method in METHODS for problem in PROBLEMS]
    return {
        (method, problem): [
            run(
                PROBLEMS[problem],
                LEAST[problem],
                METHODS[method],
                SearchSettings(seed=seed),
                seed,
            )
            for seed in seeds
        ]
        for method, problem in tqdm(cells, desc="hanging region")
    }


def markdown(outcomes: Outcomes, num_seeds: int) -> str:
    """The report: a row for each method and problem."""
    legend = (
        f"A region that hangs and holds the best point: {WORKERS} workers, {QUERIES} evaluations, "
        f"a time-out as long as {TIMEOUT:g} of them. Means over {num_seeds} seeds with Student's "
        "95 % interval (half of its length after ±). Time lost is in units of the time-out; those "
        "that pass side by side count once. The gap is to the best value outside of the region."
    )
    rows = [
        [
            method,
            problem,
            mean_and_half_width([float(each.timeouts) for each in found], 1),
            mean_and_half_width([each.time_lost for each in found], 1),
            mean_and_half_width([each.gap for each in found], 3),
        ]
        for (method, problem), found in outcomes.items()
    ]
    header = ["strategy", "function", "time-outs", "time lost", "gap"]
    return "\n".join([f"Reproduce with `{COMMAND}`.", "", legend, "", *table(header, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the study, print the report and write it."""
    args = study_parser(COMMAND, __doc__, SEEDS).parse_args(argv)
    with one_torch_thread():
        text = markdown(study(args.seeds), len(args.seeds))
    print(text)
    write_atomically(args.tables / "hanging_region.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

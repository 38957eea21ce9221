"""The suites: which methods run on which problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from benchmarks.calibration import ackley as problems
from benchmarks.calibration import baselines, misspecified, stateful, synthetic, wellspecified
from benchmarks.calibration import methods as calibrated_methods
from benchmarks.delay import methods as delay_methods
from benchmarks.delay import replicate as delay
from benchmarks.framework import strategies as methods
from benchmarks.framework.sequential import Method, Named, Problem, Result, replicate
from benchmarks.robust import methods as robust_methods
from benchmarks.robust import replicate as robust

P = TypeVar("P", bound=Named, default=Problem)
M = TypeVar("M", bound=Named, default=Method)


@dataclass(frozen=True)
class Suite(Generic[P, M]):
    """Problems times methods, compared in pairs with the method named ``baseline``.

    Args:
        name: Names the suite.
        problems: Its problems.
        methods: Its methods.
        baseline: The name of the method that the others are compared with.
        seeds: The seeds by default.
        compares_calibration: Whether the report is on calibration as much as on regret.
        inference: The point whose regret such a report compares, see
            `benchmarks.metrics.regret_trace`.
        alpha: The miscoverage that its intervals state.
        groups: Endings of the names of problems that belong together.
        replicate: Runs a method on a problem with a seed: where these are of another kind than
            those of `core`, this takes the place of `core.replicate`.
        compares_delays: Whether the report is that of methods under delayed feedback.
        compares_robustness: Whether it is that of methods that meet contexts.
    """

    name: str
    problems: tuple[P, ...]
    methods: tuple[M, ...]
    baseline: str
    seeds: range = range(30)
    compares_calibration: bool = False
    inference: str = "outcome"
    alpha: float = calibrated_methods.ALPHA
    groups: tuple[str, ...] = ()
    replicate: Callable[[Any, Any, int], Result] = replicate
    compares_delays: bool = False
    compares_robustness: bool = False

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        if self.baseline not in names:
            raise ValueError(f"The baseline {self.baseline!r} is not among {names}.")
        for kind in (names, [problem.name for problem in self.problems]):
            if len(set(kind)) != len(kind):
                raise ValueError(f"Names must be unique within a suite, got {kind}.")


SUITES: dict[str, Suite[Any, Any]] = {}


def register(suite: Suite[P, M]) -> Suite[P, M]:
    """Add a suite to the registry."""
    if suite.name in SUITES:
        raise ValueError(f"A suite named {suite.name!r} exists already.")
    SUITES[suite.name] = suite
    return suite


def get_suite(name: str) -> Suite[Any, Any]:
    """Look a suite up by name."""
    if name not in SUITES:
        raise KeyError(f"No suite {name!r}; there are {sorted(SUITES)}.")
    return SUITES[name]


LOCBO = register(
    Suite(
        name="locbo",
        problems=(problems.heteroscedastic_ackley(), problems.noise_free_ackley()),
        methods=(
            methods.random_search(),
            methods.plain_bo(),
            methods.locbo(),
            methods.locbo_global(),
        ),
        baseline="bo",
    )
)

# How the calibrator is run: by replay or step by step, with our settings or the paper's.
LOCBO_SETTINGS = register(
    Suite(
        name="locbo_settings",
        problems=(problems.heteroscedastic_ackley(),),
        methods=(
            methods.plain_bo(),
            methods.locbo(),
            stateful.locbo_stateful(),
            methods.locbo_published(),
        ),
        baseline="bo",
    )
)

# The regime that calibration is for, and the one in which it can only do harm.
MISSPECIFIED = register(
    Suite(
        name="misspecified",
        problems=misspecified.problems(),
        methods=calibrated_methods.compared(),
        baseline="bo",
        compares_calibration=True,
        inference="evaluated",
        groups=tuple(misspecified.CASES),
    )
)

WELLSPECIFIED = register(
    Suite(
        name="wellspecified",
        problems=wellspecified.problems(),
        methods=calibrated_methods.compared(),
        baseline="bo",
        compares_calibration=True,
        inference="evaluated",
    )
)

# Synthetic functions without noise, and other remedies beside calibration.
CALIBRATION = register(
    Suite(
        name="calibration",
        problems=synthetic.problems(),
        methods=baselines.study_methods(),
        baseline="bo",
        compares_calibration=True,
    )
)

# Values that arrive late; the settings of our own methods are chosen on other seeds.
DELAY = register(
    Suite(
        name="delay",
        problems=delay.tasks(),
        methods=delay_methods.compared(),
        baseline="ucb",
        seeds=range(10),
        replicate=delay.replicate,
        compares_delays=True,
    )
)

DELAY_SETTINGS = register(
    Suite(
        name="delay_settings",
        problems=tuple(task for task in delay.tasks() if task.name.startswith("gp_sample")),
        methods=delay_methods.settings(),
        baseline="ucb",
        seeds=range(1000, 1010),
        replicate=delay.replicate,
        compares_delays=True,
    )
)

# Contexts that the environment draws, from a law that is not known.
ROBUST = register(
    Suite(
        name="robust",
        problems=robust.tasks(),
        methods=robust_methods.compared(),
        baseline="erbo",
        seeds=range(15),
        replicate=robust.replicate,
        compares_robustness=True,
    )
)

# Runs in seconds: for trying out a back end, and for the tests.
SMOKE = register(
    Suite(
        name="smoke",
        problems=(problems.small_noisy_ackley(),),
        methods=(methods.random_search(),),
        baseline="random",
        seeds=range(2),
    )
)

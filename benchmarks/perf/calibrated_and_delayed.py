"""Speed of calibrated and delayed acquisition functions, as ratios to BoTorch's own.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.framework.strategies import (
    calibrate,
    calibrated_ucb,
    optimize,
    upper_confidence_bound,
)
from benchmarks.framework.surrogates import fit_gp
from benchmarks.perf.measure import Call, Workload, comparison, value_and_gradient
from botorch_calib import CalibratedModel, LogCalibratedExpectedImprovement
from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.calibration import Calibrator, LocalizedConformal, QuantileRecalibrator
from botorch_calib.models import CensoredDelayModel

NUM_LEAVE_ONE_OUT = 200
NUM_INITIAL = 5
NUM_RESTARTS = 10
RAW_SAMPLES = 256


Template = Callable[[], Calibrator]

calibrator: Template = partial(LocalizedConformal, alpha=0.2, lengthscale=0.25)
# The default: a bank of trackers instead of one lengthscale.
automatic_calibrator: Template = partial(LocalizedConformal, alpha=0.2)
# Its normal tails are not scaled with the interval, so that the shape depends on the point.
unscaled_calibrator: Template = partial(
    LocalizedConformal, alpha=0.2, lengthscale=0.25, tails="gaussian"
)
# 19 levels with quantiles that are the same at all points, or depend on the point.
recalibrator: Template = QuantileRecalibrator
local_recalibrator: Template = partial(QuantileRecalibrator, lengthscale=0.25)

# Calibrators whose cost is also measured at other sizes and with ambiguity sets.
CALIBRATORS: dict[str, Template] = {
    "calibrated, lengthscale auto": automatic_calibrator,
    "recalibrated (19 levels)": recalibrator,
}
ALL_CALIBRATORS = {**CALIBRATORS, "locally recalibrated (19 levels)": local_recalibrator}


def log_ei_pair(work: Workload, model: Model) -> tuple[Call, Call]:
    """Log expected improvement of a calibrated model, and of its GP by BoTorch."""
    return (
        value_and_gradient(LogCalibratedExpectedImprovement(model, work.best_f), work.batch),
        value_and_gradient(LogExpectedImprovement(work.gp, work.best_f), work.batch),
    )


def posterior_pair(work: Workload, template: Template, denoise: bool = True) -> tuple[Call, Call]:
    """`log_ei_pair` of the posterior of the objective or of the observation."""
    model = CalibratedModel.from_history(work.gp, template(), NUM_INITIAL, denoise=denoise)
    return log_ei_pair(work, model)


# The cost of one evaluation, n = 100, d = 2, b = 512, q = 1, relative to the plain GP. A comparison
# has a calibrator, and states whether the posterior is denoised.
LOG_EI: dict[str, tuple[Template, bool]] = {
    "calibrated / plain log EI, value and gradient": (calibrator, True),
    "calibrated, lengthscale auto / plain log EI": (automatic_calibrator, True),
    # Target: at most 1.2.
    "calibrated / plain log EI, not denoised": (calibrator, False),
    "calibrated, lengthscale auto / plain log EI, not denoised": (automatic_calibrator, False),
    # Twenty normal pieces. Targets: at most 1.4, and 1.3 for an observation, as in OCBO.
    "recalibrated (19 levels) / plain log EI, denoised": (recalibrator, True),
    "recalibrated (19 levels) / plain log EI, not denoised": (recalibrator, False),
    # Quantiles depend on the point.
    "locally recalibrated (19 levels) / plain log EI, denoised": (local_recalibrator, True),
    "locally recalibrated (19 levels) / plain log EI, not denoised": (local_recalibrator, False),
}

for _name, (_template, _denoise) in LOG_EI.items():
    comparison(_name, repetitions=100, warm_up=10)(
        partial(posterior_pair, template=_template, denoise=_denoise)
    )


def quantile_pair(work: Workload, template: Template) -> tuple[Call, Call]:
    """The quantile of a calibrated posterior, and BoTorch's upper confidence bound."""
    calibrated = calibrate(work.gp, template, NUM_INITIAL)
    return (
        value_and_gradient(calibrated_ucb(calibrated, work.best_f), work.batch),
        value_and_gradient(upper_confidence_bound(work.gp, work.best_f), work.batch),
    )


# The cost of a quantile of the denoised posterior.
QUANTILE_UCB: dict[str, Template] = {
    "quantile UCB / plain UCB": recalibrator,
    # The shape of distributions depends on the point.
    "quantile UCB, locally recalibrated (19 levels) / plain UCB": local_recalibrator,
    "quantile UCB, normal tails not stretched / plain UCB": unscaled_calibrator,
}

for _name, _template in QUANTILE_UCB.items():
    comparison(_name, repetitions=50, warm_up=5)(partial(quantile_pair, template=_template))


@comparison("leave-one-out recalibration n=200, 19 levels / one GP fit", repetitions=11, warm_up=2)
def leave_one_out_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of leave-one-out residuals and exact recalibration; target: at most 0.1."""
    large = Workload(work.device, NUM_LEAVE_ONE_OUT)
    template = QuantileRecalibrator(method="exact")

    def recalibrate(repetition: int) -> object:
        return CalibratedModel.from_history(large.just_fitted(), template, residuals="loo")

    def fit(repetition: int) -> object:
        return fit_gp(large.X, large.Y, large.bounds)

    return recalibrate, fit


@comparison("calibrated / plain iteration, fit to candidate", repetitions=7, warm_up=1)
def iteration_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of an iteration: fit, replay, and optimise the acquisition function."""

    def calibrated(repetition: int) -> Tensor:
        model = calibrate(fit_gp(work.X, work.Y, work.bounds), calibrator, NUM_INITIAL)
        return seeded_candidate(
            work, LogCalibratedExpectedImprovement(model, work.best_f), repetition
        )

    def plain(repetition: int) -> Tensor:
        gp = fit_gp(work.X, work.Y, work.bounds)
        return seeded_candidate(work, LogExpectedImprovement(gp, work.best_f), repetition)

    return calibrated, plain


def seeded_candidate(work: Workload, acquisition: AcquisitionFunction, repetition: int) -> Tensor:
    """The maximiser. Starts depend on the repetition and are the same for all methods."""
    with manual_seed(repetition):
        return optimize(acquisition, work.bounds, NUM_RESTARTS, RAW_SAMPLES)


def replay_pair(work: Workload, template: Template) -> tuple[Call, Call]:
    """Calibrating a fitted GP from its training data, and fitting it."""

    def replay(repetition: int) -> object:
        return calibrate(work.just_fitted(), template, NUM_INITIAL)

    def fit(repetition: int) -> object:
        return fit_gp(work.X, work.Y, work.bounds)

    return replay, fit


# With one tracker, and with a bank of trackers.
for _name, _template in (("", calibrator), (", lengthscale auto", automatic_calibrator)):
    comparison(f"replay of the history{_name} / GP fit", repetitions=11, warm_up=2)(
        partial(replay_pair, template=_template)
    )


def censored(work: Workload) -> CensoredDelayModel:
    """The GP conditioned on ten pending points, with the least outcome as their value."""
    return CensoredDelayModel(work.just_fitted(), work.pending, float(work.Y.min()))


def delayed_ucb(work: Workload) -> AcquisitionFunction:
    """GP-UCB-SDF with the window of pending points, for feedback with a range of 1."""
    model = censored(work)
    # Outcomes are not scaled, so the bound is the inverse of their range.
    bound = 1.0 / float(work.Y.max() - work.Y.min())
    return DelayedUpperConfidenceBound(model, X_window=work.pending, feedback_bound=bound)


@comparison("delayed UCB / plain UCB, build and optimise, 10 pending", repetitions=31, warm_up=2)
def delayed_iteration_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of a choice with 10 pending points, given a fitted GP; target: at most 1.5."""

    def delayed(repetition: int) -> Tensor:
        return seeded_candidate(work, delayed_ucb(work), repetition)

    def plain(repetition: int) -> Tensor:
        acquisition = upper_confidence_bound(work.just_fitted(), work.best_f)
        return seeded_candidate(work, acquisition, repetition)

    return delayed, plain


@comparison("delayed TS / plain UCB, build and optimise, 10 pending", repetitions=31, warm_up=2)
def thompson_iteration_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of a choice by a draw on the box, relative to the plain upper confidence bound."""

    def delayed(repetition: int) -> Tensor:
        acquisition = DelayedThompsonSampling(censored(work), seed=repetition)
        return seeded_candidate(work, acquisition, repetition)

    return delayed, delayed_iteration_ratio(work)[1]


def censored_calibrated(work: Workload, learned: Calibrator) -> CensoredDelayModel:
    """The GP with a calibrator that has replayed its data, conditioned on ten pending points."""
    model = CalibratedModel(work.just_fitted(), learned)
    return CensoredDelayModel(model, work.pending, float(work.Y.min()))


def draw_pair(work: Workload, template: Template) -> tuple[Call, Call]:
    """Maximising a draw of the calibrated process, and a draw of the plain process."""
    learned = CalibratedModel.from_history(work.gp, template(), NUM_INITIAL).calibrator

    def calibrated(repetition: int) -> Tensor:
        model = censored_calibrated(work, learned)
        acquisition = DelayedThompsonSampling(model, seed=repetition)
        return seeded_candidate(work, acquisition, repetition)

    return calibrated, thompson_iteration_ratio(work)[0]


# The replay is not counted. Target: at most 4. Draws with many levels have kinks, where line
# searches take more steps.
for _name, _template in (("calibrated", calibrator), ("recalibrated", recalibrator)):
    comparison(
        f"{_name} TS / delayed TS, build and optimise, 10 pending", repetitions=31, warm_up=2
    )(partial(draw_pair, template=_template))


@comparison("calibrated TS / delayed TS, value and gradient", repetitions=100, warm_up=10)
def calibrated_draw_forward_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of one evaluation of a draw at b = 512."""
    learned = CalibratedModel.from_history(work.gp, calibrator(), NUM_INITIAL).calibrator
    return (
        value_and_gradient(DelayedThompsonSampling(censored_calibrated(work, learned)), work.batch),
        value_and_gradient(DelayedThompsonSampling(censored(work)), work.batch),
    )


@comparison("delayed UCB / plain UCB, value and gradient", repetitions=100, warm_up=10)
def delayed_forward_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of one evaluation at b = 512, with 10 pending points."""
    return (
        value_and_gradient(delayed_ucb(work), work.batch),
        value_and_gradient(upper_confidence_bound(work.gp, work.best_f), work.batch),
    )

"""Speed of chance constraints, as ratios to BoTorch's functions for a plain Gaussian process.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from botorch.acquisition import AcquisitionFunction, LogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor

from benchmarks.framework.strategies import upper_confidence_bound
from benchmarks.perf.measure import Call, Workload, comparison, value_and_gradient
from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.decisions.chance_constrained_search import LeastMargin

NUM_INITIAL = 5
NUM_RESTARTS = 4
RAW_SAMPLES = 256
LEVEL = 0.9
Z = 1.2815515655446004  # the standard normal quantile at this level


def constraint(work: Workload) -> ChanceConstraint:
    """The constraint that the outcome is at most its median, with probability 0.9."""
    limit = float(work.Y.median())
    return ChanceConstraint.from_history(work.gp, upper=limit, level=LEVEL, num_initial=NUM_INITIAL)


@comparison("chance constraint's margin / plain UCB", repetitions=100, warm_up=10)
def margin_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of one evaluation of the margin, value and gradient, b = 512."""
    return (
        value_and_gradient(LeastMargin(constraint(work)), work.batch),
        value_and_gradient(upper_confidence_bound(work.gp, work.best_f), work.batch),
    )


@comparison("chance constrained / plain choice by optimize_acqf", repetitions=11, warm_up=1)
def choice_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of maximising log EI over certified points, relative to a Gaussian quantile constraint.

    The latter is what a user writes for a plain model: ``optimize_acqf`` with a nonlinear
    constraint, which starts from the best feasible samples.
    """
    acquisition = LogExpectedImprovement(work.gp, work.best_f)
    ours = constraint(work)
    limit = float(work.Y.median())

    def certified(repetition: int) -> Tensor:
        with manual_seed(repetition):
            return optimize_chance_constrained(
                acquisition, ours, work.bounds, NUM_RESTARTS, RAW_SAMPLES
            ).candidate

    def margin(X: Tensor) -> Tensor:
        posterior = work.gp.posterior(X, observation_noise=True)
        return (limit - posterior.mean - Z * posterior.variance.sqrt()).view(X.shape[:-2])

    def plain(repetition: int) -> Tensor:
        with manual_seed(repetition):
            samples = draw_sobol_samples(work.bounds, n=RAW_SAMPLES, q=1)
            starts = feasible_starts(acquisition, samples[margin(samples) >= 0])
            candidate, _ = optimize_acqf(
                acquisition,
                work.bounds,
                q=1,
                num_restarts=len(starts),
                batch_initial_conditions=starts,
                nonlinear_inequality_constraints=[
                    (lambda x: margin(x.view(1, 1, -1)).squeeze(0), True)
                ],
                options={"batch_limit": 1, "maxiter": 100},
            )
        return candidate

    return certified, plain


def feasible_starts(acquisition: AcquisitionFunction, feasible: Tensor) -> Tensor:
    """The feasible samples with the largest values."""
    values = acquisition(feasible).detach()
    return feasible[values.topk(min(NUM_RESTARTS, len(feasible))).indices]

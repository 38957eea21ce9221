"""Speed of batch acquisition functions by joint samples, as ratios to the plain model.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from botorch.acquisition import AcquisitionFunction, qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.perf.calibrated_and_delayed import NUM_INITIAL
from benchmarks.perf.measure import Call, Workload, comparison, pair
from benchmarks.perf.noisy import TEMPLATES, sampler
from botorch_calib import CalibratedModel
from botorch_calib.calibration import Calibrator

Q = 8
BATCH = 10
FEW_PENDING, MANY_PENDING = 10, 200
NUM_FANTASIES = 8
NUM_RESTARTS, RAW_SAMPLES = 4, 64


def models(work: Workload, template: Callable[[], Calibrator]) -> tuple[Model, Model]:
    """A calibrated model and its Gaussian process."""
    return CalibratedModel.from_history(work.gp, template(), NUM_INITIAL), work.gp


def batch_log_ei(work: Workload, model: Model, num_pending: int) -> AcquisitionFunction:
    """Log expected improvement of several points over the best posterior mean."""
    with torch.no_grad():
        best_f = work.gp.posterior(work.X).mean.max()
    return qLogExpectedImprovement(
        model, best_f, sampler=sampler(), X_pending=work.points(num_pending, 1, seed=2).squeeze(-2)
    )


def value_pair(
    template: Callable[[], Calibrator], num_pending: int, work: Workload
) -> tuple[Call, Call]:
    """Value and gradient for eight points with pending points."""
    X = work.points(BATCH, Q, seed=3)
    return pair((batch_log_ei(work, model, num_pending) for model in models(work, template)), X)


def choice_pair(
    template: Callable[[], Calibrator], sequential: bool, work: Workload
) -> tuple[Call, Call]:
    """Choices of eight points by ``optimize_acqf``, with other starts in each repetition."""

    def choice(model: Model, repetition: int) -> Tensor:
        with manual_seed(repetition):
            points, _ = optimize_acqf(
                batch_log_ei(work, model, FEW_PENDING),
                work.bounds,
                q=Q,
                num_restarts=NUM_RESTARTS,
                raw_samples=RAW_SAMPLES,
                sequential=sequential,
                options={"maxiter": 50},
            )
        return points

    measured, reference = (partial(choice, model) for model in models(work, template))
    return measured, reference


def fantasy_pair(template: Callable[[], Calibrator], work: Workload) -> tuple[Call, Call]:
    """Value and gradient of the knowledge gradient, whose fantasies condition the model."""
    X = work.points(BATCH // 2, 1 + NUM_FANTASIES, seed=3)
    functions = (qKnowledgeGradient(model, NUM_FANTASIES) for model in models(work, template))
    return pair(functions, X)


for _name, _template in TEMPLATES.items():
    # Targets: at most 2 with one interval and 3 with 19 quantiles.
    for _pending in (FEW_PENDING, MANY_PENDING):
        comparison(
            f"{_name} / plain batch log EI, q = {Q}, {_pending} pending", repetitions=31, warm_up=3
        )(partial(value_pair, _template, _pending))
    # With many levels, sums over samples have kinks, where line searches take more steps.
    for _how, _sequential in (("one by one", True), ("at once", False)):
        comparison(
            f"{_name} / plain batch choice of {Q} points {_how}, {FEW_PENDING} pending",
            repetitions=7,
            warm_up=1,
        )(partial(choice_pair, _template, _sequential))
    comparison(
        f"{_name} / plain batch knowledge gradient, {NUM_FANTASIES} fantasies",
        repetitions=31,
        warm_up=3,
    )(partial(fantasy_pair, _template))

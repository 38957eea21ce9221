"""Speed of noisy acquisition functions with cached roots, as ratios to BoTorch's.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.models import ModelListGP, SingleTaskGP
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from torch import Tensor

from benchmarks.framework.surrogates import fit_gp
from benchmarks.perf.calibrated_and_delayed import (
    NUM_INITIAL,
    automatic_calibrator,
    local_recalibrator,
)
from benchmarks.perf.measure import Call, Workload, comparison, pair
from benchmarks.perf.single_points import KERNELS
from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.calibration import Calibrator
from botorch_calib.models.predict import process_posterior

NUM_POINTS = 50
BATCH = 20
NUM_SAMPLES = 128

TEMPLATES: dict[str, Callable[[], Calibrator]] = {
    "calibrated": automatic_calibrator,
    "locally recalibrated (19 levels)": local_recalibrator,
}


def sampler(seed: int = 0) -> SobolQMCNormalSampler:
    """The sampler of both acquisition functions."""
    return SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=seed)


def batch(work: Workload, q: int) -> Tensor:
    """New points, ``b x q x d``."""
    return work.points(BATCH, q, seed=3)


def improvement_pair(
    work: Workload, template: Callable[[], Calibrator], q: int
) -> tuple[Call, Call]:
    """Value and gradient of noisy improvement of a calibrated model, and of its GP by BoTorch."""
    work = Workload(work.device, NUM_POINTS)
    calibrated = CalibratedModel.from_history(work.gp, template(), NUM_INITIAL)
    functions = (
        qLogCalibratedNoisyExpectedImprovement(
            calibrated, work.X, sampler=sampler(), prune_baseline=False
        ),
        qLogNoisyExpectedImprovement(work.gp, work.X, sampler=sampler(), prune_baseline=False),
    )
    return pair(functions, batch(work, q))


# The cost of one evaluation, n = 50, b = 20, 128 samples. Targets: at most 1.3, or 1.5 with twenty
# normal pieces that depend on the point.
for _name, _template in TEMPLATES.items():
    for _q in (1, 4):
        comparison(
            f"{_name} / plain noisy log EI, roots cached, q = {_q}", repetitions=100, warm_up=10
        )(partial(improvement_pair, template=_template, q=_q))


def joint_pair(
    work: Workload, make_gp: Callable[[Workload], SingleTaskGP], q: int
) -> tuple[Call, Call]:
    """Joint mean and covariance with a gradient: by this package, and by the model itself."""
    work = Workload(work.device, NUM_POINTS)
    gp, new = make_gp(work).eval(), batch(work, q)

    def call(posterior: Callable[[Tensor], Any], repetition: int) -> Tensor:
        X = new.clone().requires_grad_(True)
        normal = posterior(X).distribution
        total = normal.mean.sum() + normal.covariance_matrix.square().sum()
        (gradient,) = torch.autograd.grad(total, X)
        return gradient

    return partial(call, partial(process_posterior, gp)), partial(call, gp.posterior)


# Target: at most 0.85 with a Matern kernel, which this package evaluates itself.
for _kernel, _make_gp in KERNELS.items():
    for _q in (4, NUM_POINTS + 1):
        comparison(
            f"joint posteriors / of BoTorch's model, n = {NUM_POINTS}, b = {BATCH}, q = {_q}, "
            f"{_kernel}",
            repetitions=100,
            warm_up=10,
        )(partial(joint_pair, make_gp=_make_gp, q=_q))


def two_outcomes(work: Workload) -> tuple[CalibratedModelList, ModelListGP, Tensor, Tensor]:
    """Calibrated and plain models of two objectives, their observations, and a reference point."""
    # The optima of the two objectives are far apart, so that the objectives conflict
    other = -(work.X - work.bounds[0]).norm(dim=-1, keepdim=True)
    gps = ModelListGP(work.gp, fit_gp(work.X, other + 0.1 * work.Y, work.bounds))
    calibrated = CalibratedModelList.from_history(gps, automatic_calibrator(), NUM_INITIAL)
    Y = torch.cat([work.Y, other], dim=-1)
    return calibrated, gps, Y, Y.quantile(0.5, dim=0)


@comparison(
    "calibrated / plain noisy log hypervolume improvement, roots cached", repetitions=50, warm_up=5
)
def noisy_hypervolume_pair(work: Workload) -> tuple[Call, Call]:
    """Cost of one evaluation with two objectives, q = 1; target: at most 1.3."""
    work = Workload(work.device, NUM_POINTS)
    calibrated, gps, _, ref_point = two_outcomes(work)
    functions = (
        qLogCalibratedNoisyExpectedHypervolumeImprovement(
            calibrated, ref_point, work.X, sampler=sampler(), prune_baseline=False
        ),
        qLogNoisyExpectedHypervolumeImprovement(
            gps, ref_point, work.X, sampler=sampler(), prune_baseline=False
        ),
    )
    return pair(functions, batch(work, q=1))


@comparison("calibrated / plain log hypervolume improvement, q = 2", repetitions=50, warm_up=5)
def hypervolume_pair(work: Workload) -> tuple[Call, Call]:
    """Cost of one evaluation of BoTorch's class with two objectives; target: at most 1.3."""
    work = Workload(work.device, NUM_POINTS)
    calibrated, gps, Y, ref_point = two_outcomes(work)
    boxes: Any = FastNondominatedPartitioning(ref_point, Y)
    functions = (
        qLogExpectedHypervolumeImprovement(model, ref_point, boxes, sampler=sampler())
        for model in (calibrated, gps)
    )
    return pair(functions, batch(work, q=2))

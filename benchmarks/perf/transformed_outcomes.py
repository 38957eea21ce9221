"""Speed of log expected improvement of log outcomes, relative to a plain model of the outcomes.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.perf.calibrated_and_delayed import CALIBRATORS, NUM_INITIAL
from benchmarks.perf.measure import Call, Workload, comparison, value_and_gradient
from benchmarks.perf.single_points import SIZES
from botorch_calib import CalibratedModel, LogCalibratedExpectedImprovement
from botorch_calib.calibration import Calibrator


def log_outcome_pair(
    work: Workload, size: tuple[int, int], template: Callable[[], Calibrator]
) -> tuple[Call, Call]:
    """A calibrated model of log outcomes, and a plain model of outcomes; target: at most 1.3."""
    num_points, batch_size = size
    work = Workload(work.device, num_points)
    Y = (work.Y / work.Y.std()).exp()
    gp = SingleTaskGP(
        work.X,
        Y,
        input_transform=Normalize(work.X.shape[-1], bounds=work.bounds),
        outcome_transform=ChainedOutcomeTransform(log=Log(), standardize=Standardize(1)),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    model = CalibratedModel.from_history(gp, template(), NUM_INITIAL)
    batch = work.points(batch_size, 1, seed=1)
    return (
        value_and_gradient(LogCalibratedExpectedImprovement(model, Y.max()), batch),
        value_and_gradient(LogExpectedImprovement(work.gp, work.best_f), batch),
    )


for _size in SIZES:
    for _name, _template in CALIBRATORS.items():
        comparison(
            f"{_name}, log outcomes / plain log EI, n = {_size[0]}, b = {_size[1]}",
            repetitions=100,
            warm_up=10,
        )(partial(log_outcome_pair, size=_size, template=_template))

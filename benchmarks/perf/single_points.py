"""Speed of log expected improvement at few and many points and data, with two kernels.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.perf.calibrated_and_delayed import ALL_CALIBRATORS, NUM_INITIAL
from benchmarks.perf.measure import Call, Workload, comparison, value_and_gradient
from botorch_calib import CalibratedModel, LogCalibratedExpectedImprovement
from botorch_calib.calibration import Calibrator

# Training points, and points in a batch.
SIZES = ((50, 20), (100, 512), (400, 512))


def default_gp(work: Workload) -> SingleTaskGP:
    """BoTorch's default: an RBF kernel with a lengthscale for each input."""
    transform = Normalize(work.X.shape[-1], bounds=work.bounds)
    gp = SingleTaskGP(work.X, work.Y, input_transform=transform)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


KERNELS: dict[str, Callable[[Workload], SingleTaskGP]] = {
    "Matern": lambda work: work.gp,
    "RBF": default_gp,
}


def log_ei_pair(
    work: Workload,
    size: tuple[int, int],
    make_model: Callable[[Workload], Model],
    template: Callable[[], Calibrator],
) -> tuple[Call, Call]:
    """Log expected improvement of a calibrated model, and of its plain model by BoTorch."""
    num_points, batch_size = size
    work = Workload(work.device, num_points)
    plain, batch = make_model(work), work.points(batch_size, 1, seed=1)
    model = CalibratedModel.from_history(plain, template(), NUM_INITIAL)
    return (
        value_and_gradient(LogCalibratedExpectedImprovement(model, work.best_f), batch),
        value_and_gradient(LogExpectedImprovement(plain, work.best_f), batch),
    )


for _size in SIZES:
    for _kernel, _make_gp in KERNELS.items():
        for _name, _template in ALL_CALIBRATORS.items():
            comparison(
                f"{_name} / plain log EI, n = {_size[0]}, b = {_size[1]}, {_kernel}",
                repetitions=100,
                warm_up=10,
            )(partial(log_ei_pair, size=_size, make_model=_make_gp, template=_template))

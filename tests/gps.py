"""Small Gaussian process models with set hyperparameters, and a dense oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from botorch.models import MultiTaskGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal, PiecewisePredictive
from botorch_calib.calibration import NoCalibration
from botorch_calib.models import PartlyKnownNoiseGP
from botorch_calib.models.predict import predict
from tests.random_numbers import normal, uniform

DOUBLE: dict[str, Any] = {"dtype": torch.double}
LENGTHSCALES, CONSTANT, NOISE = (0.4, 0.7), 0.3, 0.05
# Shift and scale of raw data, which transforms remove.
X_LOW, X_RANGE, Y_MEAN, Y_SCALE = -5.0, 10.0, 30.0, 7.0


def make_data(num: int = 12, transforms: bool = False, seed: int = 3) -> tuple[Tensor, ...]:
    """``X`` (``num x 2``), ``Y`` and ``Yvar`` (``num x 1``), raw data with ``transforms``."""
    generator = torch.Generator().manual_seed(seed)
    X = uniform(num, 2, generator=generator)
    Y = (6 * X).sin().sum(dim=-1, keepdim=True)
    if num > 1:
        Y = (Y - Y.mean()) / Y.std()
    Yvar = 0.02 + 0.1 * uniform(num, 1, generator=generator)
    if transforms:
        X, Y, Yvar = X_RANGE * X + X_LOW, Y_SCALE * Y + Y_MEAN, Y_SCALE**2 * Yvar
    return X, Y, Yvar


def make_gp(
    fixed_noise: bool = False,
    transforms: bool = False,
    num: int = 12,
    dtype: torch.dtype = torch.double,
    sign: float = 1.0,
) -> SingleTaskGP:
    """A GP on `make_data`; ``sign=-1`` is the model of the negated outcomes."""
    X, Y, Yvar = (tensor.to(dtype) for tensor in make_data(num, transforms))
    gp = SingleTaskGP(
        X,
        sign * Y,
        train_Yvar=Yvar if fixed_noise else None,
        input_transform=Normalize(2) if transforms else None,
        outcome_transform=Standardize(1) if transforms else None,
    )
    gp.covar_module.lengthscale = torch.tensor(LENGTHSCALES, dtype=dtype)
    gp.mean_module.initialize(constant=sign * CONSTANT)
    if not fixed_noise:
        gp.likelihood.noise = torch.tensor([NOISE], dtype=dtype)
    return gp.eval()


def make_variational() -> SingleTaskVariationalGP:
    X, Y, _ = make_data()
    gp = SingleTaskVariationalGP(X, Y, inducing_points=X[:6].clone())
    distribution = gp.model.variational_strategy._variational_distribution
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        distribution.variational_mean.copy_(torch.randn(6, generator=generator))
        distribution.chol_variational_covar.mul_(0.3)
    gp.model.variational_strategy.variational_params_initialized.fill_(1)
    gp.likelihood.noise = NOISE
    return gp.eval()


def make_multitask(fixed_noise: bool = False) -> MultiTaskGP:
    """Two tasks; the first one is the output. The task feature is the last column."""
    X, Y, Yvar = make_data()
    task = torch.arange(len(X), **DOUBLE).remainder(2).unsqueeze(-1)
    gp = MultiTaskGP(
        torch.cat([X, task], dim=-1),
        Y + task,
        task_feature=-1,
        train_Yvar=Yvar if fixed_noise else None,
        output_tasks=[0],
    )
    return gp.eval()


def make_partly_known(transforms: bool = False, dtype: torch.dtype = torch.double) -> Any:
    """A GP with known noise in every third row, and the learned `NOISE` in the others."""
    X, Y, Yvar = (tensor.to(dtype) for tensor in make_data(transforms=transforms))
    gp = PartlyKnownNoiseGP(
        X,
        Y,
        torch.where((torch.arange(len(X)) % 3 == 1).unsqueeze(-1), Yvar, torch.nan),
        input_transform=Normalize(2) if transforms else None,
        outcome_transform=Standardize(1) if transforms else None,
    )
    gp.covar_module.lengthscale = torch.tensor(LENGTHSCALES, dtype=dtype)
    gp.mean_module.initialize(constant=torch.tensor(CONSTANT, dtype=dtype))
    gp.likelihood.noise_covar.unknown.noise = torch.tensor([NOISE], dtype=dtype)
    return gp.eval()


SINGLE_TASK: dict[str, Callable[[], Model]] = {
    "learned noise": lambda: make_gp(),
    "fixed noise": lambda: make_gp(fixed_noise=True),
    "learned noise, transforms": lambda: make_gp(transforms=True),
    "fixed noise, transforms": lambda: make_gp(fixed_noise=True, transforms=True),
    "partly known noise": lambda: make_partly_known(),
    "partly known noise, transforms": lambda: make_partly_known(transforms=True),
}
MULTI_TASK: dict[str, Callable[[], Model]] = {
    "multi-task": lambda: make_multitask(),
    "multi-task, fixed noise": lambda: make_multitask(fixed_noise=True),
}
BASES: dict[str, Callable[[], Model]] = {
    **SINGLE_TASK,
    "variational": make_variational,
    **MULTI_TASK,
}


def dense_posterior(
    X: Tensor, Y: Tensor, noise: Tensor, X_new: Tensor, sign: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``f`` at ``X_new`` given any number of data, by dense algebra.

    Arguments are in the transformed space, with shapes ``n x d``, ``n``, ``n`` and ``k x d``.
    """
    scale = X.new_tensor(LENGTHSCALES)

    def kernel(A: Tensor, B: Tensor) -> Tensor:
        return (-0.5 * ((A[:, None] - B[None]) / scale).square().sum(dim=-1)).exp()

    gain = torch.linalg.solve(kernel(X, X) + noise.diag(), kernel(X, X_new)).mT
    mean = sign * CONSTANT + gain @ (Y - sign * CONSTANT)
    return mean, 1.0 - (gain * kernel(X_new, X)).sum(dim=-1)


def predicted(gp: Any, index: int, kept: list[int]) -> tuple[Any, Tensor]:
    """Posterior of the objective at a training input given others, and the noise variance there.

    Hyperparameters and transforms are taken from the full model.
    """
    part = copy.deepcopy(gp)
    part.set_train_data(gp.train_inputs[0][kept], gp.train_targets[kept], strict=False)
    noise = gp.likelihood.noise.expand(len(gp.train_targets))
    if isinstance(gp.likelihood, FixedNoiseGaussianLikelihood):
        part.likelihood.noise_covar.noise = noise[kept]
    X, unit = gp.train_inputs[0][index : index + 1], 1.0
    if hasattr(gp, "input_transform"):
        X, unit = gp.input_transform.untransform(X), gp.outcome_transform.stdvs.item()
    with torch.no_grad(), gpytorch.settings.prior_mode(not kept):
        return part.posterior(X), unit**2 * noise[index].detach()


class GaussianLaw(NoCalibration):
    """A calibrator that corrects nothing and counts its updates."""

    count = 0

    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        self.count += len(z)
        return super().update(X, z)

    @property
    def num_updates(self) -> int:
        return self.count


def far_from_gaussian(alpha: float = 0.3, task: float | None = None) -> LocalizedConformal:
    """A calibrator with distributions far from normal, which depend on the point.

    With ``task`` its inputs have a task feature, of that value, in the last column.
    """
    calibrator = LocalizedConformal(alpha, lengthscale=0.5, step_size=0.1)
    generator = torch.Generator().manual_seed(11)
    X = uniform(30, 2, generator=generator)
    z = normal(30, generator=generator) * (0.5 + 4 * X[:, 0])
    if task is not None:
        X = torch.nn.functional.pad(X, (0, 1), value=task)
    calibrator.update(X, z)
    return calibrator


def make_model(dtype: torch.dtype = torch.double, **kwargs: Any) -> CalibratedModel:
    """A calibrated model of `make_gp` with a `far_from_gaussian` calibrator."""
    return CalibratedModel(make_gp(dtype=dtype, **kwargs), far_from_gaussian().to(dtype))


def stated_noise(model: Any, X: Tensor) -> Tensor:
    """The noise variance of observations by a model, in units of the outcome."""
    return predict(model, X, objective=False).spread().of_noise.square().to(X)

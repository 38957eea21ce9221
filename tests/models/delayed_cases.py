"""Pending points for the models of `tests.gps`, and eq. 1 of the paper in dense algebra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.models import CensoredDelayModel
from tests.random_numbers import uniform

Array = NDArray[np.float64]
DOUBLE: dict[str, Any] = {"dtype": torch.double}
CONSTANT = 0.3


@dataclass(frozen=True)
class Setting:
    """A kind of Gaussian process on ``num`` points in ``dim`` dimensions."""

    dim: int = 2
    fixed_noise: bool = False
    transforms: bool = False
    num: int = 14
    noise: float = 0.02
    dtype: torch.dtype = torch.double

    @property
    def censor_value(self) -> float:
        """Below all observed values, in units of the outcome."""
        return 10.0 if self.transforms else -2.5

    @property
    def lengthscales(self) -> Tensor:
        return torch.linspace(0.3, 0.7, self.dim, **DOUBLE)

    def points(self, num: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        X = uniform(num, self.dim, generator=generator)
        return 10.0 * X - 5.0 if self.transforms else X

    def values(self, X: Tensor) -> Tensor:
        """A function with mean 0 and deviation 1 over the data, before its change of units."""

        def raw(points: Tensor) -> Tensor:
            unit = (points + 5.0) / 10.0 if self.transforms else points
            return (5 * unit).sin().sum(dim=-1, keepdim=True)

        known = raw(self.points(self.num, seed=3))
        Y = (raw(X) - known.mean()) / known.std()
        return 7.0 * Y + 30.0 if self.transforms else Y

    def data(self, num: int | None = None, seed: int = 3) -> tuple[Tensor, Tensor, Tensor]:
        """``X``, ``Y`` and noise variances of ``Y``, which may be given to the model."""
        X = self.points(self.num if num is None else num, seed)
        generator = torch.Generator().manual_seed(seed + 1)
        Yvar = self.noise * (0.5 + uniform(len(X), 1, generator=generator))
        return X, self.values(X), 49.0 * Yvar if self.transforms else Yvar

    def pending(self, num: int, seed: int = 8) -> Tensor:
        """Pending points; if there are enough, some repeat each other or the data."""
        X = self.points(num, seed)
        if num > 4:
            X[1], X[2], X[4] = X[0], self.data()[0][3], X[0]
        return X

    def gp(self, data: tuple[Tensor, Tensor, Tensor] | None = None) -> SingleTaskGP:
        X, Y, Yvar = (tensor.to(self.dtype) for tensor in (data or self.data()))
        model = SingleTaskGP(
            X,
            Y,
            train_Yvar=Yvar if self.fixed_noise else None,
            input_transform=Normalize(self.dim) if self.transforms else None,
            outcome_transform=Standardize(1) if self.transforms else None,
        )
        return self.with_hyperparameters(model)

    def with_hyperparameters(self, model: SingleTaskGP) -> SingleTaskGP:
        model.covar_module.lengthscale = self.lengthscales.to(self.dtype)
        model.mean_module.initialize(constant=torch.tensor(CONSTANT, dtype=self.dtype))
        if not self.fixed_noise:
            model.likelihood.noise = torch.tensor([self.noise], dtype=self.dtype)
        return model.eval()

    def model(self, num_pending: int = 3, imputation: str = "censor") -> CensoredDelayModel:
        pending = self.pending(num_pending).to(self.dtype)
        return CensoredDelayModel(self.gp(), pending, self.censor_value, imputation)

    # ------------------------------------------------------------ the oracle

    def units(self) -> tuple[Array, Array, float, float]:
        """Offset and scale of inputs, then of outcomes, as learned from the observed data."""
        X, Y, _ = (tensor.numpy() for tensor in self.data())
        if not self.transforms:
            return np.zeros(self.dim), np.ones(self.dim), 0.0, 1.0
        low, high = X.min(axis=0), X.max(axis=0)
        return low, high - low, float(Y.mean()), float(Y.std(ddof=1))

    def dense(
        self, X: Tensor, X_pending: Tensor, Y_pending: Tensor | None = None
    ) -> tuple[Array, Array]:
        """Mean and covariance of eq. 1 at ``X``, in units of the outcome.

        With ``Y_pending`` in place of the censoring value, where given.
        """
        x_offset, x_scale, y_offset, y_scale = self.units()
        X_obs, Y_obs, Yvar = (tensor.numpy() for tensor in self.data())
        censored = np.full((len(X_pending), 1), self.censor_value)
        y_p = censored if Y_pending is None else Y_pending.detach().double().numpy()
        y = (np.concatenate([Y_obs, y_p]).ravel() - y_offset) / y_scale
        given = Yvar.ravel() / y_scale**2 if self.fixed_noise else np.full(len(X_obs), self.noise)
        noise = np.concatenate([given, np.full(len(X_pending), given.mean())])

        def unit(points: Array) -> Array:
            return (points - x_offset) / x_scale

        def kernel(A: Array, B: Array) -> Array:
            gaps = (A[:, None] - B[None]) / self.lengthscales.numpy()
            return np.asarray(np.exp(-0.5 * np.square(gaps).sum(axis=-1)))

        queries = unit(np.concatenate([X_obs, X_pending.double().numpy()]))
        new = unit(X.double().numpy())
        gain = np.linalg.solve(kernel(queries, queries) + np.diag(noise), kernel(queries, new)).T
        mean = CONSTANT + gain @ (y - CONSTANT)
        covariance = kernel(new, new) - gain @ kernel(queries, new)
        return y_offset + y_scale * mean, y_scale**2 * covariance

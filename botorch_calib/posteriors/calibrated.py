r"""`CalibratedPosterior`: a Gaussian posterior with calibrated marginals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_calib._validation import check_nonnegative, check_number, check_one_of, check_variances
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors.denoised_marginals import DenoisedMarginals
from botorch_calib.posteriors.least_variance import (
    MIN_VARIANCE,
    marginal_variance,
    scale_for_least,
    usual_least,
)
from botorch_calib.posteriors.single_points import NO_SAMPLES, is_gaussian

#: Sources of a calibrated spread in excess of the Gaussian process's.
EXCESS = ("noise", "objective")


class CalibratedPosterior(DenoisedMarginals):
    """Posterior of the objective, or an observation, under a calibrated predictive distribution.

    The Gaussian posterior says ``f ~ N(mu, v)`` and ``y ~ N(mu, v + n)`` at each point; the
    piecewise distribution replaces that of ``z = (y - mu) / sqrt(v + n)``. Marginally the objective
    then follows ``f~ ~ int N(f; mu + a (y - mu), a n) p(y) dy``, ``a = v / (v + n)`` [Kim2024locbo,
    eq. 30], in closed form here.

    Jointly, with ``T`` the monotone map from the standard normal to the piecewise distribution,
    samples are the transport ``f~ = f + a sqrt(v + n) (T(z) - z)`` of joint draws of ``f`` and ``y
    = f + sqrt(n) eps`` from the Gaussian process. The noise belongs to the input, not to the row:
    ``eps = (f' - mu) / sqrt(v)``, with ``f'`` a second, independent path of the process. Therefore

    * a sample is a function of ``x``: equal rows have equal values, as far as the process' own
      paths do. (Where its Cholesky factor needs jitter, these differ by about the root of it, and
      ``f~`` by up to ``max(1, T') + |T' - 1| / 2`` times as much.)
    * each marginal is the closed-form one whatever ``q``, and the sample at a point does not depend
      on later points;
    * ``z`` has the posterior correlation of ``f``, exactly so between points of equal ``v`` and
      ``n``;
    * a distribution that corrects nothing gives back the process' sample paths.

    Samples of the observation are ``mu + sqrt(v + n) T(z)``, with noise that is independent from
    row to row, as in BoTorch: two observations of one point differ.

    *The guarantee* is on the coverage of statements about the observation. Observations of single
    points do not tell how much of an excess of spread is the objective's: the gain ``a`` is that of
    the process. If its noise variance is too small, intervals of the objective stay too narrow at
    visited points. ``excess="objective"`` takes the noise variance for true, and the rest of the
    calibrated variance for the objective's: with ``tau^2 = max(1, Var[z])`` the process'
    variance becomes ``v' = tau^2 (v + n) - n``, its gain ``a' = v' / (v' + n) = max(a, 1 - n /
    (Var[z] (v + n)))``, and ``f~`` follows ``int N(f; mu + a' (y - mu), a' n) p(y) dy``, of
    variance ``v'`` where ``Var[z] >= 1``. Jointly, ``mu + sqrt(v' / v) (f - mu)`` stands for ``f``,
    ``(y - mu) / (tau sqrt(v + n))`` for ``z`` and ``T(z) - tau z`` for ``T(z) - z``. This only
    raises the gain, and has a kink where ``Var[z] = 1``. Its intervals carry no guarantee either:
    they are too wide where the noise is understated.

    Args:
        posterior: Single-output Gaussian posterior of ``f``, without observation noise, in the
            units of the outcome, ``batch_shape x q x 1``.
        predictive: Distribution of ``z``; its batch shape broadcasts to ``batch_shape x q x 1``.
        noise_variance: Observation noise variance ``n``, in squared units of the outcome,
            broadcasting to ``batch_shape x q x 1``. The number 0 selects the formulas without
            noise; a tensor of zeros gives the same up to rounding.
        denoise: If False, the posterior of the observation ``y`` itself.
        excess: ``"noise"`` or ``"objective"``, the source of spread in excess of the process's: the
            former for the search, the latter for claims about ``f``. The observation is the same.
        least_variance: Lower bound on the variance of ``f``, in squared units of the
            outcome, broadcasting to ``batch_shape x q x 1`` (default: GPyTorch's setting
            ``min_variance``, too much for outcomes in tiny units). Joint samples are drawn in the
            unit in which this bound is that setting, so that jitter is small.
        validate_args: Whether to check the arguments. Models do not: it waits for the device, and
            makes errors of inputs that are NaN.

    Raises:
        UnsupportedError: If ``posterior`` is not Gaussian, or ``predictive`` no
            `PiecewisePredictive`.
        BotorchTensorDimensionError: If there are several outputs, or a shape does not broadcast.
        InputDataError: If a variance or an option is malformed.

    Example:
        >>> posterior = model.posterior(X)
        >>> posterior.quantile(0.9).shape, posterior.cdf(1.0).shape
        (torch.Size([20, 1]), torch.Size([20, 1]))
        >>> samples = posterior.rsample(torch.Size([16]))
    """

    _not_normal = (
        "A calibrated posterior is not multivariate normal, so it has no `distribution` and no "
        "`mvn`: ends of intervals are its `quantile`s. Several outcomes go into a "
        "CalibratedModelList (not a ModelListGP, which joins normal distributions); acquisition "
        "functions that need joint normality, such as entropy search, take the Gaussian process "
        "itself, `model.gaussian_model`; its posterior is `posterior.base_posterior`."
    )

    def __init__(
        self,
        posterior: GPyTorchPosterior,
        predictive: PiecewisePredictive,
        noise_variance: Tensor | float,
        denoise: bool = True,
        excess: str = "noise",
        least_variance: Tensor | None = None,
        validate_args: bool = True,
    ) -> None:
        self._noiseless = not isinstance(noise_variance, Tensor) and noise_variance == 0.0
        self.base_posterior, self.predictive = posterior, predictive
        self.denoise, self.excess = denoise, excess
        self._least_variance = least_variance
        if validate_args:
            self._check_arguments(noise_variance)
        mean, variance = posterior.mean, marginal_variance(posterior, least_variance)
        if least_variance is None:
            variance = variance.clamp(min=MIN_VARIANCE)
        noise = torch.as_tensor(noise_variance, dtype=mean.dtype, device=mean.device)
        # A view of a parameter requires gradients even where they are off.
        self.noise_variance = noise if torch.is_grad_enabled() else noise.detach()
        self._set_up_marginals(mean, variance)
        if validate_args:  # once more: double precision may overflow in that of the posterior
            check_variances("noise_variance", self.noise_variance)

    def _check_arguments(self, noise_variance: Any) -> None:
        posterior: Any = self.base_posterior
        if not is_gaussian(posterior):
            raise UnsupportedError(
                "CalibratedPosterior needs as `posterior` a GPyTorchPosterior with a multivariate "
                f"normal distribution, got {type(posterior).__name__}."
            )
        if posterior._is_mt:
            raise BotorchTensorDimensionError(
                "CalibratedPosterior is defined for a `posterior` of a single output; use one "
                "calibrated model per outcome in a CalibratedModelList."
            )
        check_predictive(self.predictive)
        check_one_of("excess", self.excess, EXCESS)
        if not isinstance(self.denoise, bool):
            raise InputDataError(f"`denoise` must be True or False, got {self.denoise!r}.")
        if isinstance(noise_variance, Tensor):
            check_variances("noise_variance", noise_variance)
        elif isinstance(noise_variance, bool):
            raise InputDataError(
                f"`noise_variance` must be a number or a tensor, got {noise_variance}: for the "
                "posterior of the observation give `denoise=False`."
            )
        else:
            check_nonnegative("noise_variance", noise_variance)
        least = self._least_variance
        if least is not None and not check_variances("least_variance", least).all():
            raise InputDataError("`least_variance` must be positive.")
        shapes = {
            "predictive": self.predictive.batch_shape,
            "noise_variance": getattr(noise_variance, "shape", ()),
            "least_variance": getattr(least, "shape", ()),
        }
        for name, shape in shapes.items():
            if not broadcasts_to(shape, posterior.mean.shape):
                raise BotorchTensorDimensionError(
                    f"The shape {tuple(shape)} of `{name}` does not broadcast to that of the "
                    f"posterior mean, {tuple(posterior.mean.shape)}."
                )

    # ------------------------------------------------------------ joint samples

    @property
    def device(self) -> torch.device:
        return self.base_posterior.device

    @property
    def dtype(self) -> torch.dtype:
        return self.base_posterior.dtype

    @property
    def batch_shape(self) -> torch.Size:
        return self.location.shape[:-2]

    def _extended_shape(self, sample_shape: torch.Size = NO_SAMPLES) -> torch.Size:
        return self.base_posterior._extended_shape(sample_shape)

    @property
    def base_sample_shape(self) -> torch.Size:
        """``batch_shape x q x 2``: for each point a number for ``f`` and one for the noise."""
        return torch.Size([*self.path_posterior.base_sample_shape, 2])

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, -2)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Differentiable samples, ``sample_shape x batch_shape x q x 1``, made of base samples.

        Args:
            sample_shape: Shape of the set of samples.
            base_samples: ``sample_shape x base_sample_shape``, standard normal. In the last
                dimension the first number makes the path ``f``, the second the noise: by a path of
                its own or, for an observation, directly.
        """
        if base_samples.shape[: len(sample_shape)] != sample_shape:
            raise RuntimeError(
                "`sample_shape` disagrees with shape of `base_samples`. "
                f"Got {sample_shape=} and {base_samples.shape=}."
            )

        def path(column: int) -> Tensor:
            return self._path_unit * self.path_posterior.rsample_from_base_samples(
                sample_shape, base_samples[..., column]
            )

        if not self.denoise:
            return self._observed(path(0), base_samples[..., 1:])
        if self.predictive.is_standard_normal:
            return path(0)
        return self._transported(path(0), path(1))

    def rsample_from_cached_root(
        self, sample_shape: torch.Size, base_samples: Tensor, baseline_L: Tensor
    ) -> Tensor:
        """Samples at these points, jointly with those at a baseline, of which a root is given.

        `base_posterior` knows the covariance with the baseline, as its ``rows``.

        Args:
            sample_shape: Shape of the set of samples.
            base_samples: ``sample_shape x batch_shape x (r + q) x 2``, as in
                `rsample_from_base_samples`, those of the ``r`` points of the baseline first; the
                t-batch may be collapsed to size 1.
            baseline_L: Root of the covariance of `path_posterior` at the baseline, ``r x r``.

        Raises:
            NotPSDError: If the root cannot be extended.
            NanError: If the covariance holds NaN.
        """
        base: Any = self.base_posterior
        # The unit of paths is one number wherever roots are kept, so the baseline's is the same.
        unit, r = self._path_unit, baseline_L.shape[-1]
        rows = base.rows / unit.square()
        known, own = rows[..., :r], rows[..., r:]
        known = torch.linalg.solve_triangular(baseline_L.mT, known, upper=True, left=False)
        own = psd_safe_cholesky(own - known @ known.mT, max_tries=6)
        # One product makes the paths of all samples, or both of each.
        has_other = self.denoise and not self.predictive.is_standard_normal
        columns = base_samples.reshape(-1, *base_samples.shape[len(sample_shape) :])
        columns = columns[..., : 1 + has_other].movedim(0, -2)
        drawn = torch.cat([known, own], dim=-1) @ columns.flatten(-2)
        drawn = unit.unsqueeze(-1) * drawn.unflatten(-1, columns.shape[-2:])
        drawn = (self.location.unsqueeze(-1) + drawn).movedim(-2, 0)
        path, *other = drawn.view(*sample_shape, *drawn.shape[1:]).split(1, dim=-1)
        if other:
            return self._transported(path, *other)
        return (
            path.to(self.dtype) if self.denoise else self._observed(path, base_samples[..., r:, 1:])
        )

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        if self.denoise and not self.predictive.is_standard_normal:
            return self._transported(*self._paths(torch.Size([2, *shape])))
        path = self._paths(shape)
        return path if self.denoise else self._observed(path, torch.randn_like(path))

    def _paths(self, shape: torch.Size) -> Tensor:
        return self._path_unit * self.path_posterior.rsample(shape)

    @cached_property
    def path_posterior(self) -> GPyTorchPosterior:
        """`base_posterior` in units of its own, from which paths of the process are drawn.

        Where rounding makes a covariance matrix indefinite, GPyTorch adds 1e-8 (1e-6 in single
        precision) to its diagonal, whatever the units: most of the sample, where outcomes vary by
        1e-4 (1e-3) or less.
        """
        if self._least_variance is None:
            return self.base_posterior
        unit, normal = self._path_unit, self.base_posterior.distribution
        covariance = normal.lazy_covariance_matrix.to_dense() / (unit * unit.mT)
        mean = (self.base_posterior.mean / unit).squeeze(-1)
        return GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))

    @cached_property
    def _path_unit(self) -> Tensor:
        """The unit, a power of two, so that division is exact; ``1 x 1`` or as the variance."""
        if self._least_variance is None:
            return self.noise_variance.new_ones(1, 1)
        return torch.atleast_2d(scale_for_least(self._least_variance))

    def _transported(self, path: Tensor, other: Tensor) -> Tensor:
        """Samples of the objective from two independent paths of the process.

        The noise ``sqrt(n) (f' - mu) / sqrt(v)`` is ``N(0, n)`` at each point and independent of
        ``f``. Between two points with ``r`` the correlation of the paths, that of ``z`` is
        ``r (sqrt(v v') + sqrt(n n')) / sqrt((v + n) (v' + n'))``, whose factor of ``r`` is at most
        1, and 1 where ``n / v`` is the same. Where ``v`` is so small that jitter outweighs it, the
        noise is too large, which does no harm: ``f~`` changes with ``f'`` at the rate
        ``(T' - 1) sqrt(v n) / (v + n)``, at most ``|T' - 1| / 2``. With ``excess="objective"``
        the rates are those of ``v'`` and ``T / tau``, times ``sqrt(v' / v)``.
        """
        location, scale = self.location, self.observed_deviation
        deviation, tau = path - location, None
        if self._stretch is not None:
            root, tau = self._stretch
            deviation, scale = root * deviation, tau * scale
            path = location + deviation
        noisy = deviation
        if not self._noiseless:
            noisy = deviation + self._noise_ratio * (other - location)
        z = noisy / scale
        moved = self.predictive.to(torch.float64).transport(z)
        return (path + self._unit * (moved - (z if tau is None else tau * z))).to(self.dtype)

    def _observed(self, path: Tensor, eps: Tensor) -> Tensor:
        """Samples of observations from a path of the process and noise."""
        location, scale = self.location, self.observed_deviation
        deviation = self.noise_variance.double().clamp(min=0.0).sqrt()
        z = (path + deviation * eps - location) / scale
        moved = self.predictive.to(torch.float64).transport(z)
        return (location + scale * moved).to(self.dtype)

    # ------------------------------------------------------------ affine maps

    def affine(self, weight: float, offset: float = 0.0) -> Self:
        weight, offset = check_number("weight", weight), check_number("offset", offset)
        if weight == 0.0:
            raise InputDataError("`weight` must not be 0.")
        mvn, least = self.base_posterior.distribution, self._least_variance
        if least is None:
            least = mvn.mean.new_full((), usual_least(self.dtype))
        scaled: Any = GPyTorchPosterior(
            MultivariateNormal(
                weight * mvn.mean + offset, mvn.lazy_covariance_matrix * (weight * weight)
            )
        )
        if (rows := getattr(self.base_posterior, "rows", None)) is not None:
            scaled.rows = rows * (weight * weight)
        return type(self)(
            scaled,
            self.predictive.mirrored() if weight < 0 else self.predictive,
            0.0 if self._noiseless else self.noise_variance * (weight * weight),
            self.denoise,
            self.excess,
            least * (weight * weight),
            validate_args=False,
        )


def check_predictive(predictive: Any) -> None:
    """Raise unless it is a distribution that a calibrator states."""
    if not isinstance(predictive, PiecewisePredictive):
        raise UnsupportedError(
            "`predictive` must be a PiecewisePredictive, such as `calibrator.predictive(X)`, "
            f"got {type(predictive).__name__}."
        )


def broadcasts_to(shape: Sequence[int], target: torch.Size) -> bool:
    """Whether ``shape`` broadcasts to ``target`` without changing it."""
    missing = len(target) - len(shape)
    pairs = zip(shape, target[missing:], strict=False)
    return missing >= 0 and all(own in (1, size) for own, size in pairs)

r"""`CalibratedPosterior`: a `Prediction` with joint samples, as a BoTorch posterior."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator, LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Size, Tensor

from botorch_calib._validation import (
    broadcasts_to,
    check_flag,
    check_nonnegative,
    check_one_of,
    check_variances,
)
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors.outcome_maps import Affine
from botorch_calib.posteriors.prediction import EXCESS, MEMBER_DIM, Prediction


class CalibratedPosterior(Prediction, Posterior):
    """Posterior of the objective or an observation under a calibrated predictive distribution.

    At each point, the Gaussian posterior has the objective ``f ~ N(mu, v)`` and the observation ``y
    ~ N(mu, v + n)`` with noise variance ``n``. The piecewise distribution ``predictive`` replaces
    the standard normal distribution of ``z = (y - mu) / sqrt(v + n)``. `Prediction` computes the
    resulting marginals in closed form.

    *Joint samples.* Let ``T`` be the monotone map from the standard normal to the piecewise
    distribution, with the slope ``T'``, and let ``a = v / (v + n)`` be the gain. A sample is ``f~ =
    f + a sqrt(v + n) (T(z) - z)``, for joint draws of ``f`` and ``y = f + sqrt(n) eps`` from the
    Gaussian process. The noise is a function of the input: ``eps = (f' - mu) / sqrt(v)``, with
    ``f'`` a second, independent path of the process. Therefore:

    * A sample is a function of the input, so equal rows of ``X`` have equal values. If the Cholesky
      factor of the process needs jitter, its paths differ between equal rows by about the root of
      the jitter, and ``f~`` differs by up to ``max(1, T') + |T' - 1| / 2`` times as much.
    * Each marginal equals the closed form for every ``q``, and the sample at a point does not
      depend on later points.
    * ``z`` has the posterior correlation of ``f``, exactly between points with equal ``v`` and
      ``n``. Between other points it is smaller.
    * If ``T`` is the identity map, samples are sample paths of the process.

    Samples of the observation are ``mu + sqrt(v + n) T(z)``. As in BoTorch, their noise is
    independent between rows, so two observations at the same point differ.

    *Ensembles.* Members ``s`` of equal weight, such as the draws of a fully Bayesian model, have
    ``f ~ N(mu_s, v_s)`` and ``y ~ N(mu_s, v_s + n_s)``. With ``F`` the mixture's cdf of ``y``, the
    normal score is ``z = Phi^-1(F(y))``. A draw from a member is calibrated by ``y~ =
    F^-1(Phi(T(z)))`` and ``f~ = f + a_s (y~ - y)`` with ``a_s = v_s / (v_s + n_s)``. If members
    have no variance (``v_s = 0``), only observations are calibrated. `mean`, `variance` and samples
    have a dimension of members, ``batch_shape x num_members x q x 1``, over which BoTorch's
    acquisition functions average. All other methods describe the mixture. Samples use interpolated
    scores, with an error of about 1e-5 if members are similar (see `ScoreTable`).

    *Guarantee.* Coverage is guaranteed for statements about the observation. Observations at
    distinct points do not show whether excess spread is due to the objective or to the noise, so
    the default is the gain ``a`` of the process. If the noise variance of the process is too small,
    intervals of the objective remain too narrow at visited points.

    ``excess="objective"`` assumes that the noise variance is correct, and attributes the remaining
    calibrated variance to the objective. With ``tau^2 = max(1, Var[z])``, the variance of the
    process becomes ``v' = tau^2 (v + n) - n``, and its gain becomes ``a' = v' / (v' + n)``, which
    is at least ``a``. Then ``f~`` follows ``int N(f; mu + a' (y - mu), a' n) p(y) dy``, whose
    variance is ``v'`` if ``Var[z] >= 1``. Joint samples replace ``f`` with a normal draw of ``f``
    given ``y`` under ``a'``, whose standardised residual is that of ``f`` under ``a``. The gain has
    a kink at ``Var[z] = 1``. With this option too, intervals of the objective have no guarantee:
    they are too wide if the noise variance is too small.

    Args:
        posterior: Single-output Gaussian posterior of ``f``, without observation noise, in the
            units of the outcome, ``batch_shape x q x 1``. (Models use `of_targets` instead.)
        predictive: Distribution of ``z``; its batch shape can be broadcast to
            ``batch_shape x q x 1``.
        noise_variance: Observation noise variance ``n``, in squared units of the outcome,
            which can be broadcast to ``batch_shape x q x 1``. The number 0 selects the formulas
            without noise; a tensor of zeros gives the same up to rounding.
        denoise: Whether the posterior is of the objective; if False, it is of the observation.
        excess: The source of spread in excess of the process's spread, ``"noise"`` or
            ``"objective"``. Use ``"noise"`` for the search and ``"objective"`` for claims about
            ``f``. The posterior of the observation is the same for both.

    Raises:
        UnsupportedError: If ``posterior`` is not Gaussian, or ``predictive`` is not a
            `PiecewisePredictive`.
        BotorchTensorDimensionError: If there are several outputs, or a shape does not broadcast.
        InputDataError: If a variance or an option is malformed.

    Example:
        >>> posterior = model.posterior(X)
        >>> posterior.quantile(0.9).shape, posterior.cdf(1.0).shape
        (torch.Size([20, 1]), torch.Size([20, 1]))
        >>> samples = posterior.rsample(torch.Size([16]))
    """

    #: Covariance of ``f`` in the space of the targets, ``batch_shape [x num_members] x q x q``;
    #: None if points are independent.
    covariance: Tensor | LinearOperator | None = None
    #: Covariance of ``f`` with its values at ``r`` baseline points, ``batch_shape x q x r``: see
    #: `rsample_from_cached_root`.
    with_baseline: Tensor | None = None

    def __init__(
        self,
        posterior: GPyTorchPosterior,
        predictive: PiecewisePredictive,
        noise_variance: Tensor | float,
        denoise: bool = True,
        excess: str = "noise",
    ) -> None:
        _check_arguments(posterior, predictive, noise_variance, denoise)
        check_one_of("excess", excess, EXCESS)
        mean = posterior.mean
        noise = None
        if isinstance(noise_variance, Tensor) or noise_variance != 0.0:
            noise = torch.as_tensor(noise_variance, dtype=mean.dtype, device=mean.device)
            check_variances("noise_variance", noise)  # again, in the precision of the mean
        variance = posterior.variance
        super().__init__(
            mean, variance, noise, None, None, predictive, denoise, excess, of_order_one=True
        )
        self.covariance = posterior.distribution.lazy_covariance_matrix

    # ------------------------------------------------------------ BoTorch's interface

    @property
    def distribution(self) -> NoReturn:
        """Raise ``UnsupportedError``, since BoTorch expects a multivariate normal here."""
        raise UnsupportedError(
            "A calibrated posterior is not multivariate normal, so it has no `distribution` and no "
            "`mvn`. Use `quantile` for the ends of intervals. Put several outcomes into a "
            "CalibratedModelList (not a ModelListGP, which joins normal distributions). Give "
            "acquisition functions that need joint normality, such as entropy search, the "
            "Gaussian process itself, `model.gaussian_model`."
        )

    mvn = distribution

    @property
    def batch_shape(self) -> Size:
        """The t-batch shape, without the dimension of members."""
        return self.shape[:-2]

    @property
    def mean(self) -> Tensor:
        """Mean, ``batch_shape x q x 1``; for an ensemble, the mean of each member."""
        return self._of_members(0) if self.members else self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance, with the same shape as `mean`."""
        return self._of_members(1) if self.members else self.moments()[1]

    @property
    def mixture_mean(self) -> Tensor:
        """Mean of the mixture of members, ``batch_shape x q x 1``."""
        return self.moments()[0]

    @property
    def mixture_variance(self) -> Tensor:
        """Variance of the mixture of members, ``batch_shape x q x 1``."""
        return self.moments()[1]

    def _of_members(self, moment: int) -> Tensor:
        units = self.outcome_map
        if not isinstance(units, Affine):
            raise UnsupportedError(
                "The moments of the members of an ensemble need an affine outcome transform."
            )
        values = self._mixture.moments_of_members()[moment].movedim(0, MEMBER_DIM)
        values = units.scaled(values, power=2) if moment else units.outcome(values)
        return values.to(self.dtype)

    def _extended_shape(self, sample_shape: Size = Size()) -> Size:  # noqa: B008
        return sample_shape + self.target_mean.shape

    @property
    def base_sample_shape(self) -> Size:
        """``batch_shape x q x 2``: at each point, one number for ``f`` and one for the noise."""
        return Size([*self.path_posterior.base_sample_shape, 2])

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, -2)

    # ------------------------------------------------------------ joint samples

    @cached_property
    @torch.enable_grad()  # the posterior is cached, and a later caller may need its graph
    def path_posterior(self) -> GPyTorchPosterior:
        """The Gaussian posterior of the targets, from which paths of the process are drawn.

        For any units of the outcome, GPyTorch's jitter of 1e-8 (1e-6 in single precision) is small
        compared with targets of order 1.
        """
        mean = self.target_mean.squeeze(-1)
        if self.covariance is None:
            variance = self.target_variance.expand_as(self.target_mean)
            operator: Any = DiagLinearOperator(variance.squeeze(-1))
        else:
            operator = to_linear_operator(self.covariance).double()
        return GPyTorchPosterior(MultivariateNormal(mean, operator))

    def rsample_from_base_samples(self, sample_shape: Size, base_samples: Tensor) -> Tensor:
        """Return differentiable samples, ``sample_shape x batch_shape x q x 1``.

        Args:
            sample_shape: Shape of the set of samples.
            base_samples: Standard normal numbers, ``sample_shape x base_sample_shape``. In the last
                dimension, the first number determines the path ``f``. The second number determines
                the second path ``f'`` for samples of the objective, and the noise for samples of
                observations.
        """
        if base_samples.shape[: len(sample_shape)] != sample_shape:
            raise RuntimeError(
                "`sample_shape` disagrees with shape of `base_samples`. "
                f"Got {sample_shape=} and {base_samples.shape=}."
            )
        first, second = base_samples.double().unbind(-1)
        if not self.objective:
            path = self.path_posterior.rsample_from_base_samples(sample_shape, first)
            return self.moved(path, second.unsqueeze(-1))
        # One matrix product computes both paths.
        drawn = first.unsqueeze(0) if self._corrects_nothing else torch.stack([first, second])
        shape = Size([len(drawn), *sample_shape])
        paths = self.path_posterior.rsample_from_base_samples(shape, drawn)
        return self.moved(paths[0], paths[-1])

    def rsample_from_cached_root(
        self, sample_shape: Size, base_samples: Tensor, baseline_L: Tensor
    ) -> Tensor:
        """Return samples that are joint with earlier samples at ``r`` baseline points.

        Args:
            sample_shape: Shape of the set of samples.
            base_samples: ``sample_shape x batch_shape x (r + q) x 2``, as in
                `rsample_from_base_samples`. The ``r`` baseline points come first. The t-batch
                dimensions may be collapsed to size 1.
            baseline_L: Lower Cholesky root of the covariance of `path_posterior` at the baseline
                points, ``r x r``.

        Raises:
            NotPSDError: If the covariance given the baseline is not positive definite.
            NanError: If the covariance contains NaN.
        """
        assert self.with_baseline is not None and isinstance(self.covariance, Tensor)
        r = baseline_L.shape[-1]
        known = self.with_baseline.double()
        known = torch.linalg.solve_triangular(baseline_L.mT, known, upper=True, left=False)
        own = psd_safe_cholesky(self.covariance.double() - known @ known.mT, max_tries=6)
        # One matrix product computes all paths.
        has_other = self.objective and not self._corrects_nothing
        columns = base_samples.double().reshape(-1, *base_samples.shape[len(sample_shape) :])
        columns = columns[..., : 1 + has_other].movedim(0, -2)
        drawn = torch.cat([known, own], dim=-1) @ columns.flatten(-2)
        drawn = self.target_mean.unsqueeze(-1) + drawn.unflatten(-1, columns.shape[-2:])
        drawn = drawn.movedim(-2, 0)
        path, *other = drawn.view(*sample_shape, *drawn.shape[1:]).split(1, dim=-1)
        if other:
            return self.moved(path, *other)
        return self.moved(path, path if self.objective else base_samples[..., r:, 1:].double())

    def rsample(self, sample_shape: Size | None = None) -> Tensor:
        shape = Size([1]) if sample_shape is None else sample_shape
        path = self.path_posterior.rsample(shape)
        if not self.objective:
            return self.moved(path, torch.randn_like(path))
        return self.moved(
            path, path if self._corrects_nothing else self.path_posterior.rsample(shape)
        )

    def moved(self, path: Tensor, other: Tensor) -> Tensor:
        """Return calibrated outcomes, given paths of the targets from the Gaussian process.

        The shape of the result and of both arguments is ``sample_shape x batch_shape [x
        num_members] x q x 1``. ``other`` contains independent paths (``f'`` in the class docstring)
        or, for observations, standard normal numbers. If the paths have the correlation ``c``
        between two points with the variances ``v_1, n_1`` and ``v_2, n_2``, ``z`` has the
        correlation ``c (sqrt(v_1 v_2) + sqrt(n_1 n_2)) / sqrt((v_1 + n_1) (v_2 + n_2))``. The
        factor of ``c`` is at most 1, and it is 1 if both points have the same ``n / v``. If jitter
        exceeds a small ``v``, the noise is too large. The effect is bounded, since ``f~`` changes
        with ``f'`` at the rate ``(T' - 1) sqrt(v n) / (v + n)``, whose absolute value is at most
        ``|T' - 1| / 2``.
        """
        mean, variance, noise = self.target_mean, self.target_variance, self.target_noise
        if not self.objective:
            t = path if noise is None else path + noise.clamp(min=0.0).sqrt() * other
            moved = t if self._corrects_nothing else t + self._transport(t)
        elif self._corrects_nothing:
            moved = path
        else:
            t = path + self._noise_ratio * (other - mean)
            gain = own = variance / self._total.square()
            if self._growth is not None and noise is not None:
                grown = variance * self._growth[0]
                gain = grown / (grown + noise)
                rest = path - mean - own * (t - mean)
                path = mean + gain * (t - mean) + (gain / own).sqrt() * rest
            moved = path + gain * self._transport(t)
        return self.outcome_map.outcome(moved).to(self.dtype)

    def _transport(self, t: Tensor) -> Tensor:
        """Return calibrated minus original targets; ensembles interpolate scores in a table."""
        if not self.members:
            z = (t - self.target_mean) / self._total
            return self._total * (self._predictive.transport(z) - z)
        table = self._mixture.table
        z = self._predictive.transport(table.score(t.movedim(MEMBER_DIM, 0)))
        return table.quantile(z).movedim(0, MEMBER_DIM) - t


def _check_arguments(
    posterior: object, predictive: object, noise_variance: object, denoise: object
) -> None:
    if type(posterior) is not GPyTorchPosterior:
        raise UnsupportedError(
            "`posterior` of a CalibratedPosterior must be a GPyTorchPosterior with a multivariate "
            f"normal distribution, got {type(posterior).__name__}."
        )
    if posterior._is_mt:
        raise BotorchTensorDimensionError(
            "CalibratedPosterior needs a `posterior` of a single output: use one calibrated "
            "model per outcome in a CalibratedModelList."
        )
    if not isinstance(predictive, PiecewisePredictive):
        raise UnsupportedError(
            "`predictive` must be a PiecewisePredictive, such as `calibrator.predictive(X)`, "
            f"got {type(predictive).__name__}."
        )
    check_flag("denoise", denoise)
    shapes = {"predictive": predictive.batch_shape}
    if isinstance(noise_variance, Tensor):
        shapes["noise_variance"] = check_variances("noise_variance", noise_variance).shape
    elif isinstance(noise_variance, bool):
        raise InputDataError(
            f"`noise_variance` must be a number or a tensor, got {noise_variance}: use "
            "`denoise=False` for the posterior of the observation."
        )
    else:
        check_nonnegative("noise_variance", noise_variance)
    for name, shape in shapes.items():
        if not broadcasts_to(shape, posterior.mean.shape):
            raise BotorchTensorDimensionError(
                f"The shape {tuple(shape)} of `{name}` does not broadcast to the shape "
                f"{tuple(posterior.mean.shape)} of the posterior mean."
            )

"""`noise_diagnosis`: compares the stated observation noise with the noise supported by the data.

The *stated* noise is the noise in the model, given or fitted. The *supported* noise is the noise
with the largest likelihood of the training data, if all stated noise variances are multiplied by a
common multiplier ``m``.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from gpytorch.settings import min_fixed_noise
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammaincinv
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_open_unit
from botorch_calib.models.outcome_transforms import unit_of_targets
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseLikelihood
from botorch_calib.models.process import observed_process, raw_train_inputs
from botorch_calib.models.training_prior import TrainingPrior, training_prior

# If the confidence interval for the noise extends beyond this multiple of the given noise, the
# report says that the data barely determine the noise.
_VAGUE = 3.0
# Noise that is too large does no harm up to this share of the objective's prior standard deviation,
# so there is no advice: it keeps the covariance of noise-free data well-conditioned. BoTorch's fits
# give at least 0.01.
_NEGLIGIBLE = 0.02
_WIDTH = 100  # of printed lines

# Largest distance between neighbouring grid points, in the logarithm of the multiplier.
_STEP = 0.02
# Log likelihoods that differ by no more than this count as equal: the data then do not exclude that
# there is no noise.
_TIE = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class NoiseDiagnosis:
    """The observation noise stated by a model, and the noise supported by the training data.

    Noise is a standard deviation in units of the outcome. If the noise differs between
    observations, it is the root mean square over the observations. ``print(diagnosis)`` gives
    advice, and ``plot_noise_likelihood`` of `botorch_calib.plotting` draws the likelihood.

    Attributes:
        stated: The noise in the model, given or fitted.
        supported: The noise with the largest likelihood; 0 if the absence of noise is likeliest.
        interval: The smallest and the largest noise that the likelihood ratio test does not reject.
            The smallest noise is 0 if the test does not reject the absence of noise.
        multiplier: ``(supported / stated)^2``, the correction factor of noise *variances*. None if
            the stated noise is zero.
        multiplier_interval: The multipliers at both ends of ``interval``, or None.
        level: Confidence level of the interval, in (0, 1).
        given: Whether the noise was given, as with ``train_Yvar``, instead of fitted.
        num_observations: Number of training observations whose noise is diagnosed.
        prior_deviation: Prior standard deviation of the objective, as a root mean square over the
            training inputs, for comparison with the noise.
        deviations: Values of the noise at which the likelihood was evaluated, ``k``, increasing.
        log_likelihoods: Log likelihoods at ``deviations``, ``k``, minus the largest of them.
        is_floor: Whether the given noise is GPyTorch's minimum
            (``gpytorch.settings.min_fixed_noise``), which replaces smaller values such as 0.
        are_deviations: Whether the given variances are rejected and their squares are not. The
            given values may then be standard deviations. If all given values are equal, this may
            also be due to other errors.
    """

    stated: float
    supported: float
    interval: tuple[float, float]
    multiplier: float | None
    multiplier_interval: tuple[float, float] | None
    level: float
    given: bool
    num_observations: int
    prior_deviation: float
    deviations: Tensor
    log_likelihoods: Tensor
    is_floor: bool = False
    are_deviations: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the stated noise lies in the ``interval``."""
        return self.interval[0] <= self.stated <= self.interval[1]

    @property
    def summary(self) -> str:
        """The stated noise, the supported noise and its interval, in one line of text."""
        stated, supported, *ends = map(_number, (self.stated, self.supported, *self.interval))
        return (
            f"Observation noise: stated {stated}, the data support {supported} "
            f"({ends[0]} to {ends[1]})"
        )

    @property
    def advice(self) -> str | None:
        """A text on how to correct the model, or None if no correction is needed.

        No correction is needed if the stated noise agrees with informative data, or is too large
        but negligible compared with the objective.
        """
        if self.agrees:
            # A wide interval is a problem only if the noise was given: the kernel may then have
            # absorbed noise. A kernel that was fitted together with the noise has absorbed none.
            is_vague = self.given and self.interval[1] > _VAGUE * self.stated
            return _HARDLY_TELLING if is_vague else None
        is_larger = self.stated < self.interval[0]
        if not is_larger and self.stated <= _NEGLIGIBLE * self.prior_deviation:
            return None
        size, length = ("larger", _TOO_LONG) if is_larger else ("smaller", _TOO_SHORT)
        return f"{self._remedy(size)} {_HELD_FIXED} {length}"

    def _remedy(self, size: str) -> str:
        if not self.given:
            return _FITTED.format(size=size)
        if self.multiplier is None or (self.is_floor and size == "larger"):
            return _GIVEN_AS_ZERO.format(variance=_number(self.supported**2))
        if self.multiplier == 0.0:
            return f"The data are likeliest without any noise: {_LEAVE_OUT}; then fit again."
        remedy = (
            f"The noise is {size} than given. {_SQUARE if self.are_deviations else 'Multiply'} "
            f"`train_Yvar` by {_number(self.multiplier)}, or {_LEAVE_OUT}; then fit again."
        )
        return remedy if size == "smaller" else f"{remedy} {_AND_AGAIN}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for ``json.dumps``, without the likelihood curve."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if not isinstance(value, Tensor)
        }

    def __str__(self) -> str:
        note = (
            "Standard deviations in units of the outcome (root mean squares where they differ); in "
            f"brackets, the {100 * self.level:.4g} % interval."
        )
        paragraphs = [self.summary, note, *([] if self.advice is None else [self.advice])]
        return "\n".join(textwrap.fill(text, _WIDTH) for text in paragraphs)

    __repr__ = __str__


@torch.no_grad()
def noise_diagnosis(model: Module, level: float = 0.95, task: int | None = None) -> NoiseDiagnosis:
    """Estimate the factor by which the observation noise of a fitted model is wrong.

    The likelihood ``L(m)`` of the training data, with all noise variances of the model multiplied
    by ``m``, is maximised over ``m >= 0``. Everything else in the model stays fixed. The interval
    holds all ``m`` that the likelihood ratio test does not reject: ``2 (log L(best) - log L(m))``
    is at most the ``level``-quantile of the chi-square distribution with one degree of freedom,
    where ``best`` is the most likely multiplier.

    Observations without noise in the model stay without noise, and ``L(m)`` is the likelihood of
    the other observations given these observations. If no observation has noise in the model, a
    single noise variance is estimated. For a `PartlyKnownNoiseGP`, only given variances are
    multiplied by ``m``, and for a model of several tasks, only the variances of one ``task``. All
    other variances stay fixed.

    Hyperparameters fitted under too little noise absorb part of the missing noise, mostly through a
    short lengthscale. The supported noise is then too small. So correct the model's noise, fit the
    model again, and repeat the diagnosis.

    Args:
        model: A fitted exact Gaussian process with one output and no batch dimension, with learned
            or given noise, or a `CalibratedModel` or `CensoredDelayModel` of such a process.
            Pending points are ignored. The model is not changed.
        level: Confidence level of the interval, in (0, 1).
        task: For a multi-task model, the value of the task feature of the observations whose noise
            is diagnosed; None for other models.

    Raises:
        UnsupportedError: If the model is not of one of these kinds, or its outcome transform is not
            affine.
        InputDataError: If there are no training data, or ``task`` is missing or unknown.

    Example:
        >>> diagnosis = noise_diagnosis(gp)
        >>> stated, supported = diagnosis.stated, diagnosis.supported
    """
    level = check_open_unit("level", level)
    gp = observed_process(model)
    prior = training_prior(gp, torch.double)
    rows, given = _judged(gp, task)
    squared_units = unit_of_targets(gp).to(prior.noise).squeeze(-1).square().expand_as(prior.noise)

    def root_mean(variances: Tensor) -> float:
        return float((squared_units * variances)[rows].mean().sqrt())

    stated = root_mean(prior.new_noise)
    is_zero = stated == 0.0
    floor = min_fixed_noise.value(gp.train_targets.dtype)
    noise = torch.ones_like(prior.noise) if is_zero else prior.noise
    base = root_mean(noise) if is_zero else stated  # the noise at multiplier 1
    # The noise of the observations outside `rows` is fixed. So it is added to the covariance of the
    # objective, and the multiplied noise of these observations is 0.
    others = torch.where(rows, 0.0, prior.noise)
    data = prior._replace(
        covariance=prior.covariance + others.diag_embed(), noise=torch.where(rows, noise, 0.0)
    )
    support = supported_multipliers(whitened(data), level)
    # The factor 1.01 allows for rounding: the noise is a difference of two rounded variances.
    is_floor = given and not is_zero and bool((prior.noise <= 1.01 * floor)[rows].all())
    # Test whether standard deviations were passed as variances (so that their squares fit) only if
    # the data rule out zero noise. Otherwise squares that are nearly zero would always fit.
    is_known = not (is_zero or is_floor) and support.low > 0.0
    are_deviations = given and is_known and not support.low <= 1.0 <= support.high
    if are_deviations:  # but not if the best multiple fits much better than the squares
        squares = data._replace(noise=squared_units * data.noise.square())
        gain = whitened(data).at(math.log(support.best)) - whitened(squares).at(0.0)
        # `whitened` omits the determinant of the noise, which differs between both likelihoods.
        ratios = (squared_units * data.noise)[data.noise > 0.0]
        are_deviations = gain + 0.5 * float(ratios.log().sum()) <= gammaincinv(0.5, level)
    return NoiseDiagnosis(
        stated=stated,
        supported=base * math.sqrt(support.best),
        interval=(base * math.sqrt(support.low), base * math.sqrt(support.high)),
        multiplier=None if is_zero else support.best,
        multiplier_interval=None if is_zero else (support.low, support.high),
        level=level,
        given=given,
        num_observations=int(rows.sum()),
        prior_deviation=root_mean(prior.covariance.diagonal()),
        deviations=base * (support.log_multipliers / 2).exp(),
        log_likelihoods=support.log_likelihoods,
        is_floor=is_floor,
        are_deviations=are_deviations,
    )


def _judged(gp: ExactGP, task: int | None) -> tuple[Tensor, bool]:
    """Return which observations have noise that is diagnosed, and whether this noise was given.

    The first result has ``n`` booleans, one for each training observation. They select the
    observations of the ``task``, if the model has several tasks. If the noise of some of them was
    given and of some was fitted, they select only the observations with given noise.
    """
    rows, likelihood = torch.ones_like(gp.train_targets, dtype=torch.bool), gp.likelihood
    if isinstance(gp, MultiTaskGPyTorchModel) != (task is not None):
        raise InputDataError(
            f"`task` must be a task of the model if that has several, and None otherwise, got "
            f"{task} for a {type(gp).__name__}."
        )
    if task is not None:
        inputs = raw_train_inputs(gp)
        assert inputs is not None
        rows = inputs[:, gp._task_feature].round() == task
        if not rows.any():
            raise InputDataError(f"`model` has no observations of `task` {task}.")
    if isinstance(likelihood, PartlyKnownNoiseLikelihood):
        known = rows & ~likelihood.noise_covar.noise.isnan()
        return (known, True) if known.any() else (rows, False)
    return rows, isinstance(likelihood, FixedNoiseGaussianLikelihood)


def _number(value: float) -> str:
    """Format a number with two significant digits, or as an integer from 10 to a million."""
    if value == 0.0 or 9.95 <= value < 1e6:
        return f"{value:.0f}"
    return f"{value:#.2g}"


# ------------------------------------------------------------ advice

_LEAVE_OUT = "leave `train_Yvar` out so that the noise is fitted"
_SQUARE = (
    "Were standard deviations given as variances? The squares explain the data: give "
    "`train_Yvar.square()`. If not, multiply"
)
_AND_AGAIN = (
    "Standard errors within an evaluation miss variation between evaluations, such as days. "
    "Diagnose again after the fit: a kernel fitted under too little noise has absorbed part of it."
)
_GIVEN_AS_ZERO = (
    "The noise was given as zero, or as less than GPyTorch's minimum, so no multiple helps: give "
    "variances of about {variance}, or leave `train_Yvar` out so that the noise is fitted; then "
    "fit again."
)
_FITTED = (
    "The noise is {size} than in the model, although it was fitted: fit again. If that changes "
    "nothing, check the prior and the bounds of the noise, and whether the noise varies with "
    "inputs or tasks."
)
_HELD_FIXED = "Everything else in the model was held fixed:"
_TOO_LONG = (
    "a lengthscale that is too long looks like noise as well. Repeated evaluations of one input "
    "would tell which."
)
_TOO_SHORT = (
    "a lengthscale that is too short hides noise. Repeated evaluations of one input would tell."
)
_HARDLY_TELLING = (
    "The data hardly determine the noise: if it is larger than stated, the kernel, fitted under "
    "the stated noise, may have absorbed the rest. Fit a model without `train_Yvar` and compare "
    "the noise, or repeat some evaluations."
)


# ------------------------------------------------------------ the likelihood of a multiplier


class WhitenedTargets(NamedTuple):
    """Independent coordinates of the data, for the likelihood of a multiplier ``m`` of the noise.

    Let ``K`` be the covariance of the objective at the training inputs, ``N`` the diagonal matrix
    of the noise variances, and ``r``, normal with mean 0 and covariance ``K + m N``, the targets
    minus their mean. Let

        ``N^{-1/2} K N^{-1/2} = U diag(lambda) U^T``,    ``s = U^T N^{-1/2} r``.

    The coordinates ``s_i`` are independent, with variances ``lambda_i + m``. So for every ``m`` the
    log likelihood is, with a constant that does not depend on ``m``,

        ``log L(m) = -1/2 sum_i [s_i^2 / (lambda_i + m) + log(lambda_i + m)] + const``.

    In ``t = log m`` each term varies on a scale of about 1 (it is analytic where ``|Im t| < pi``),
    so a fine grid of ``t`` misses no local maximum.
    """

    eigenvalues: Tensor  # lambda_i, n, nonnegative
    squares: Tensor  # s_i^2, n

    def log_likelihood(self, t: Tensor) -> Tensor:
        """Log likelihood of the multipliers ``m = exp(t)`` of the noise, up to a constant.

        The result has the shape ``k`` of ``t``. The constant does not depend on ``m``.
        """
        total = self.eigenvalues + t.exp().unsqueeze(-1)
        return -0.5 * (self.squares / total + total.log()).sum(dim=-1)

    def at(self, t: float) -> float:
        """Log likelihood of one multiplier, ``exp(t)``, up to the constant of `log_likelihood`."""
        return float(self.log_likelihood(self.squares.new_tensor([t])))


def whitened(prior: TrainingPrior) -> WhitenedTargets:
    """The independent coordinates of the observations whose noise variance is positive.

    Their distribution is conditioned on the noise-free observations. The likelihood of the
    noise-free observations themselves does not depend on the multiplier of the noise, so it is left
    out.
    """
    covariance, noise, deviation = prior.covariance, prior.noise, prior.deviation
    noisy = noise > 0.0
    if not bool(noisy.all()):
        factor = psd_safe_cholesky(covariance[~noisy][:, ~noisy])
        known = torch.cat([covariance[~noisy][:, noisy], deviation[~noisy].unsqueeze(-1)], dim=-1)
        solved = torch.linalg.solve_triangular(factor, known, upper=False)
        cross, values = solved[:, :-1], solved[:, -1]
        covariance = covariance[noisy][:, noisy] - cross.mT @ cross
        noise, deviation = noise[noisy], deviation[noisy] - cross.mT @ values
    weights = noise.rsqrt()
    matrix, targets = weights.unsqueeze(-1) * covariance * weights, weights * deviation
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return WhitenedTargets(eigenvalues.clamp(min=0.0), (vectors.mT @ targets).square())


class SupportedMultipliers(NamedTuple):
    """Multipliers of the noise variances that the data support, and the likelihood curve."""

    best: float  # the most likely multiplier
    low: float  # the smallest multiplier that the likelihood ratio test does not reject
    high: float  # the largest multiplier that the test does not reject
    log_multipliers: Tensor  # logarithms of the evaluated multipliers, k, increasing
    log_likelihoods: Tensor  # log likelihoods of these multipliers, k, minus the greatest of them


def supported_multipliers(data: WhitenedTargets, level: float) -> SupportedMultipliers:
    """The most likely multiplier of the noise, and the interval of multipliers not rejected.

    The likelihood ratio test rejects multipliers at the significance ``1 - level``.
    """
    # A multiplier is rejected if its log likelihood is below the maximum by more than `drop`, which
    # is half of the ``level``-quantile of the chi-square distribution.
    drop = gammaincinv(0.5, level)
    points = _grid(data, drop)
    values = data.log_likelihood(points)
    best = int(values.argmax())
    if values[best] - values[0] <= _TIE:  # the likelihood is flat down to zero noise
        best = 0
    else:
        around = points[best - 1].item(), points[best + 1].item()
        found = minimize_scalar(
            lambda t: -data.at(t), bounds=around, method="bounded", options={"xatol": 1e-9}
        )
        points = torch.cat([points, points.new_tensor([found.x])]).sort().values
        values = data.log_likelihood(points)
        best = int(values.argmax())
    threshold = float(values[best]) - drop
    inside = (values >= threshold).nonzero().flatten()
    first, last = int(inside[0]), int(inside[-1])
    # The first grid point represents all smaller multipliers, so it stands for 0. The last grid
    # point is always rejected (see `_grid`), so `high` is between two grid points.
    return SupportedMultipliers(
        best=0.0 if best == 0 else float(points[best].exp()),
        low=0.0 if first == 0 else _crossing(data, points[first - 1 : first + 1], threshold),
        high=_crossing(data, points[last : last + 2], threshold),
        log_multipliers=points,
        log_likelihoods=values - values[best],
    )


def _grid(data: WhitenedTargets, drop: float) -> Tensor:
    """Increasing logarithms of multipliers ``m``, at most `_STEP` apart.

    The multipliers range from the smallest ``m`` that rounding resolves to an ``m`` that is always
    rejected, because its log likelihood is less than the maximum by more than ``drop``.
    """
    eigenvalues, squares = data
    # The largest eigenvalue sets the rounding errors of all eigenvalues and of their sums with m.
    # A multiplier m below these errors has no effect.
    smallest = eigenvalues.max().clamp(min=1e-200) * torch.finfo(eigenvalues.dtype).eps
    start = torch.maximum(squares.mean(), smallest).log().reshape(1)
    # Eigenvalues are nonnegative, so log L(m) <= -n/2 log m. `start` and `high` are logarithms of
    # multipliers. At `high` the bound is below log L(start) - drop. The maximum is not below
    # log L(start), so `high` is rejected.
    reached = float(data.log_likelihood(start)) - drop
    high = -2.0 / len(squares) * reached + _STEP
    low = float(smallest.log())
    count = math.ceil((high - low) / _STEP) + 1
    return torch.linspace(low, high, count, dtype=start.dtype, device=start.device)


def _crossing(data: WhitenedTargets, ends: Tensor, threshold: float) -> float:
    """The multiplier at which the log likelihood equals ``threshold``.

    Its logarithm is between the two neighbouring grid points ``ends``.
    """
    return math.exp(brentq(lambda t: data.at(t) - threshold, *ends.tolist()))

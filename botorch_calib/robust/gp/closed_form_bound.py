"""Upper confidence bounds at all pairs of decisions and contexts, and their gradients.

The bound is ``sign * mu(z) + h(v(z), z)`` at a joint input ``z = (x, c)``, where ``mu`` and ``v``
are the mean and the variance of a Gaussian process. Without calibration the bonus ``h`` is
``sqrt(beta v)``. With calibration the bonus is the bound of the calibrated distribution that
belongs to a process with mean 0 and variance ``v``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import predicting_process
from botorch_calib.models.radial_kernels import LEAST_SQUARE
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import Prediction
from botorch_calib.robust.contexts import pairwise_distances
from botorch_calib.robust.contextual_function import ContextualFunction, norm_and_direction
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.gp.stationary_gp import StationaryGP, is_stationary, stationary_gp
from botorch_calib.robust.joint_inputs import Columns

# On a CPU, a chunk has about _ELEMENTS covariances between (decision, context) pairs and training
# points, limited to between _LEAST_PAIRS and _MOST_PAIRS pairs, so that it fits into the cache. On
# a GPU it has about _DEVICE_ELEMENTS covariances, so that there are few kernel launches.
_ELEMENTS, _LEAST_PAIRS, _MOST_PAIRS, _DEVICE_ELEMENTS = 2**18, 256, 1024, 2**26
# Number of pairs whose bonuses are computed together, on a CPU and on a GPU
_BLOCK, _DEVICE_BLOCK = 2**14, 2**18


class ClosedFormConfidenceBound(ContextualFunction):
    r"""The bound ``sign * mu(x, c) + sqrt(beta) sigma(x, c)`` of a `StationaryGP`, in closed form.

    Here ``mu`` and ``sigma`` are the posterior mean and standard deviation. Let ``k`` be the
    kernel's values between a pair and the ``n`` scaled training inputs ``s_i``, and ``V = P k``
    with ``P = gp.precision`` (see `StationaryGP`). The gradients of the mean and of the variance
    with respect to scaled inputs ``s`` are

        ``2 sum_i weights_i f'_i (s - s_i)`` and ``-4 sum_i V_i f'_i (s - s_i)``,

    where ``weights = gp.weights``, and ``f'_i`` is the derivative of the kernel with respect to the
    squared distance. One product ``(b M x n)(n x n)`` gives values and gradients at all pairs of
    ``b`` decisions and ``M`` contexts. Autograd through the moments of single points takes eight
    times as long at ``b = 64``, and twice as long at ``b = 4``. If the training covariance is badly
    conditioned, the variance is computed from a root of ``P``, and a second product gives ``V``.
    The gradient of a variance at its lower limit is 0.

    Args:
        gp: The posterior, made by `stationary_gp`.
        columns: The columns of decisions and contexts.
        beta: BoTorch's ``beta``, under the square root.
        sign: 1 for an upper bound of ``f``, -1 for an upper bound of ``-f``.
        calibrated: The calibrated model whose process is ``gp`` (None: no calibration). The bound
            then uses the moments of the calibrated posterior.
    """

    chunk = 512

    def __init__(
        self,
        gp: StationaryGP,
        columns: Columns,
        beta: float,
        sign: float = 1.0,
        calibrated: Surrogate | None = None,
    ) -> None:
        self.columns, self._split = columns, len(columns.decision)
        # Decisions come first in all tensors below, and in the gradients.
        order = columns.decision + columns.context
        parts = (each[..., order].contiguous() for each in (gp.origin, gp.slope, gp.inputs))
        origin, slope, inputs = parts
        self.gp = gp = replace(gp, origin=origin, slope=slope, inputs=inputs)
        self._mean, self._weights = sign * gp.mean, sign * gp.weights
        # The product of a row of ``n`` factors with ``_sums``, ``n x (d + 1)``, gives the sum of
        # the training inputs with these factors, times ``-_unit``, and the sum of the factors. With
        # ``_unit``, sums become gradients with respect to unscaled inputs. The product is twice as
        # fast if each column is contiguous. ``_weighted`` contains the weights of the mean, too.
        self._unit = 2.0 * gp.profile.slope * gp.slope
        units = (-gp.inputs * self._unit).mT
        columns_of_sums = torch.cat([units, torch.ones_like(units[:1])])
        self._sums, self._weighted = columns_of_sums.mT, (columns_of_sums * self._weights).mT
        self._width, self._sign, self._calibrated = beta**0.5, sign, calibrated

    def _bonus(self, variance: Tensor, points: Tensor) -> Tensor:
        """The bound minus ``sign * mu``, with the same shape as ``variance``.

        Here ``mu`` is the mean of the process. Without calibration the difference is ``sqrt(beta
        variance)``. With a calibrated model it is ``sign * (mean - mu) + sqrt(beta) sigma``, where
        ``mean`` and ``sigma`` are from the calibrated posterior at the joint inputs ``points``,
        with decisions first: ``b x M x d`` for all pairs, or ``n x d``.
        """
        model, split = self._calibrated, self._split
        if model is None:
            return self._width * variance.sqrt()
        assert model.calibrator is not None
        Z = model.transform_inputs(self.columns.join(points[..., :split], points[..., split:]))
        if points.dim() == 2:
            predictive = model.calibrator.predictive(Z)
        else:
            places = self.columns.decision, self.columns.context
            predictive = model.calibrator.predictive_at_pairs(Z, *places)
        v = variance.unsqueeze(-1)
        prediction = Prediction(
            torch.zeros_like(v),
            v,
            self.gp.noise.to(v).view(1, 1),
            predictive=predictive,
            objective=model.denoise,
            excess=model.excess,
        )
        shift, square = (part.squeeze(-1) for part in prediction.moments())
        return self._sign * shift + self._width * square.sqrt()

    def _bonus_with_slopes(
        self, variance: Tensor, points: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The result of `_bonus`, and its gradients with respect to variances and points.

        The gradient with respect to points is None without calibration. Both gradients are
        differentiable if gradients are enabled.
        """
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            at = variance.requires_grad_(), points.requires_grad_()
            bonus = self._bonus(*at)
            slopes = torch.autograd.grad(bonus.sum(), at, create_graph=twice, allow_unused=True)
        return bonus, slopes[0], slopes[1]

    @torch.no_grad()
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        shape = len(X), len(contexts)
        values = X.new_empty(shape)
        jacobian = X.new_empty(*shape, X.shape[-1] + contexts.shape[-1] if gradients else 0)
        block = _BLOCK if X.device.type == "cpu" else _DEVICE_BLOCK
        size = max(block // max(len(contexts), 1), 1)
        for start in range(0, len(X) if len(contexts) else 0, size):
            rows = slice(start, start + size)
            values[rows], jacobian[rows] = self._at_pairs(X[rows], contexts, gradients)
        return values, jacobian

    def _at_pairs(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values ``b x M`` of the bound at all pairs, and its gradients ``b x M x d``.

        The gradients are with respect to decisions, then contexts. They are ``b x M x 0`` if
        ``gradients`` is False.
        """
        split, gp = self._split, self.gp
        sides = X.to(gp.origin), contexts.to(gp.origin)
        pairs = sides[0].unsqueeze(1).expand(-1, len(contexts), -1), sides[1].expand(len(X), -1, -1)
        points = torch.cat(pairs, dim=-1)
        parts = slice(split), slice(split, None)
        scaled = [
            (side - gp.origin[part]) * gp.slope[part]
            for side, part in zip(sides, parts, strict=True)
        ]
        values, variance, by_mean, by_variance = self._moments(scaled[0], scaled[1], gradients)
        if not gradients:
            return values + self._bonus(variance, points), by_mean
        bonus, slope, by_points = self._bonus_with_slopes(variance, points)
        factor = slope * (variance > gp.least_variance)
        sums = by_mean.addcmul_(factor.unsqueeze(-1), by_variance, value=-2.0)
        gradient, total = sums[..., :-1], sums[..., -1:]
        gradient[..., :split].addcmul_(scaled[0].unsqueeze(1) * self._unit[:split], total)
        gradient[..., split:].addcmul_(scaled[1] * self._unit[split:], total)
        return values.add_(bonus), gradient if by_points is None else gradient.add_(by_points)

    def _moments(
        self, X: Tensor, contexts: Tensor, gradients: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``sign * mean`` and variance, ``b x M``, and a sum ``b x M x (d + 1)`` for each gradient.

        ``X`` and ``contexts`` are scaled. For the mean, the first ``d`` columns of the sum are
        ``-sum_i g_i weights_i s_i``, multiplied by ``self._unit``, and the last column is ``sum_i
        g_i weights_i``. For the variance, ``V_i`` replaces ``weights_i``. The notation is that of
        the class docstring, with ``f'_i = gp.profile.slope * g_i``. Without ``gradients`` the sums
        have no columns.
        """
        gp, split, b, M = self.gp, self._split, len(X), len(contexts)
        first, second = (
            gp.profile.prepared(pairwise_distances(side, inputs).square_())
            for side, inputs in ((X, gp.inputs[:, :split]), (contexts, gp.inputs[:, split:]))
        )
        mean, variance = X.new_empty(2, b, M)
        by_mean, by_variance = X.new_empty(2, b, M, self._sums.shape[-1] if gradients else 0)
        num = max(len(gp.inputs), 1)
        most = max(_DEVICE_ELEMENTS // num, _LEAST_PAIRS)
        if X.device.type == "cpu":
            most = min(max(_ELEMENTS // num, _LEAST_PAIRS), _MOST_PAIRS)
        width = min(M, most)
        height = max(most // width, 1)
        # All chunks share three buffers, so that the buffers stay in the processor's cache.
        storage = X.new_empty(3, min(height, b) * width * len(gp.inputs))
        for i, j in product(range(0, b, height), range(0, M, width)):
            at = slice(i, i + height), slice(j, j + width)
            shape = *mean[at].shape, len(gp.inputs)
            out = storage[:, : math.prod(shape)].view(3, *shape).unbind()
            k, g = gp.profile.at_pairs(first[at[0], None], second[None, at[1]], out)
            V, variance[at] = self._solved(k, out[2])
            mean[at] = k @ self._weights
            if gradients:
                by_mean[at], by_variance[at] = g @ self._weighted, V.mul_(g) @ self._sums
        return mean.add_(self._mean), variance, by_mean, by_variance

    def _solved(self, k: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``k P`` and posterior variances, from kernel values ``k``, ``... x n``.

        ``P`` is ``gp.precision``. The product is written to ``out``, if given.
        """
        gp = self.gp
        if gp.root is None:
            V = torch.matmul(k, gp.precision, out=out)
            explained = torch.linalg.vecdot(k, V)
        else:
            W = k @ gp.root
            V, explained = torch.matmul(W, gp.root.mT, out=out), W.square().sum(dim=-1)
        return V, (gp.variance - explained).clamp_min(gp.least_variance)

    @torch.enable_grad()
    def _gradient_norm(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        gp, split = self.gp, self._split
        x, c = (each.detach().to(gp.origin) for each in (X, contexts))
        x.requires_grad_()
        scaled = (torch.cat([x, c], dim=-1) - gp.origin) * gp.slope
        squares = pairwise_distances(scaled, gp.inputs).square().clamp_min(LEAST_SQUARE)
        k, g = gp.profile.at(squares)
        V, variance = self._solved(k)
        # Not the tensor from which the variance was computed, so that gradients with respect to
        # ``points`` treat the variance as constant
        points = torch.cat([x, c], dim=-1)
        _, by_variance, by_points = self._bonus_with_slopes(variance, points)
        by_variance = by_variance * (variance > gp.least_variance)
        # Gradients of the bound with respect to k, then with respect to contexts
        factors = torch.addcmul(self._weights, by_variance.unsqueeze(-1), V, value=-2.0)
        sums = (factors * g) @ self._sums[:, split:]
        gradient = sums[:, :-1] + scaled[:, split:] * self._unit[split:] * sums[:, -1:]
        if by_points is not None:
            gradient = gradient + by_points[:, split:]
        norm, direction = norm_and_direction(gradient)
        # grad_x |grad_c u| = (grad_x grad_c u) direction, so the direction is held constant.
        (slope,) = torch.autograd.grad((gradient * direction.detach()).sum(), x)
        return norm.detach().to(X), slope.to(X)


def gaussian_process(model: Model) -> ExactGP | None:
    """Return the Gaussian process of a model if `stationary_gp` supports it, else None.

    The model may be the process itself, or a `Surrogate` such as a `CalibratedModel`.
    """
    gp = predicting_process(model)
    # A subclass of `Surrogate` that overrides `Surrogate.posterior` may predict differently, so it
    # is not supported.
    is_own = isinstance(model, Surrogate) and type(model).posterior is Surrogate.posterior
    is_known = model is gp or is_own
    return gp if is_known and is_stationary(gp) else None


def confidence_bound(
    model: Model,
    columns: Columns,
    beta: float,
    sign: float = 1.0,
    posterior_transform: PosteriorTransform | None = None,
) -> ContextualFunction:
    """Return the confidence bound of any model with one output, in closed form if possible.

    For the arguments see `ClosedFormConfidenceBound`. ``posterior_transform`` must be affine.
    """
    gp = gaussian_process(model) if posterior_transform is None else None
    if gp is not None:
        calibrated = None
        if isinstance(model, Surrogate) and model.calibrator is not None:
            model.warn_if_unlearned()  # as `posterior` would
            calibrated = model
        return ClosedFormConfidenceBound(stationary_gp(gp), columns, beta, sign, calibrated)

    def bound(Z: Tensor) -> Tensor:
        mean, sigma = mean_and_deviation(model, Z, posterior_transform)
        return (sign * mean + beta**0.5 * sigma).squeeze(-1).squeeze(-1)

    return PointwiseFunction(bound, columns, chunk=pairs_per_chunk(model))

"""Distributions of the context on finitely many atoms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_calib._validation import (
    check_bounds,
    check_columns,
    check_count,
    check_finite,
    check_inputs,
    check_numbers,
    check_tensor,
)
from botorch_calib.models.matching_rows import first_appearances

T = TypeVar("T")

# Largest accepted difference between the sum of weights and 1. The rounding errors of a few
# thousand float32 weights are smaller; a larger difference is an error.
_SUM_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class ContextDistribution:
    """A distribution on finitely many contexts (atoms), the centre of an ambiguity set.

    Some sets (`WassersteinBall`, `TotalVariationBall`, `WorstCase`) can move mass to atoms of
    weight 0, which `with_candidates` adds. `empirical` and `discrete` merge equal atoms; the
    constructor does not. Tensors are copied. Do not modify the copies, since results are cached.

    Attributes:
        points: Contexts, ``M x d_c``.
        weights: Probabilities of the atoms, ``M``, which sum to 1 up to rounding.
        indices: Columns of a model's joint inputs that hold the contexts, in the order of the
            columns of ``points``. Negative indices count from the end (None: the last ``d_c``).
        lipschitz_points: Contexts ``M' x d_c`` over which ``WassersteinBall(method="lipschitz")``
            takes the largest gradient norm (None: the atoms). Few points, such as observed
            contexts, may miss the largest norm.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.

    Example:
        >>> met = ContextDistribution.empirical(X[:, 1:])
        >>> contexts = met.with_candidates(torch.linspace(0, 1, 11).double().unsqueeze(-1))
    """

    points: Tensor
    weights: Tensor
    indices: Sequence[int] | None = None
    lipschitz_points: Tensor | None = None
    _memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        points = check_contexts("points", self.points).detach()
        weights, width = check_weights(self.weights, len(points)).double(), points.shape[-1]
        total = weights.sum()
        if (total - 1).abs() > _SUM_TOLERANCE:
            raise InputDataError(f"`weights` must sum to 1, their sum is {total.item():.6g}.")
        weights = (weights / total).to(points)
        indices, others = self.indices, self.lipschitz_points
        if indices is not None:
            indices = check_columns("indices", indices)
            if len(indices) != width or len(set(indices)) != width:
                raise InputDataError(f"`indices` must be {width} different columns, got {indices}.")
        if others is not None:
            check_inputs("lipschitz_points", check_contexts("lipschitz_points", others), width)
            others = others.detach().to(points).clone()
        vars(self).update(
            points=points.clone(), weights=weights, indices=indices, lipschitz_points=others
        )

    @classmethod
    def discrete(cls, points: Tensor, weights: Tensor) -> ContextDistribution:
        """Return the distribution on atoms ``M x d_c``; equal atoms are merged.

        The ``weights``, ``M``, must sum to 1.
        """
        given = cls(points, weights)
        kept, inverse = first_appearances(given.points).unique(return_inverse=True)
        if len(kept) == given.num_points:
            return given
        merged = torch.zeros_like(given.weights[kept], dtype=torch.double)
        merged.index_add_(0, inverse, given.weights.double())
        return cls(given.points[kept], merged)

    @classmethod
    def empirical(cls, samples: Tensor, weights: Tensor | None = None) -> ContextDistribution:
        """Return the distribution of observed contexts; equal contexts become one atom.

        Args:
            samples: Observed contexts, ``n x d_c``.
            weights: Nonnegative numbers with a positive sum, ``n``, for example smaller numbers
                for older samples (default: equal weights).
        """
        check_contexts("samples", samples)
        weights = samples.new_ones(len(samples)) if weights is None else weights
        weights = check_weights(weights, len(samples)).double()
        if not weights.sum() > 0:
            raise InputDataError("`weights` must have a positive sum.")
        return cls.discrete(samples, weights / weights.sum())

    @classmethod
    def kde(
        cls,
        samples: Tensor,
        bounds: Tensor,
        num_points: int = 256,
        bandwidth: str | float | Tensor = "scott",
        seed: int = 0,
    ) -> ContextDistribution:
        """Return the distribution of quasi-random draws from a kernel density estimate in a box.

        The kernel is Gaussian. Draws outside the box are reflected into it.

        Args:
            samples: Observed contexts inside the box, ``n x d_c``.
            bounds: Lower and upper corner of the box, ``2 x d_c``.
            num_points: Number of draws.
            bandwidth: Standard deviations of the kernel: one positive number or ``d_c`` of them, or
                ``"scott"`` for the samples' standard deviations times ``n^(-1/(d_c + 4))``.
            seed: Seed of the draws.
        """
        num_dims = check_contexts("samples", samples).shape[-1]
        if check_bounds(bounds).shape[-1] != num_dims:
            raise BotorchTensorDimensionError(f"`bounds` must have shape 2 x {num_dims}.")
        low, high = bounds.detach().to(samples)
        if not (low < high).all():
            raise InputDataError("`bounds` must hold lower bounds below upper bounds.")
        if ((samples < low) | (samples > high)).any():
            raise InputDataError("`samples` must lie inside `bounds`.")
        if isinstance(bandwidth, str):
            if bandwidth != "scott":
                raise InputDataError(f"`bandwidth` must be 'scott' or positive, got {bandwidth!r}.")
            spread = samples.double().std(dim=0, correction=min(len(samples) - 1, 1))
            scale = spread * len(samples) ** (-1.0 / (num_dims + 4))
        else:
            scale = check_numbers("bandwidth", bandwidth).detach().to(samples.device, torch.double)
            if scale.shape not in ((), (1,), (num_dims,)):
                raise BotorchTensorDimensionError(
                    f"`bandwidth` must have {num_dims} elements, got {tuple(scale.shape)}."
                )
            if not (check_finite("bandwidth", scale) > 0).all():
                raise InputDataError("`bandwidth` must be positive.")

        def draws(uniform: Tensor) -> Tensor:
            uniform = uniform.to(samples.device)
            sample = samples.double()[(uniform[:, 0] * len(samples)).long()]
            moved = sample + scale * torch.special.ndtri(uniform[:, 1:]) - low.double()
            # Reflection at both faces is periodic, with a period of twice the width, so draws at
            # any distance from the box are reflected in one step.
            width = (high - low).double()
            phase = torch.remainder(moved, 2 * width)
            inside = torch.minimum(phase, 2 * width - phase).clamp(min=0.0)
            return (low.double() + inside).to(samples)

        return cls.from_icdf(draws, num_points, num_dims + 1, seed)

    @classmethod
    def from_icdf(
        cls, icdf: Callable[[Tensor], Tensor], num_points: int, dim: int, seed: int = 0
    ) -> ContextDistribution:
        """Return the distribution of quasi-random draws, made by an inverse distribution function.

        Args:
            icdf: The inverse distribution function. It maps ``num_points x dim`` numbers in (0, 1),
                float64, to contexts ``num_points x d_c``.
            num_points: Number of draws from a Sobol sequence, which is most even for powers of 2.
            dim: Number of uniform coordinates.
            seed: Seed of the draws.

        Example:
            >>> icdf = torch.distributions.Normal(0.5, 0.2).icdf
            >>> contexts = ContextDistribution.from_icdf(lambda p: icdf(p).clamp(0, 1), 128, dim=2)
        """
        num_points, dim = check_count("num_points", num_points), check_count("dim", dim)
        draws = SobolEngine(dim, scramble=True, seed=seed).draw(num_points, dtype=torch.double)
        edge = 0.5**32  # a draw is 0 or at least 2^-30, and the normal quantile at 0 is infinite
        points = icdf(draws.clamp(edge, 1 - edge))
        points = check_finite("icdf", check_tensor("icdf", points))
        if points.dim() != 2 or len(points) != num_points:
            raise BotorchTensorDimensionError(
                f"`icdf` must return {num_points} x d_c contexts, got {tuple(points.shape)}."
            )
        return cls.empirical(points)

    def with_candidates(self, points: Tensor) -> ContextDistribution:
        """Return the distribution with additional atoms ``points``, ``m x d_c``, of weight 0.

        Use this to let ambiguity sets move mass to new points, such as a grid: the exact
        Wasserstein ball moves mass only between atoms. Points that are atoms already, and repeated
        points, are left out.
        """
        added = check_inputs("points", points, self.points.shape[-1]).detach().to(self.points)
        joined = torch.cat([self.points, added])
        first = first_appearances(joined)
        places = torch.arange(len(joined), device=joined.device)
        is_new = (first == places) & (places >= self.num_points)
        if not is_new.any():
            return self
        points = torch.cat([self.points, joined[is_new]])
        weights = torch.cat([self.weights, self.weights.new_zeros(len(points) - self.num_points)])
        return replace(self, points=points, weights=weights)

    def with_indices(self, indices: Sequence[int] | None) -> ContextDistribution:
        """A copy with the given `indices`."""
        return replace(self, indices=indices)

    def with_lipschitz_points(self, points: Tensor | None) -> ContextDistribution:
        """A copy with the given `lipschitz_points`. Denser points miss less of the largest norm."""
        return replace(self, lipschitz_points=points)

    @property
    def num_points(self) -> int:
        """Number of atoms ``M``."""
        return len(self.points)

    @property
    def mean(self) -> Tensor:
        """Means ``d_c`` of the coordinates."""
        return self.weights @ self.points

    @property
    def std(self) -> Tensor:
        """Standard deviations ``d_c`` of the coordinates."""
        return (self.weights @ (self.points - self.mean).square()).sqrt()

    def expectation(self, values: Tensor) -> Tensor:
        """Expectation of a function, from its values ``... x M`` at the atoms."""
        return values @ self.weights.to(values)

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ContextDistribution:
        """A copy in another dtype or on another device; ``self`` if nothing changes."""
        like = self.points.new_empty(0).to(device=device, dtype=dtype)
        if like.dtype == self.points.dtype and like.device == self.points.device:
            return self
        return self.memo(
            (like.dtype, like.device),
            lambda: replace(self, points=self.points.to(like), weights=self.weights.to(like)),
        )

    def memo(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return ``compute()``, cached by ``key``; the result must depend on ``self`` only."""
        if key not in self._memo:
            with torch.no_grad():
                self._memo[key] = compute()
        found: T = self._memo[key]
        return found

    def support(self) -> Tensor:
        """Indices of the atoms of positive weight."""
        return self.memo("support", lambda: self.weights.nonzero().squeeze(-1))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memo": {}}


def check_weights(weights: Tensor, num_points: int) -> Tensor:
    """Return ``weights``, detached, if they are ``num_points`` finite nonnegative numbers."""
    if check_tensor("weights", weights).shape != (num_points,):
        raise BotorchTensorDimensionError(
            f"`weights` must have shape {num_points}, got {tuple(weights.shape)}."
        )
    if (check_finite("weights", weights) < 0).any():
        raise InputDataError("`weights` must not be negative.")
    return weights.detach()


def as_distribution(contexts: ContextDistribution | Tensor) -> ContextDistribution:
    """Return a distribution unchanged, or the empirical distribution of contexts ``n x d_c``."""
    if isinstance(contexts, ContextDistribution):
        return contexts
    return ContextDistribution.empirical(check_contexts("contexts", contexts))


def check_contexts(name: str, contexts: Tensor) -> Tensor:
    """Return ``contexts`` if they are a nonempty, finite floating-point matrix ``n x d_c``."""
    if not check_inputs(name, contexts).dtype.is_floating_point:
        raise InputDataError(f"`{name}` must be floating-point, got {contexts.dtype}.")
    if contexts.numel() == 0:
        raise InputDataError(f"`{name}` is empty: its shape is {tuple(contexts.shape)}.")
    return contexts


def pairwise_distances(A: Tensor, B: Tensor) -> Tensor:
    """Euclidean distances ``a x b`` between the rows of ``A``, ``a x d``, and ``B``, ``b x d``.

    They are computed from differences of rows. The faster formula ``|a|^2 - 2 a'b + |b|^2`` loses
    half of the digits for close rows, which matter most for kernels and transport costs.
    """
    return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist")

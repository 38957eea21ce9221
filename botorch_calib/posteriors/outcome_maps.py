"""`OutcomeMap`: an increasing map from a model's targets (latent values) to outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class OutcomeMap(ABC):
    """An increasing map from latent values to outcomes, with its inverse, at each point of a batch.

    For a model with an outcome transform, the map inverts the transform. For a predictive
    distribution with the cdf ``F``, latent values are normal scores ``z``, and the map is
    ``F^-1(Phi(z))``. Tensors have at least two dimensions, and broadcast against ``batch_shape x q
    x 1``.
    """

    @abstractmethod
    def outcome(self, latent: Tensor) -> Tensor:
        """Return the outcomes at the given latent values.

        They are broadcast to the map's batch shape, and differentiable in ``latent``.
        """

    @abstractmethod
    def latent(self, outcome: Tensor) -> Tensor:
        """Return latent values, ``-inf`` below the range of outcomes and ``inf`` above it."""

    def kinks(self, ref: Tensor) -> Tensor | None:
        """Return the sorted latent values at which the map is not smooth, ``num x ...``, or None.

        Quadrature panels end at the returned values, which have the precision and the device of
        ``ref``. None stands for a smooth map.
        """
        return None

    def affine(self, weight: float, offset: float) -> OutcomeMap:
        """Return the map from ``sign(weight) latent`` to ``weight outcome + offset``."""
        return _AffineAfter(self, weight, offset)


@dataclass(frozen=True, eq=False)
class Affine(OutcomeMap):
    """The map from latent values ``t`` to ``offset + weight t``; the identity by default."""

    # Numbers, or tensors that broadcast against ``batch_shape x q x 1``
    weight: Tensor | float = 1.0  # positive
    offset: Tensor | float = 0.0

    @property
    def _is_identity(self) -> bool:
        # Only numbers are compared, since comparing tensors would synchronize with the device.
        return isinstance(self.weight, float) and (self.weight, self.offset) == (1.0, 0.0)

    def outcome(self, latent: Tensor) -> Tensor:
        return latent if self._is_identity else self.offset + self.weight * latent

    def latent(self, outcome: Tensor) -> Tensor:
        return outcome if self._is_identity else (outcome - self.offset) / self.weight

    def scaled(self, size: Tensor, power: int = 1) -> Tensor:
        """Convert deviations (``power=1``), variances (2) or densities (-1) to outcome units."""
        return size if self._is_identity else size * self.weight**power

    def affine(self, weight: float, offset: float) -> Affine:
        return Affine(abs(weight) * self.weight, offset + weight * self.offset)


class _AffineAfter(OutcomeMap):
    def __init__(self, base: OutcomeMap, weight: float, offset: float) -> None:
        self._base, self._weight, self._offset = base, weight, offset
        self._sign = 1.0 if weight > 0.0 else -1.0

    def outcome(self, latent: Tensor) -> Tensor:
        return self._weight * self._base.outcome(self._sign * latent) + self._offset

    def kinks(self, ref: Tensor) -> Tensor | None:
        kinks = self._base.kinks(ref)
        return kinks if kinks is None or self._sign > 0.0 else -kinks.flip(0)

    def latent(self, outcome: Tensor) -> Tensor:
        return self._sign * self._base.latent((outcome - self._offset) / self._weight)

"""Recognise observations that a model's data already contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from gpytorch.models import ExactGP
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.exceptions import warn
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import raw_train_inputs

#: `SIX_DIGITS` is the largest relative error of rounding to six digits. Differences above the
#: fraction `MOST_OF_RANGE` of the data's range are not rounding errors, even for large numbers.
SIX_DIGITS, MOST_OF_RANGE = 5.1e-6, 1e-3


class KnownData:
    """Observations at points ``n x d`` with values ``n x 1``; each can be matched once."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        self.values: dict[tuple[float, ...], list[float]] = defaultdict(list)
        for point, y in zip(X.tolist(), Y.flatten().tolist(), strict=True):
            self.values[tuple(point)].append(y)
        # A model's outcomes have rounding errors of the outcome transform and its inverse.
        self.rounding = 16.0 * torch.finfo(Y.dtype).eps * (float(Y.abs().max()) if len(Y) else 0.0)
        self._range = float(Y.max() - Y.min()) if len(Y) else 0.0

    def rounding_of(self, y: float) -> float:
        """Return the largest difference that counts as an error of rounding ``y`` to six digits."""
        return max(self.rounding, min(SIX_DIGITS * abs(y), MOST_OF_RANGE * self._range))

    def take(
        self, point: Sequence[float], y: float | None, rounded: bool = False, side: int = 0
    ) -> bool:
        """Remove the last observation of ``point`` with the value ``y``; return whether it existed.

        With ``y=None`` any value matches. With ``rounded`` a point and a value that agree to six
        digits match, too. If the outcome is known only to be above ``y`` (``side=1``) or below
        ``y`` (``side=-1``), any value on that side matches, as it may be a stand-in.
        """
        own = self.values.get(tuple(point), [])
        if self._take_of(own, y, self.rounding, side):
            return True
        if not rounded or y is None or not self.values:
            return False
        near = [own, *(self.values[other] for other in self._near(point))]
        limits = self.rounding, self.rounding_of(y)
        return any(self._take_of(ys, y, limit, side) for limit in limits for ys in near)

    def take_all(
        self,
        observations: Iterable[tuple[Sequence[float], float | None, int]],
        rounded: bool = False,
    ) -> list[bool]:
        """Call `take` for each point, value and side; return, in the given order, which existed.

        Exact values are matched first, then bounds, which match any value beyond them, and last
        None, which matches any value.
        """
        listed = [*enumerate(observations)]
        listed.sort(key=lambda each: (each[1][1] is None, each[1][2] != 0))
        found = {i: self.take(point, y, rounded, side) for i, (point, y, side) in listed}
        return [found[i] for i in range(len(listed))]

    @staticmethod
    def _take_of(own: list[float], y: float | None, rounding: float, side: int) -> bool:
        for i in reversed(range(len(own))):
            off = 0.0 if y is None else own[i] - y
            if abs(off) <= rounding or side * off > 0.0:
                del own[i]
                return True
        return False

    @cached_property
    def _known(self) -> tuple[list[tuple[float, ...]], NDArray[np.float64]]:
        """All points, as a list of the dictionary's keys and as a matrix."""
        return [*self.values], np.array([*self.values], dtype=np.float64)

    def _near(self, point: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the points of the data that agree with ``point`` to six digits."""
        points, table = self._known
        if len(point) != table.shape[-1]:
            return []
        at = np.asarray(point, dtype=np.float64)
        limit = SIX_DIGITS * np.maximum(np.abs(table), np.abs(at))
        return [points[j] for j in np.flatnonzero((np.abs(table - at) <= limit).all(axis=-1))]


@torch.no_grad()
def train_data(process: object) -> tuple[Tensor, Tensor]:
    """Inputs ``n x d`` and outcomes ``n x 1`` of an exact process; empty for other processes."""
    inputs = raw_train_inputs(process)
    if inputs is None or not isinstance(process, ExactGP):
        return torch.zeros(0, 0), torch.zeros(0, 1)
    Y = raw_train_targets(process)
    return inputs[(0,) * (inputs.dim() - 2)], Y[(0,) * (Y.dim() - 2)]


def without_known(
    process: object, X: Tensor, Y: Tensor, Yvar: Tensor | None, sides: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the observations that a process's data do not contain yet.

    Each row of the data matches at most one observation. ``sides``, ``n x 1``, are 1 or -1 for
    outcomes that are known only to be above or below ``Y``; the data contain stand-ins for them.

    Warns:
        CalibrationWarning: If observations are removed.
    """
    known = KnownData(*train_data(process))
    signs = [0] * len(X) if sides is None else [*map(int, sides.flatten().tolist())]
    found = known.take_all(zip(X.tolist(), Y.flatten().tolist(), signs, strict=True))
    is_new = ~torch.tensor(found, dtype=torch.bool)
    if not is_new.all():
        warn(
            f"{int((~is_new).sum())} of {len(X)} observations, points and values, are among the "
            "data of the model already and are left out: it would score them with hindsight, and "
            "count them twice. Call `observe` with new observations only, then refit, then "
            "`with_model`. Include repeated measurements with equal values in the next fit."
        )
    is_new = is_new.to(X.device)
    Yvar, sides = (None if each is None else each[is_new] for each in (Yvar, sides))
    return X[is_new], Y[is_new], Yvar, sides

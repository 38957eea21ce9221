"""The data of a model, to recognise observations that are given a second time."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import raw_train_inputs


class KnownData:
    """Observations ``n x d`` and ``n x 1``, of which each is found once."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        self.values: dict[tuple[float, ...], list[float]] = defaultdict(list)
        for point, y in zip(X.tolist(), Y.flatten().tolist(), strict=True):
            self.values[tuple(point)].append(y)
        # Outcomes of a model have been transformed and back.
        self.rounding = 16.0 * torch.finfo(Y.dtype).eps * (float(Y.abs().max()) if len(Y) else 0.0)

    def take(self, point: Sequence[float], y: float | None, rounded: bool = False) -> bool:
        """Remove the last observation of a point with the value ``y``; say whether there was one.

        With ``y=None`` any value will do, and with ``rounded`` a point that is equal to six digits.
        """
        groups = [self.values.get(tuple(point), [])]
        if rounded and y is not None:
            six_digits = partial(math.isclose, rel_tol=5.1e-6)
            known = self.values.items()
            groups += [ys for other, ys in known if ys and all(map(six_digits, other, point))]
        for own in groups:
            for i in reversed(range(len(own))):
                if y is None or abs(own[i] - y) <= self.rounding:
                    del own[i]
                    return True
        return False


@torch.no_grad()
def train_data(process: Any) -> tuple[Tensor, Tensor]:
    """Inputs ``n x d`` and outcomes ``n x 1`` of an exact process; none of any other."""
    inputs = raw_train_inputs(process)
    if inputs is None or not isinstance(process, ExactGP):
        return torch.zeros(0, 0), torch.zeros(0, 1)
    Y = raw_train_targets(process)
    return inputs[(0,) * (inputs.dim() - 2)], Y[(0,) * (Y.dim() - 2)]


def without_known(
    process: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Observations without those that are among the data of a process, each of these once.

    Warns:
        CalibrationWarning: If there are such observations.
    """
    known, told = (
        KnownData(*train_data(process)),
        zip(X.tolist(), Y.flatten().tolist(), strict=True),
    )
    is_new = torch.tensor([not known.take(*each) for each in told], dtype=torch.bool)
    if not is_new.all():
        warnings.warn(
            f"{int((~is_new).sum())} of {len(X)} observations, points and values, are among the "
            "data of the model already and are left out: it would score them with hindsight, and "
            "count them twice. Call `observe` with new ones alone, then refit, then `with_model`. "
            "What was measured again, with an equal value, may join the data of the next fit.",
            CalibrationWarning,
            stacklevel=level_of_caller(),
        )
    is_new = is_new.to(X.device)
    return X[is_new], Y[is_new], None if Yvar is None else Yvar[is_new]

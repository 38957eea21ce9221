r"""`ProbabilityCalibrator`: stated probabilities of an event, corrected online.

A model states the probability ``s`` of an outcome ``b``, 1 or 0. The correction is piecewise linear
in ``s``, ``p = sum_j phi_j(s) c_j``, with hat functions ``phi_j`` about ``M`` equidistant
probabilities. After each outcome it descends the squared error: ``c_j += eta phi_j(s) (b - p)``.

**Guarantee.** About each of these probabilities forecasts have no bias in the long run, for *any*
sequence of stated probabilities and outcomes. Summing the steps,

    ``|sum_t phi_j(s_t) (b_t - p_t)| = |c_j - initial c_j| / eta``,

and ``|c - 1/2|^2 <= |initial c - 1/2|^2 + T (eta / 8 + eta^2 / 4)``: with ``y = p - 1/2`` and
``b - p = +-1/2 - y`` a step adds at most ``2 eta (b - p) y + eta^2 (b - p)^2``, the greatest of
which is at ``y = +-(1 - eta) / (4 - 2 eta)``. So the sum is of the order ``sqrt(T / eta)``, little
beside ``T``.
"""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_count, check_open_unit, check_unit_interval


class ProbabilityCalibrator(Module):
    """Keeps stated probabilities of an event calibrated about each of a few probabilities.

    Args:
        num_values: ``M``, the number of these probabilities, from 0 to 1; at least 2.
        step_size: ``eta``, in (0, 1).

    Example:
        >>> calibrator = ProbabilityCalibrator()
        >>> stated, happened = torch.full((30,), 0.8), torch.rand(30) < 0.5
        >>> before = calibrator.update(stated, happened)
        >>> now = calibrator(torch.tensor([0.8]))
    """

    values: Tensor
    num_updates: Tensor

    def __init__(self, num_values: int = 6, step_size: float = 0.1) -> None:
        super().__init__()
        self.num_values = check_count("num_values", num_values, least=2)
        self.step_size = check_open_unit("step_size", step_size)
        initial = torch.linspace(0.0, 1.0, num_values, dtype=torch.double)
        self.register_buffer("values", initial)
        self.register_buffer("num_updates", torch.tensor(0))

    def forward(self, stated: Tensor) -> Tensor:
        """Calibrated probabilities of stated ones, of any shape; differentiable."""
        left, hats = self._hats(stated)
        linear = hats[..., 0] * self.values[left] + hats[..., 1] * self.values[left + 1]
        return linear.clamp(0.0, 1.0).to(stated)

    def _hats(self, stated: Tensor) -> tuple[Tensor, Tensor]:
        """The number of the hat left of each ``s``, and the values of this and the next one."""
        place = stated.to(self.values) * (self.num_values - 1)
        left = place.detach().floor().long().clamp(0, self.num_values - 2)
        share = place - left
        return left, torch.stack([1.0 - share, share], dim=-1)

    @torch.no_grad()
    def update(self, stated: Tensor, happened: Tensor) -> Tensor:
        """Learn from outcomes, in order.

        Args:
            stated: Probabilities that the model stated, ``n``.
            happened: 1 where the event happened, else 0, ``n``.

        Returns:
            The forecasts ``p_t`` as they were before each outcome, ``n``, not clamped.
        """
        if stated.dim() != 1 or stated.shape != happened.shape:
            raise BotorchTensorDimensionError(
                "`stated` and `happened` must be vectors of equal length, got "
                f"{tuple(stated.shape)} and {tuple(happened.shape)}."
            )
        check_unit_interval("stated", stated)
        outcomes = check_unit_interval("happened", happened.to(self.values))
        forecasts, values = [], self.values.clone()
        for left, hats, b in zip(*self._hats(stated), outcomes, strict=True):
            around = values[left : left + 2]
            forecast = hats @ around
            around += self.step_size * (b - forecast) * hats
            forecasts.append(forecast)
        self.values = values
        self.num_updates += len(stated)
        return torch.stack(forecasts) if forecasts else outcomes

    def bias_bound(self, num_steps: int) -> float:
        """Largest ``|sum_t phi_j(s_t) (b_t - p_t)|`` of the first ``T`` outcomes, for each ``j``.

        The forecasts ``p_t`` are those that `update` returns.
        """
        count = check_count("num_steps", num_steps)
        start = float((torch.linspace(0.0, 1.0, self.num_values) - 0.5).square().sum())
        growth = count * (self.step_size / 8.0 + self.step_size**2 / 4.0)
        return ((start + growth) ** 0.5 + 0.5) / self.step_size

    def extra_repr(self) -> str:
        return f"num_values={self.num_values}, step_size={self.step_size:g}"

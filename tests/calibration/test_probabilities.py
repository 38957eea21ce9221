"""Calibrated probabilities of events: the bound for any sequence, what is learned, errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.calibration import ProbabilityCalibrator
from tests.random_numbers import uniform

NUM = 600

# Stated probability and outcome, from a random number in [0, 1), the forecast and the step
SEQUENCES: dict[str, Callable[[float, Callable[[float], float], int], tuple[float, float]]] = {
    "against the forecast": lambda u, p, t: (u, float(p(u) < 0.5)),
    "against it, at the ends": lambda u, p, t: (round(u), float(p(round(u)) < 0.5)),
    "beside the centers": lambda u, p, t: (0.19 if t % 2 else 0.21, float(p(0.2) < 0.9)),
    "always": lambda u, p, t: (u, 1.0),
    "blocks": lambda u, p, t: (u, float((t // 80) % 2)),
}


def hats(stated: Tensor, num: int) -> Tensor:
    """Each probability's distance from the centers, by interpolation of unit vectors."""
    centers = torch.linspace(0.0, 1.0, num, dtype=torch.double)
    return (1.0 - (stated.unsqueeze(-1) - centers).abs() * (num - 1)).clamp(min=0.0)


@pytest.mark.parametrize("step_size", [0.05, 0.5])
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_bound_holds_for_any_sequence(name: str, step_size: float) -> None:
    calibrator = ProbabilityCalibrator(6, step_size)
    numbers = uniform(NUM, generator=torch.Generator().manual_seed(3)).tolist()
    stated, outcomes, forecasts = [], [], []

    def forecast(s: float) -> float:
        return float(hats(torch.tensor(s).double(), 6) @ calibrator.values)

    for t, u in enumerate(numbers):
        s, b = SEQUENCES[name](u, forecast, t)
        before = torch.tensor([s, b], dtype=torch.double)
        forecasts.append(calibrator.update(before[:1], before[1:]))
        stated.append(s)
        outcomes.append(b)
    errors = torch.tensor(outcomes).double() - torch.cat(forecasts)
    biases = (hats(torch.tensor(stated).double(), 6) * errors.unsqueeze(-1)).cumsum(dim=0)
    bounds = torch.tensor([calibrator.bias_bound(t + 1) for t in range(NUM)]).double()
    assert (biases.abs() <= bounds.unsqueeze(-1)).all()


def test_the_bound_in_numbers() -> None:
    """``((1/2 + T (1/16 + 1/16))^1/2 + 1/2) / eta`` with three values and steps of a half."""
    calibrator = ProbabilityCalibrator(3, 0.5)
    assert [calibrator.bias_bound(num) for num in (4, 14)] == pytest.approx([3.0, 4.0], rel=1e-6)


def test_a_classifier_that_is_too_sure() -> None:
    """Of 4000 outcomes each hat function sees 400 at least: four standard errors are 0.1."""
    generator = torch.Generator().manual_seed(0)
    stated, dice = (uniform(4000, generator=generator) for _ in range(2))
    truth = 0.3 + 0.4 * stated  # it says 0 and 1 where 0.3 and 0.7 are right
    calibrator = ProbabilityCalibrator(6, 0.02)
    calibrator.update(stated, (dice < truth).double())
    grid = torch.linspace(0.0, 1.0, 11, dtype=torch.double)
    assert (calibrator(grid) - (0.3 + 0.4 * grid)).abs().max() < 0.1
    assert calibrator.num_updates == 4000


def test_it_starts_from_what_is_stated_and_has_gradients() -> None:
    calibrator = ProbabilityCalibrator()
    stated = torch.tensor([[0.0, 0.13], [0.5, 1.0]], dtype=torch.double)
    assert_close(calibrator(stated), stated)
    calibrator.update(torch.full((20,), 0.5).double(), torch.zeros(20).double())
    inner = torch.tensor([0.13, 0.47], dtype=torch.double, requires_grad=True)
    assert gradcheck(calibrator, (inner,))
    assert calibrator(stated.float()).dtype == torch.float


def test_several_outcomes_at_once_are_those_one_by_one() -> None:
    stated = uniform(9, generator=torch.Generator().manual_seed(1))
    happened = (stated > 0.4).double()
    together, alone = ProbabilityCalibrator(), ProbabilityCalibrator()
    forecasts = together.update(stated, happened)
    each = [alone.update(s.view(1), b.view(1)) for s, b in zip(stated, happened, strict=True)]
    assert_close(forecasts, torch.cat(each))
    twin = ProbabilityCalibrator()
    twin.load_state_dict(together.state_dict())
    assert_close(twin(stated), alone(stated))


def test_errors() -> None:
    calibrator, half = ProbabilityCalibrator(), torch.full((2,), 0.5).double()
    for settings in ({"num_values": 1}, {"step_size": 1.0}):
        with pytest.raises(InputDataError, match=next(iter(settings))):
            ProbabilityCalibrator(**settings)
    with pytest.raises(InputDataError, match="stated"):
        calibrator.update(2 * half + 0.5, half)
    with pytest.raises(InputDataError, match="happened"):
        calibrator.update(half, half - 1.0)
    with pytest.raises(BotorchTensorDimensionError, match="equal length"):
        calibrator.update(half, half[:1])
    assert calibrator.num_updates == 0

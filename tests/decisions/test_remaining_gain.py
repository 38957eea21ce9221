"""What may be gained over the point at hand, against draws on a dense grid."""

import math

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from scipy.stats import binom, ks_2samp
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.decisions import RemainingGain, remaining_gain

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.double)
GRID = torch.linspace(0.0, 1.0, 301, dtype=torch.double).unsqueeze(-1)


def process(noise: float = 0.04) -> SingleTaskGP:
    torch.manual_seed(0)
    X = torch.rand(12, 1, dtype=torch.double)
    Y = torch.sin(7.0 * X) + noise**0.5 * torch.randn_like(X)
    Y = (Y - Y.mean()) / Y.std()
    gp = SingleTaskGP(X, Y, torch.full_like(Y, noise), outcome_transform=None)
    gp.covar_module.lengthscale = 0.2
    return gp.eval()


def gains_on_grid(model: object, candidate: Tensor, sign: float, num: int = 2000) -> Tensor:
    """The oracle: joint samples at the candidate and on the grid."""
    X = torch.cat([candidate, GRID])
    torch.manual_seed(1)
    with torch.no_grad():
        f = sign * model.posterior(X).rsample(torch.Size([num])).squeeze(-1)  # type: ignore[attr-defined]
    return (f.amax(dim=-1) - f[:, 0]).clamp_min(0.0)


@pytest.mark.filterwarnings("ignore:A not p.d.")  # of the oracle's grid
@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("calibrated", [True, False])
def test_gains_have_the_distribution_of_joint_samples(calibrated: bool, maximize: bool) -> None:
    gp = process()
    model = CalibratedModel.from_history(gp, LocalizedConformal(0.2)) if calibrated else gp
    found = remaining_gain(model, BOUNDS, num_paths=300, maximize=maximize)
    expected = gains_on_grid(model, found.candidate, 1.0 if maximize else -1.0)
    # Two true samples of 300 and 2000: p below 1e-3 in one of a thousand seeds.
    assert ks_2samp(found.gains.numpy(), expected.numpy()).pvalue > 1e-3
    assert (found.gains.diff() >= 0.0).all() and (found.gains >= 0.0).all()


def test_choices_are_the_whole_domain() -> None:
    gp, choices = process(), GRID[::30]
    found = remaining_gain(gp, choices=choices, num_paths=200)
    assert any(torch.equal(found.candidate[0], x) for x in choices)
    alone = remaining_gain(gp, choices=found.candidate, candidate=found.candidate, num_paths=200)
    assert alone.gains.abs().max() == 0.0


def test_bound_exceeds_the_quantile_as_often_as_it_says() -> None:
    """By the binomial distribution, and by brute force over draws of known quantile."""
    torch.manual_seed(0)
    draws = torch.rand(4000, 128, dtype=torch.double).sort(dim=-1).values
    held = [RemainingGain(GRID[:1], row).bound(0.1) >= 0.9 for row in draws]
    # 95 % or more, with four standard errors of 4000 draws: 1.4 points.
    assert 0.95 - 0.014 <= sum(held) / len(held)
    rank = int((draws[0] <= RemainingGain(GRID[:1], draws[0]).bound(0.1)).sum())
    assert binom.cdf(rank - 1, 128, 0.9) >= 0.95 > binom.cdf(rank - 2, 128, 0.9)


def test_too_few_draws_bound_nothing() -> None:
    assert math.isinf(RemainingGain(GRID[:1], torch.zeros(20, dtype=torch.double)).bound(0.05))
    # 0.95^59 < 5 %: the greatest of 59 draws is above the quantile at 95 % with that confidence.
    assert RemainingGain(GRID[:1], torch.zeros(59, dtype=torch.double)).bound(0.05) == 0.0


def test_the_bound_falls_with_the_data() -> None:
    few, many = process(0.04), process(1e-4)
    assert remaining_gain(many, BOUNDS).bound() < 0.5 * remaining_gain(few, BOUNDS).bound()


def test_the_same_seed_gives_the_same_gains_and_leaves_the_generator() -> None:
    gp = process()
    state = torch.get_rng_state()
    first, again = (remaining_gain(gp, BOUNDS, num_paths=20, seed=3) for _ in range(2))
    assert torch.equal(first.gains, again.gains)
    assert torch.equal(torch.get_rng_state(), state)


def test_arguments() -> None:
    gp = process()
    with pytest.raises(BotorchTensorDimensionError, match="`candidate` must have shape 1 x d"):
        remaining_gain(gp, BOUNDS, candidate=GRID)
    with pytest.raises(InputDataError, match="`num_paths`"):
        remaining_gain(gp, BOUNDS, num_paths=0)
    with pytest.raises(InputDataError, match="`delta`"):
        remaining_gain(gp, choices=GRID[:3], num_paths=2).bound(0.0)
    for candidate in (None, GRID[:1]):
        with pytest.raises(InputDataError, match="`choices` excludes `bounds`"):
            remaining_gain(gp, BOUNDS, choices=GRID, candidate=candidate)
    with pytest.raises(InputDataError, match="`candidate` must be a tensor"):
        remaining_gain(gp, BOUNDS, candidate=[0.5])  # type: ignore[arg-type]
    with pytest.raises(BotorchTensorDimensionError, match="`candidate` must have 1 columns"):
        remaining_gain(gp, BOUNDS, candidate=BOUNDS.mT)
    several = SaasFullyBayesianSingleTaskGP(GRID[:3], torch.tensor([[-1.0], [0.0], [1.0]]).double())
    with pytest.raises(UnsupportedError, match="several members"):
        remaining_gain(several, BOUNDS)

"""What may be gained over the point at hand, against draws on a dense grid."""

import math
import warnings

import pytest
import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Log, Standardize
from botorch.models.transforms.input import InputPerturbation
from botorch.settings import validate_input_scaling
from scipy.stats import binom, ks_2samp
from torch import Tensor

from botorch_calib import CalibratedModel, LocalizedConformal
from botorch_calib.decisions import RemainingGain, remaining_gain
from botorch_calib.decisions.remaining_gain import _gains_in_box, check_paths
from botorch_calib.models import CensoredDelayModel

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
@pytest.mark.parametrize(("calibrated", "maximize"), [(True, False), (False, True)])
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
    """By the binomial distribution of the number of draws below the quantile."""
    draws = torch.rand(128, dtype=torch.double).sort().values
    rank = int((draws <= RemainingGain(GRID[:1], draws).bound(0.1)).sum())
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


def test_pending_points_state_nothing() -> None:
    """A value that is made up would make the model too sure."""
    gp, pending = process(), torch.tensor([[0.05], [0.5]], dtype=torch.double)
    delayed = CensoredDelayModel(gp, pending, imputation="hallucinate")
    expected = remaining_gain(gp, BOUNDS, num_paths=20)
    assert torch.equal(remaining_gain(delayed, BOUNDS, num_paths=20).gains, expected.gains)


def test_units_of_the_outcome() -> None:
    """Gains of scaled data are scaled; those of a model of logarithms are in units of the data."""
    gp = process()
    X, Y = gp.train_inputs[0], gp.train_targets.unsqueeze(-1)
    one, ten = (
        SingleTaskGP(X, c * Y, torch.full_like(Y, 0.04 * c**2), outcome_transform=Standardize(1))
        for c in (1.0, 10.0)
    )
    gains = [remaining_gain(each.eval(), BOUNDS, num_paths=20).gains for each in (one, ten)]
    torch.testing.assert_close(10.0 * gains[0], gains[1], rtol=1e-4, atol=1e-4)
    logs = SingleTaskGP(X, Y.exp(), torch.full_like(Y, 1e-4), outcome_transform=Log()).eval()
    found = remaining_gain(logs, BOUNDS, candidate=X[:1], num_paths=20)
    # Nearly interpolated: the gain of the best datum is reached by all draws.
    assert (found.gains > 0.9 * (Y.exp().max() - Y[0].exp())).all()


def test_single_precision_and_held_features() -> None:
    X = torch.rand(15, 2, generator=torch.Generator().manual_seed(0))
    Y = (X[:, :1] - 0.5).square() + X[:, 1:]
    gp = SingleTaskGP(X, Y, torch.full_like(Y, 1e-3)).eval()
    held = torch.tensor([[0.0, 0.3], [1.0, 0.3]])
    found = remaining_gain(gp, held, num_paths=30, maximize=False)
    assert found.gains.dtype == torch.float32 and found.candidate[0, 1] == held[0, 1]
    free = remaining_gain(gp, torch.tensor([[0.0, 0.0], [1.0, 1.0]]), None, found.candidate, 30)
    assert free.bound(0.1) > found.bound(0.1)  # as the other feature may now be moved
    with pytest.raises(InputDataError, match="`bounds` must have the precision of the model"):
        remaining_gain(gp, held.double())


def test_a_maximum_beside_the_candidate_is_found_in_six_dimensions() -> None:
    """Points all over the box miss a narrow peak; the gain there is known from its data."""
    torch.manual_seed(0)
    peak = torch.full((1, 6), 0.4, dtype=torch.double)
    X = torch.cat([peak + 0.05 * torch.randn(40, 6).double(), torch.rand(20, 6).double()])
    Y = 5.0 * torch.exp(-(X - peak).square().sum(dim=-1, keepdim=True) / 0.05)
    with validate_input_scaling(False):
        gp = SingleTaskGP(X, Y, torch.full_like(Y, 1e-6), outcome_transform=None)
    gp.covar_module.lengthscale = 0.4
    worst = X[:40][Y[:40].argmin()].unsqueeze(0)
    found = remaining_gain(gp.eval(), BOUNDS.expand(2, 6), candidate=worst, num_paths=20)
    assert (found.gains > Y.max() - Y[:40].min() - 0.01).all()


def test_warnings_of_functions_that_are_drawn_are_passed_on() -> None:
    def path(X: Tensor) -> Tensor:
        if X.requires_grad:
            warnings.warn("of a function", UserWarning, stacklevel=1)
        return -(X - 0.3).square().sum(dim=-1).expand(2, -1)

    with pytest.warns(UserWarning, match="of a function"):
        _gains_in_box(process(), path, BOUNDS, torch.ones(1, 1, dtype=torch.double), 1.0)


def test_models_without_paths_have_gains_among_choices() -> None:
    gp = process()
    X, Y = gp.train_inputs[0].repeat(1, 2), gp.train_targets.unsqueeze(-1)
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval()
    choices = torch.rand(50, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    found = remaining_gain(ensemble, choices=choices, num_paths=30)
    assert len(found.gains) == 90 and (found.gains >= 0.0).all()
    with pytest.raises(UnsupportedError, match="give `choices`"):
        remaining_gain(ensemble, BOUNDS.expand(2, 2))


def test_models_of_several_values_are_refused() -> None:
    gp = process()
    X, Y = gp.train_inputs[0], gp.train_targets.unsqueeze(-1)
    perturbed = InputPerturbation(torch.zeros(3, 1, dtype=torch.double))
    for model in (SingleTaskGP(X, Y.repeat(1, 2)), SingleTaskGP(X, Y, input_transform=perturbed)):
        with pytest.raises(UnsupportedError, match="one value at each point"):
            remaining_gain(model.eval(), BOUNDS)
    batch = SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1)).eval()
    with pytest.raises(UnsupportedError, match="batch of models"):
        remaining_gain(batch, BOUNDS)


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.3])
def test_the_least_number_of_paths_is_that_of_a_finite_bound(delta: float) -> None:
    least = next(num for num in range(1, 400) if (1.0 - delta) ** num <= 0.05)
    assert check_paths(delta, least) == (delta, least)
    for num in (least - 1, least):
        bound = RemainingGain(torch.zeros(1, 1), torch.ones(num)).bound(delta)
        assert (bound == 1.0) == (num == least)
    with pytest.raises(InputDataError, match=f"at least {least} for"):
        check_paths(delta, least - 1)

"""`recommend`: the best safe point, and statements that survive its selection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.transforms import Bilog, Normalize, Standardize
from botorch.models.transforms.input import InputPerturbation
from botorch.posteriors import GPyTorchPosterior
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import ChanceConstraint, WorstCase
from botorch_calib.decisions import recommend
from botorch_calib.exceptions import NotCertifiedWarning
from tests.gps import make_multitask

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.double)
GRID = torch.linspace(0, 1, 41, dtype=torch.double).unsqueeze(-1)


def process(X: Tensor, Y: Tensor, noise: float = 0.1, lengthscale: float = 0.2) -> SingleTaskGP:
    """A Gaussian process with variance 1 and a mean of 0."""
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, lengthscale
    gp = SingleTaskGP(
        X,
        Y,
        torch.full_like(Y, noise**2),
        covar_module=kernel,
        mean_module=ConstantMean(),
        outcome_transform=None,
    )
    return gp.eval()


def rising(noise: float = 0.05, num: int = 15) -> SingleTaskGP:
    X = torch.linspace(0, 1, num, dtype=torch.double).unsqueeze(-1)
    return process(X, X - 0.5, noise)


pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")


@pytest.mark.parametrize("place", ["bounds", "choices"])
@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_mean_that_is_safe_as_a_statement_about_the_point(
    place: str, maximize: bool
) -> None:
    objective = rising() if maximize else process(GRID, 0.5 - GRID)
    limit = ChanceConstraint(rising(noise=0.1), upper=0.2)
    bounds, choices = (BOUNDS, None) if place == "bounds" else (None, GRID)
    found = recommend(objective, limit, bounds, choices, maximize=maximize)
    inside = GRID[limit.margin(GRID.unsqueeze(1), confidence=0.95) >= 0]
    assert found.certified and abs(found.candidate.item() - inside.max().item()) <= 1 / 40 + 1e-9
    assert limit.margin(found.candidate.unsqueeze(0), 0.95) >= 0
    assert GRID[limit.certified(GRID.unsqueeze(1))].max() > inside.max()
    mean = objective.posterior(found.candidate).mean.item()
    assert found.value == pytest.approx(mean, abs=0.02)
    assert found.lower < found.value < found.upper and found.better is None


@pytest.mark.parametrize("constrained", [True, False])
def test_discrete_columns_have_one_of_their_combinations(constrained: bool) -> None:
    X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    X[:, 1] = (3.0 * X[:, 1]).floor()
    low, wide = torch.zeros(2, dtype=torch.double), torch.tensor([1.0, 2.0]).double()
    # The objective and the outcome rise with both columns, so that 2 is safe nowhere.
    rising = process(X, (X[:, :1] + X[:, 1:]) / 3.0 - 0.5, noise=0.05, lengthscale=1.0)
    limit = ChanceConstraint(rising, upper=0.1) if constrained else None
    found = recommend(
        rising, limit, torch.stack([low, wide]), fixed_features_list=[{1: 0.0}, {1: 1.0}]
    )
    assert found.certified and found.candidate[0, 1] == 1.0
    assert found.lower < found.value < found.upper
    free = recommend(rising, limit, torch.stack([low, wide]))
    assert free.candidate[0, 1] not in (0.0, 1.0)


def test_without_a_safe_point_it_says_so() -> None:
    limit = ChanceConstraint(rising(), upper=-3.0)
    with pytest.warns(NotCertifiedWarning, match="confidence of 0.95.*even expected .* of 'y'"):
        assert not recommend(rising(), limit, BOUNDS).certified


def test_linear_constraints_on_the_inputs() -> None:
    X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    rising = process(X, X.sum(dim=-1, keepdim=True) / 2 - 0.5, noise=0.05, lengthscale=1.0)
    limit, bounds = ChanceConstraint(rising, upper=0.2), BOUNDS.expand(2, 2)
    columns, ones = torch.tensor([0, 1]), torch.ones(2, dtype=torch.double)
    at_most = recommend(rising, limit, bounds, inequality_constraints=[(columns, -ones, -0.7)])
    assert at_most.candidate.sum() == pytest.approx(0.7, abs=1e-4)
    assert at_most.candidate.sum() <= 0.7 + 1e-6
    equal = recommend(rising, limit, bounds, equality_constraints=[(columns, ones, 0.9)])
    assert equal.candidate.sum() == pytest.approx(0.9, abs=1e-6) and equal.certified
    assert equal.lower < equal.value < equal.upper  # where few samples meet the equation
    with pytest.raises(InputDataError, match="`choices` excludes"):
        recommend(rising, choices=X, inequality_constraints=[(columns, -ones, -0.7)])


@pytest.mark.parametrize("maximize", [True, False])
def test_it_notes_what_stands_in_the_way_of_better_points(maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0
    X = GRID[:5]  # both outcomes are known up to 0.1 alone
    objective = process(GRID, sign * (GRID - 0.5))
    limits = {"heat": (None, 5.0), "load": (None, 1.0)}
    outcomes = {"heat": process(X, 0 * X), "load": process(X, 0 * X, lengthscale=0.05)}
    found = recommend(
        objective, ChanceConstraint(outcomes, limits=limits), BOUNDS, maximize=maximize
    )
    assert found.certified and found.candidate < 0.5
    best = objective.posterior(GRID[-1:]).mean.item()
    assert found.note.startswith("Some points probably keep all limits")
    assert f"reach {best:.4g}, and the limits of 'load'" in found.note
    known = {name: process(GRID, 0 * GRID) for name in limits}
    assert not recommend(
        objective, ChanceConstraint(known, limits=limits), BOUNDS, maximize=maximize
    ).note
    assert not recommend(objective, bounds=BOUNDS, maximize=maximize).note


def test_without_constraints_it_is_the_best_mean() -> None:
    X = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    gp = process(X, -4 * (X - 0.4).square())
    found = recommend(gp, bounds=BOUNDS)
    means = gp.posterior(GRID).mean.flatten()
    assert found.candidate.item() == pytest.approx(GRID[means.argmax()].item(), abs=1 / 40)
    assert torch.equal(recommend(gp, choices=GRID).candidate[0], GRID[means.argmax()])
    assert found.certified


def test_of_a_single_choice_the_statements_are_the_plain_ones() -> None:
    """Nothing was selected, so there is nothing to correct for; 2000 draws."""
    gp = rising(noise=0.5, num=5)
    x, today = GRID[30:31], GRID[10:11]
    found = recommend(gp, choices=x, baseline=today)
    posterior = gp.posterior(torch.cat([x, today]))
    deviation = posterior.variance[0].sqrt().item()
    assert found.upper - found.value == pytest.approx(1.96 * deviation, rel=0.1)
    assert isinstance(posterior, GPyTorchPosterior)
    joint = posterior.distribution.covariance_matrix
    spread = (joint[0, 0] + joint[1, 1] - 2 * joint[0, 1]).sqrt()
    gain = posterior.mean[0] - posterior.mean[1]
    expected = torch.special.ndtr(gain / spread).item()
    assert found.better == pytest.approx(expected, abs=4 * 0.5 / 2000**0.5)


def test_a_confidence_in_single_precision_is_as_written() -> None:
    gp = rising(noise=0.5, num=5)
    single: Any = torch.tensor(0.95)
    assert recommend(gp, choices=GRID, confidence=single)[1:] == recommend(gp, choices=GRID)[1:]


def test_the_baseline_is_no_improvement_on_itself() -> None:
    gp = rising(noise=0.5, num=5)
    best = recommend(gp, choices=GRID).candidate
    for choices in (best, GRID):  # alone, and selected
        found = recommend(gp, choices=choices, baseline=best)
        assert torch.equal(found.candidate, best) and found.better == 0.0


def test_an_objective_whose_transformed_posterior_has_no_mean() -> None:
    gp = SingleTaskGP(GRID[::5], GRID[::5].square() - 0.5, outcome_transform=Bilog())
    found = recommend(gp, bounds=BOUNDS, raw_samples=16)
    assert found.candidate.item() > 0.95 and found.lower < found.value < found.upper


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_the_task_column_may_be_left_out_of_the_points_or_of_the_baseline() -> None:
    gp, X = make_multitask(), torch.rand(5, 2, dtype=torch.double)
    whole = torch.cat([X, torch.zeros(5, 1).to(X)], dim=-1)
    expected = recommend(gp, choices=X, baseline=X[:1])
    for choices, baseline in ((X, whole[:1]), (whole, X[:1])):
        found = recommend(gp, choices=choices, baseline=baseline)
        assert found[1:] == expected[1:] and found.better is not None


def truths(num: int) -> Tensor:
    """Draws of the prior over the grid, ``num x 41``."""
    covariance = rising().covar_module(GRID).to_dense()
    root = torch.linalg.cholesky(covariance + 1e-8 * torch.eye(len(GRID)))
    return (torch.randn(num, len(GRID)).double() @ root.mT).detach()


def test_what_is_stated_of_the_selected_point_is_kept() -> None:
    """A process that is right, six noisy data, and the point that looks best."""
    num = 40
    torch.manual_seed(0)
    held = claimed = right = 0
    for f in truths(num):
        index = torch.randint(41, (6,))
        Y = f[index].unsqueeze(-1) + 0.5 * torch.randn(6, 1).double()
        gp = process(GRID[index], Y, noise=0.5)
        found = recommend(gp, choices=GRID, confidence=0.9, baseline=GRID[:1])
        at = int((GRID - found.candidate).abs().argmin())
        held += int(found.lower <= f[at] <= found.upper)
        assert found.better is not None
        if found.better >= 0.9:
            claimed, right = claimed + 1, right + int(f[at] > f[0])
    # At least 0.9, less three standard errors of the share.
    assert held / num >= 0.9 - 3 * (0.09 / num) ** 0.5
    assert claimed >= num / 10 and right / claimed >= 0.9 - 3 * (0.09 / claimed) ** 0.5


def test_a_fully_bayesian_objective_is_stated_by_draws_of_its_mixture() -> None:
    X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
    gp = SaasFullyBayesianSingleTaskGP(X, X - 0.5)
    one = torch.ones(16, dtype=torch.double)
    samples = {"mean": 0 * one, "outputscale": one, "noise": 0.01 * one}
    gp.load_mcmc_samples({**samples, "lengthscale": 0.1 * one.view(16, 1, 1)})
    x = GRID[2:3]
    found = recommend(gp, choices=x)
    deviation = gp.posterior(x).mixture_variance.sqrt().item()
    assert found.upper - found.value == pytest.approx(1.96 * deviation, rel=0.1)


def test_models_of_several_values_are_refused() -> None:
    """Draws at the copies of one point would be taken for those of others."""
    Y = GRID - 0.5
    perturbed = InputPerturbation(torch.zeros(3, 1, dtype=torch.double))
    gp = SingleTaskGP(GRID, Y, input_transform=perturbed)
    with pytest.raises(UnsupportedError, match="one value at each point"):
        recommend(gp.eval(), choices=GRID[:2])
    batch = SingleTaskGP(GRID.expand(2, -1, -1), Y.expand(2, -1, -1)).eval()
    with pytest.raises(UnsupportedError, match="batch of models"):
        recommend(batch, choices=GRID[:2])


@pytest.mark.parametrize("contexts", [GRID[::20], GRID[20:21]], ids=["several", "one"])
def test_an_objective_of_contexts_is_named(contexts: Tensor) -> None:
    """The columns of ``bounds`` are right: they are those of the constraint's decisions."""
    Z = torch.rand(8, 2, dtype=torch.double)
    joint = process(Z, Z.sum(dim=-1, keepdim=True) - 1.0)
    limit = ChanceConstraint(joint, upper=1.0, ambiguity=WorstCase(), contexts=contexts)
    with pytest.raises(BotorchTensorDimensionError, match="`objective` must be a model of the 1 c"):
        recommend(joint, limit, BOUNDS)
    with pytest.raises(BotorchTensorDimensionError, match="`bounds` must have the 1 columns of d"):
        recommend(joint, limit, BOUNDS.expand(-1, 2))
    assert recommend(rising(), limit, BOUNDS).certified


def test_bad_arguments_are_named() -> None:
    gp = rising()
    with pytest.raises(UnsupportedError, match="`model` must be a BoTorch model"):
        recommend(None, bounds=BOUNDS)  # type: ignore[arg-type]
    with pytest.raises(InputDataError, match="confidence"):
        recommend(gp, bounds=BOUNDS, confidence=1.0)
    with pytest.raises(BotorchTensorDimensionError, match="`bounds` .*: give them, or `choices`"):
        recommend(gp)
    with pytest.raises(InputDataError, match="excludes"):
        recommend(gp, bounds=BOUNDS, choices=GRID)
    with pytest.raises(BotorchTensorDimensionError, match="`baseline` must have shape 1 x d"):
        recommend(gp, bounds=BOUNDS, baseline=GRID[:2])
    with pytest.raises(BotorchTensorDimensionError, match="`choices` must have 1 columns"):
        recommend(gp, choices=GRID.repeat(1, 2))
    with pytest.raises(InputDataError, match="ChanceConstraint"):
        recommend(gp, gp, BOUNDS)


def test_statements_are_in_the_units_of_the_outcome() -> None:
    """Jitter of a fixed size had a deviation of 1e-4, which was taken for that of the objective."""

    def stated(unit: float) -> Tensor:
        gp = SingleTaskGP(GRID[::4], unit * GRID[::4].cos(), outcome_transform=Standardize(1))
        found = recommend(gp, choices=GRID, baseline=GRID[-1:])
        return torch.tensor([found.value / unit, found.lower / unit, found.upper / unit])

    assert_close(stated(2.0**-20), stated(1.0), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(("width", "unit"), [(2.0**20, 1.0), (2.0**-20, 1.0), (2.0**20, 2.0**-24)])
def test_units_do_not_matter(width: float, unit: float) -> None:
    """BoTorch's search stops at gradients of 1e-5, at its starts, or ends abnormally."""

    def found(width: float, unit: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        Z = torch.rand(20, 2, generator=generator, dtype=torch.double)
        noise = 0.01 * torch.randn(20, 1, generator=generator, dtype=torch.double)
        Y = unit * (noise - (Z - 0.37).square().sum(dim=-1, keepdim=True))
        bounds = torch.tensor([[0.0, 0.0], [width, width]], dtype=torch.double)
        transforms: dict[str, Any] = {
            "input_transform": Normalize(2, bounds=bounds),
            "outcome_transform": Standardize(1),
        }
        return recommend(SingleTaskGP(width * Z, Y, **transforms), bounds=bounds).candidate / width

    assert_close(found(width, unit), found(1.0, 1.0), rtol=0.0, atol=1e-4)

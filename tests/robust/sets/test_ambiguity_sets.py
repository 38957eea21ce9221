"""Ambiguity sets against convex programs, and properties of all sets."""

import copy
import pickle
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from torch import Tensor
from torch.testing import assert_close

from benchmarks.perf.operation_counts import count_operations
from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns
from tests.long_grids import mostly_slow
from tests.robust import programs

TRANSPORT = "botorch_calib.robust.sets.wasserstein._Transport"

# Sets as functions of a size: larger sizes give larger sets.
SETS: dict[str, Callable[[float], AmbiguitySet]] = {
    "wasserstein": WassersteinBall,
    "total variation": TotalVariationBall,
    "chi squared": ChiSquaredBall,
    "kl": KLBall,
    "cvar": lambda size: ConditionalValueAtRisk(1 / (1 + size)),
    "worst": lambda size: WorstCase(),
}
BALLS = {name: make for name, make in SETS.items() if name not in ("cvar", "worst")}
every_set = pytest.mark.parametrize("name", SETS)
every_ball = pytest.mark.parametrize("name", BALLS)


def instance(
    seed: int, num: int | None = None, rows: int = 3, zeros: bool = True
) -> tuple[Tensor, ContextDistribution]:
    """Values and a centre, often with atoms of weight 0, ties and smooth functions."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 16)) if num is None else num
    points = rng.random((num, int(rng.integers(1, 4))))
    weights = rng.dirichlet(np.full(num, rng.choice([0.3, 1.0, 100.0])))
    if zeros and num > 3 and seed % 2:
        weights[rng.random(num) < 0.4] = 0.0
        weights[0] = 0.5
    values = rng.normal(size=(rows, num))
    if seed % 3 == 1:
        values = np.round(values)
    if seed % 3 == 2:
        values = np.sin(4 * points @ rng.normal(size=(points.shape[1], rows))).T
    values = 10 ** rng.uniform(-2, 2) * (values + rng.choice([0.0, 100.0]))
    centre = ContextDistribution(torch.tensor(points), torch.tensor(weights / weights.sum()))
    return torch.tensor(values), centre


def spread(values: Tensor) -> Tensor:
    return values.amax(-1) - values.amin(-1)


@every_set
@pytest.mark.parametrize("seed", mostly_slow(range(6), range(2)))
def test_value_solves_the_program_and_weights_attain_it(name: str, seed: int) -> None:
    values, centre = instance(seed, rows=2)
    ambiguity = SETS[name](float(10 ** np.random.default_rng(seed).uniform(-2.5, 0.5)))
    found = ambiguity.worst_case(values, centre)
    wanted = [programs.solve(ambiguity, row, centre) for row in values.numpy()]
    error = (found - torch.tensor(wanted, dtype=torch.double)).abs()
    # The convex programs have errors of 1e-8 of the range.
    assert (error <= 2e-7 * spread(values)).all()
    weights = ambiguity.worst_case_weights(values, centre)
    assert weights.shape == values.shape and (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(2, dtype=torch.double), rtol=0, atol=1e-13)
    assert_close((weights * values).sum(-1), found)
    for row in weights.numpy():
        points, masses = centre.points.numpy(), centre.weights.numpy()
        distance, limit = programs.distance_from_centre(ambiguity, row, points, masses)
        # The distance between distributions is itself a linear program, solved to 1e-7.
        slack = 1e-6 if name == "wasserstein" else 1e-12
        assert distance <= limit * (1 + 1e-12) + slack


@every_set
@pytest.mark.parametrize("seed", range(2))
def test_between_minimum_and_expectation_and_monotone(name: str, seed: int) -> None:
    values, centre = instance(seed, num=40, rows=5)
    found = [SETS[name](size).worst_case(values, centre) for size in (1e-3, 0.05, 0.3, 1.0, 10.0)]
    slack = 1e-12 * values.abs().amax()
    for larger, smaller in zip(found[1:], found[:-1], strict=True):
        assert (larger <= smaller + slack).all()
    assert (found[0] <= centre.expectation(values) + slack).all()
    assert (found[-1] >= values.amin(-1) - slack).all()


@every_set
@pytest.mark.parametrize("seed", [1, 2])
def test_batches_levels_scales_and_permutations(name: str, seed: int) -> None:
    values, centre = instance(seed, num=20, rows=6)
    ambiguity = SETS[name](0.2)
    found = ambiguity.worst_case(values, centre)
    slack = float(1e-12 * values.abs().amax())
    rows = torch.stack([ambiguity.worst_case(row, centre) for row in values])
    assert_close(found, rows, rtol=0, atol=slack)
    nested = ambiguity.worst_case(values.reshape(3, 1, 2, 20), centre)
    assert_close(nested, found.reshape(3, 1, 2), rtol=0, atol=slack)
    moved = ambiguity.worst_case(2.5 * values + 3.0, centre)
    assert_close(moved, 2.5 * found + 3.0, rtol=0, atol=10 * slack)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
    permuted = ContextDistribution(centre.points[order], centre.weights[order])
    assert_close(ambiguity.worst_case(values[:, order], permuted), found, rtol=0, atol=slack)
    assert torch.equal(ambiguity.worst_case(values, centre), found)


@every_set
def test_gradient(name: str) -> None:
    values, centre = instance(6, num=12, zeros=False)
    values = values.requires_grad_()
    ambiguity = SETS[name](0.1)
    weights = ambiguity.worst_case_weights(values, centre)
    (gradient,) = torch.autograd.grad(ambiguity.worst_case(values, centre).sum(), values)
    assert not weights.requires_grad
    assert_close(gradient, weights)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        direction = torch.randn(values.shape, generator=generator, dtype=torch.double)
        step = 1e-5 * spread(values.detach()).amin() * direction
        with torch.no_grad():
            up, down = (ambiguity.worst_case(values + s * step, centre) for s in (1, -1))
        slope = (gradient * step).sum(-1)
        # A curvature of 1 / range would leave 1e-5 of the step; none is that large here.
        error = (up - down) / 2 - slope
        assert (error.abs() <= 2e-3 * step.norm(dim=-1)).all()


@every_set
def test_subgradient_at_ties(name: str) -> None:
    centre = ContextDistribution.empirical(
        torch.linspace(0, 1, 6, dtype=torch.double).unsqueeze(-1)
    )
    values = torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0, 2.0], dtype=torch.double)
    ambiguity = SETS[name](0.4)
    value, weights = (
        ambiguity.worst_case(values, centre),
        ambiguity.worst_case_weights(values, centre),
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        other = values + 0.3 * torch.randn(6, generator=generator, dtype=torch.double)
        # A concave function is below its linearisations.
        assert ambiguity.worst_case(other, centre) <= value + weights @ (other - values) + 1e-7


@every_set
def test_float32_and_empty_batches(name: str) -> None:
    values, centre = instance(3, num=15)
    ambiguity = SETS[name](0.2)
    single = ambiguity.worst_case(values.float(), centre)
    assert single.dtype == torch.float32
    assert ambiguity.worst_case_weights(values.float(), centre).dtype == torch.float32
    wanted = ambiguity.worst_case(values, centre).float()
    assert_close(single, wanted, rtol=0, atol=2e-6 * float(values.abs().amax()))
    assert_close(
        ambiguity.worst_case(values, centre.to(torch.float32)).float(),
        wanted,
        rtol=1e-4,
        atol=1e-5 * float(values.abs().amax()),
    )
    assert ambiguity.worst_case(values[:0], centre).shape == (0,)


@every_set
def test_one_atom_and_constant_functions(name: str) -> None:
    ambiguity = SETS[name](0.2)
    one = ContextDistribution.empirical(torch.ones(1, 2, dtype=torch.double))
    value = torch.tensor([[3.0], [4.0]], dtype=torch.double)
    assert_close(ambiguity.worst_case(value, one), value.squeeze(-1))
    _, centre = instance(3, num=8)
    flat = torch.full((2, 8), 1.5, dtype=torch.double)
    assert_close(ambiguity.worst_case_weights(flat, centre), centre.weights.expand(2, 8))


@every_ball
def test_radius_zero_is_the_expectation(name: str) -> None:
    values, centre = instance(3, num=15)
    assert_close(BALLS[name](0.0).worst_case(values, centre), centre.expectation(values))


@every_ball
def test_small_radii_keep_their_digits(name: str) -> None:
    """The decrease grows like the radius, or its root for divergences, from 0 on."""
    values, centre = instance(0, num=10, rows=4, zeros=False)
    power = 0.5 if name in ("chi squared", "kl") else 1.0
    first, second = (
        centre.expectation(values) - BALLS[name](size).worst_case(values, centre)
        for size in (1e-8, 4e-8)
    )
    # The decrease is 1e-8 to 1e-4 of the values, which have 16 digits.
    assert_close(second / first, torch.full_like(first, 4.0**power), rtol=1e-3, atol=0)


def test_known_values() -> None:
    points = torch.tensor([[0.0], [1.0], [3.0], [7.0]], dtype=torch.double)
    centre = ContextDistribution.empirical(points)
    values = torch.tensor([4.0, 1.0, 2.0, 9.0], dtype=torch.double)
    # An eighth of the mass goes from the best atom (9) to the worst one (1).
    assert_close(TotalVariationBall(0.25).worst_case(values, centre).item(), 4.0 - 8 / 8)
    # The worst 3/8 of the mass: 1/4 at 1 and 1/8 at 2.
    assert_close(ConditionalValueAtRisk(0.375).worst_case(values, centre).item(), (2 * 1 + 2) / 3)
    assert WorstCase().worst_case(values, centre).item() == 1.0
    # Moving from 0 to 1 pays 3 per unit of cost, all other moves less: 0.1 units of cost.
    assert_close(WassersteinBall(0.1).worst_case(values, centre).item(), 4.0 - 0.3)
    # Then 7 -> 3 pays 7/4 per unit.
    assert_close(WassersteinBall(0.35).worst_case(values, centre).item(), 4.0 - 0.75 - 0.175)
    assert WassersteinBall(100.0).worst_case(values, centre).item() == 1.0
    # The standard deviation of the values is sqrt(9.5); nonnegativity does not bind.
    bound = 4.0 - (0.1 * 9.5) ** 0.5
    assert_close(ChiSquaredBall(0.1).worst_case(values, centre).item(), bound)
    assert KLBall(float(np.log(4.0))).worst_case(values, centre).item() == 1.0
    assert ChiSquaredBall(3.0).worst_case(values, centre).item() == 1.0


@pytest.mark.parametrize("seed", range(2))
def test_lipschitz_bound_is_below_exact_wasserstein(seed: int) -> None:
    rng = np.random.default_rng(seed)
    centre = ContextDistribution.empirical(torch.tensor(rng.random((50, 2))))
    slope = torch.tensor(rng.normal(size=(6, 2)))
    values = torch.sin(slope @ centre.points.T)
    lipschitz = slope.norm(dim=-1)  # |grad| = |slope cos|
    expectation = centre.expectation(values)
    for radius in (0.0, 0.01, 0.1, 1.0):
        exact = WassersteinBall(radius).worst_case(values, centre)
        bounded = WassersteinBall(radius, method="lipschitz")
        assert bounded.needs_gradients and not WassersteinBall(radius).needs_gradients
        assert (expectation - radius * lipschitz <= exact + 1e-12).all()
        assert (exact <= expectation + 1e-12).all()


def test_slopes_at_samples_alone_are_no_bound() -> None:
    """Samples near the top of a wave miss its slopes; points that fill the range do not."""
    decision, everywhere = torch.zeros(1, 1).double(), torch.linspace(0, 1, 101).double()[:, None]
    wave = PointwiseFunction(lambda Z: (8 * Z[..., -1]).sin().squeeze(-1), Columns(2, 1))
    met = ContextDistribution.empirical(torch.tensor([[0.18], [0.2], [0.22]]).double())
    worst = WassersteinBall(0.1).evaluate(wave, decision, met.with_candidates(everywhere))
    for contexts, exceeds in ((met, True), (met.with_lipschitz_points(everywhere), False)):
        value = WassersteinBall(0.1, "lipschitz").evaluate(wave, decision, contexts)
        assert bool(value > worst) is exceeds


def test_lipschitz_bound_has_no_worst_case_of_values() -> None:
    values, centre = instance(0, num=2)
    ball = WassersteinBall(0.5, method="lipschitz")
    for call in (ball.worst_case, ball.worst_case_weights):
        with pytest.raises(UnsupportedError, match="`evaluate`"):
            call(values, centre)


@pytest.mark.parametrize("blind_steps", [1, 2, 16])
def test_wasserstein_as_on_a_device(monkeypatch: pytest.MonkeyPatch, blind_steps: int) -> None:
    centre = instance(0, num=60, rows=1)[1]
    smooth = (7 * centre.points[:, 0] + torch.arange(9.0, dtype=torch.double).unsqueeze(-1)).sin()
    settled = torch.ones(1, 60, dtype=torch.double)
    values = torch.cat([instance(0, num=60, rows=9)[0], smooth, smooth.round(), settled])
    balls = [WassersteinBall(radius) for radius in (1e-4, 0.03, 0.3, 5.0)]
    wanted = [ball.worst_case_weights(values, centre) for ball in balls]
    monkeypatch.setattr(f"{TRANSPORT}.on_processor", False)
    monkeypatch.setattr("botorch_calib.robust.sets.wasserstein._BLIND_STEPS", blind_steps)
    for ball, weights in zip(balls, wanted, strict=True):
        assert torch.equal(ball.worst_case_weights(values, centre), weights)
        # One read ends a search of up to 16 steps; checks of the arguments would read, too.
        minimise = partial(ball._minimiser, values, centre)
        reads = count_operations(minimise).own_host_reads
        assert reads <= 1 or blind_steps < 16


def test_wasserstein_mixes_plans_to_spend_the_budget() -> None:
    values, centre = instance(2, num=200, rows=8)
    weights = WassersteinBall(0.05).worst_case_weights(values, centre)
    # Each gamma gives a lower bound by duality, so weights that attain it are optimal.
    distances = torch.tensor(programs.pairwise_distances(centre.points.numpy()))
    bounds = [
        (values.unsqueeze(-2) + gamma * distances).amin(-1) @ centre.weights - 0.05 * gamma
        for gamma in torch.linspace(0, 10, 200, dtype=torch.double) * spread(values).amax()
    ]
    attained = (weights * values).sum(-1)
    assert (torch.stack(bounds) <= attained + 1e-12 * values.abs().amax()).all()


@every_set
def test_arguments(name: str) -> None:
    values, centre = instance(0, num=5)
    ambiguity = SETS[name](0.1)
    for call in (ambiguity.worst_case, ambiguity.worst_case_weights):
        with pytest.raises(BotorchTensorDimensionError, match="`values`"):
            call(values[:, :4], centre)
        with pytest.raises(InputDataError, match="`values`"):
            call(values.round().long(), centre)
        with pytest.raises(InputDataError, match="`values` must be a tensor"):
            call(values.tolist(), centre)  # type: ignore[arg-type]
        with pytest.raises(InputDataError, match="`contexts` must be a ContextDistribution"):
            call(values, centre.points)  # type: ignore[arg-type]
        for bad in (torch.nan, torch.inf):
            with pytest.raises(InputDataError, match="`values`"):
                call(torch.full_like(values, bad), centre)


@every_set
@pytest.mark.parametrize("zeros", [False, True])
def test_nan_gives_nan_and_leaves_other_rows(name: str, zeros: bool) -> None:
    """Acquisition functions do not check their values."""
    values, centre = instance(1, num=7, rows=4, zeros=zeros)
    ambiguity, broken = SETS[name](0.3), values.clone()
    broken[1], broken[2, 3] = torch.nan, torch.nan
    found = ambiguity.evaluate(lambda X, contexts: broken, values[:, :1], centre)  # type: ignore
    assert found[1:3].isnan().all()
    assert_close(found[[0, 3]], ambiguity.worst_case(values[[0, 3]], centre))


@every_ball
def test_radius_is_checked(name: str) -> None:
    for radius in (-0.1, float("inf"), torch.ones(2)):
        with pytest.raises(InputDataError, match="`radius`"):
            BALLS[name](radius)  # type: ignore[arg-type]


def test_other_arguments_are_checked() -> None:
    for alpha in (0.0, 1.1, float("nan"), -1.0):
        with pytest.raises(InputDataError, match="`alpha`"):
            ConditionalValueAtRisk(alpha)
    with pytest.raises(InputDataError, match="`method`"):
        WassersteinBall(0.1, method="other")
    assert WassersteinBall(torch.tensor(0.25)).radius == 0.25


@every_set
def test_copies_and_repr(name: str) -> None:
    values, centre = instance(0, num=5)
    ambiguity = SETS[name](0.1)
    wanted = ambiguity.worst_case(values, centre)
    for other in (copy.deepcopy(ambiguity), pickle.loads(pickle.dumps(ambiguity))):
        assert torch.equal(other.worst_case(values, centre), wanted)
    assert type(ambiguity).__name__ in repr(ambiguity)

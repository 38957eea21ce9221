"""Weighted conformal calibrators: the quantile against loops, what they state, state, errors."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal
from tests.contracts import CalibratorContract
from tests.random_numbers import uniform

DOUBLE: dict[str, Any] = {"dtype": torch.double}


def steep(X: Tensor) -> Tensor:
    """A known density ratio: from 0.05 to 20 over the unit square."""
    return (3 * (X.sum(dim=-1) - 1)).exp()


def make_ratio() -> ClassifierDensityRatio:
    generator = torch.Generator().manual_seed(4)
    X = uniform(2, 50, 2, generator=generator)
    return ClassifierDensityRatio(X[0], X[1].sqrt())


RATIOS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "split": None,
    "steep": steep,
    "estimated": make_ratio(),
}
kinds = pytest.mark.parametrize("continuous", [False, True])
ratios = pytest.mark.parametrize("ratio", RATIOS.values(), ids=RATIOS)


def make_data(num: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, **DOUBLE, generator=generator)
    return X, 2 * torch.randn(num, **DOUBLE, generator=generator)


def trained(num: int = 20, alpha: float = 0.2, **kwargs: Any) -> WeightedConformal:
    calibrator = WeightedConformal(alpha, **kwargs)
    calibrator.update(*make_data(num))
    return calibrator


def gaussian_half_width(alpha: float) -> float:
    return torch.special.ndtri(torch.tensor(1 - alpha / 2, **DOUBLE)).item()


def looped_half_width(
    past_X: Tensor,
    past_z: Tensor,
    x: Tensor,
    alpha: float,
    ratio: Any,
    cap: float = 50.0,
    continuous: bool = False,
) -> float:
    """The half-width at one point, by the definition: every candidate, every sum in a loop."""

    def weight(point: Tensor) -> float:
        return 1.0 if ratio is None else ratio(point).item()

    if not len(past_z):
        return gaussian_half_width(alpha)
    sizes = [abs(z) for z in past_z.tolist()]
    weights = [weight(point) for point in past_X]
    needed = (1 - alpha) * (math.fsum(weights) + weight(x))
    if continuous:
        return looped_ramp(sorted(zip(sizes, weights, strict=True)), needed, cap)
    enough = []
    for candidate in sizes:
        within = [w for w, size in zip(weights, sizes, strict=True) if size <= candidate]
        if math.fsum(within) >= needed * (1 - 1e-10):
            enough.append(candidate)
    return min([*enough, cap])


def looped_ramp(pairs: list[tuple[float, float]], needed: float, cap: float) -> float:
    """The continuous half-width from pairs of sizes and positive weights, sorted by size."""
    below = 0.0
    for (low, weight), (high, _) in zip(pairs, [*pairs[1:], (cap, 0.0)], strict=True):
        if below + weight >= needed:
            low, high, share = min(low, cap), min(high, cap), (needed - below) / weight
            score = (1 - share) * low / (1 + low) + share * high / (1 + high)
            return score / (1 - score)
        below += weight
    return cap


class TestSplit(CalibratorContract):
    def make_calibrator(self) -> WeightedConformal:
        return WeightedConformal(0.2)


class TestWithFunction(CalibratorContract):
    def make_calibrator(self) -> WeightedConformal:
        return WeightedConformal(0.4, density_ratio=steep, tails="gaussian", max_width=5.0)


class TestWithModule(CalibratorContract):
    def make_calibrator(self) -> WeightedConformal:
        return WeightedConformal(0.3, density_ratio=make_ratio())


# ------------------------------------------------------------------ the quantile


@kinds
@ratios
@pytest.mark.parametrize(("num", "alpha"), [(0, 0.2), (1, 0.7), (4, 0.2), (9, 0.05), (40, 0.2)])
def test_half_width_against_loops(ratio, num, alpha, continuous):
    calibrator = trained(num, alpha, density_ratio=ratio, continuous=continuous)
    past = make_data(num)
    X = make_data(12, seed=1)[0].reshape(2, 3, 2, 2)
    widths = calibrator.half_width(X)
    assert widths.shape == (2, 3, 2, 1) and widths.dtype == torch.double
    ramped = continuous and ratio is not None
    expected = [
        looped_half_width(*past, x, alpha, ratio, continuous=ramped) for x in X.reshape(-1, 2)
    ]
    assert_close(widths.detach().flatten(), torch.tensor(expected, **DOUBLE))


def test_order_statistic_of_equal_weights():
    """Split conformal: the ``ceil((1 - alpha) (n + 1))``-th smallest of ``n``, none too far."""
    for num in (4, 9, 19, 99, 999):
        for percent in (5, 10, 20, 30, 50, 70):
            rank = -((percent - 100) * (num + 1) // 100)  # in integers, so without rounding
            calibrator = WeightedConformal(percent / 100)
            calibrator.update(torch.zeros(num, 1), torch.arange(1.0, num + 1) / 100)
            width = calibrator.half_width(torch.zeros(1)).item()
            assert width == pytest.approx(rank / 100 if rank <= num else 50.0)


@kinds
@ratios
@pytest.mark.parametrize("max_width", [50.0, 1.5])
def test_update_returns_the_distributions_stated_before(ratio, max_width, continuous):
    """One call on all data states what calls on one datum each state, and the loops as well."""
    X, z = make_data(15)
    ramped = continuous and ratio is not None
    whole, single = (
        WeightedConformal(0.2, ratio, max_width=max_width, continuous=continuous) for _ in range(2)
    )
    predictives = [
        whole.update(X[:6], z[:6]),
        whole.update(X[6:6], z[6:6]),
        whole.update(X[6:], z[6:]),
    ]
    assert [predictive.batch_shape for predictive in predictives] == [(6, 1), (0, 1), (9, 1)]
    stated = torch.cat([predictive.knots[..., 2] for predictive in predictives]).flatten()
    for i in range(len(z)):
        before = single.half_width(X[i])
        predictive = single.update(X[i : i + 1], z[i : i + 1])
        looped = looped_half_width(X[:i], z[:i], X[i], 0.2, ratio, max_width, ramped)
        assert_close(stated[i], before.squeeze())
        assert_close(predictive.knots[0, 0, 2], before.squeeze())
        assert before.item() == pytest.approx(min(looped, max_width))
    assert whole.num_updates == single.num_updates == 15


def test_continuous_half_width():
    """Along a line: no jumps, never below the quantile, never above the next residual."""
    X = torch.linspace(0, 1, 20001, **DOUBLE).unsqueeze(-1).expand(-1, 2)
    exact = trained(density_ratio=steep, continuous=False).half_width(X).flatten()
    ramp = trained(density_ratio=steep).half_width(X).flatten()
    sizes = make_data()[1].abs().sort().values
    assert len(exact.unique()) > 5 and exact.max() == 50.0
    assert exact.diff().max() > 1.0
    following = torch.cat([sizes, torch.tensor([50.0, 50.0], **DOUBLE)])
    upper = following[torch.searchsorted(sizes, exact) + 1]
    assert (ramp >= exact - 1e-12).all() and (ramp <= upper + 1e-9).all()
    # In steps of 1/20000 the weight changes by a factor 1.0003 at most, and the score, which
    # spends 0.4 on the last residual's weight of some hundredth of the sum, by far less than 0.01.
    assert (ramp / (1 + ramp)).diff().abs().max() < 0.01


@ratios
def test_gradients(ratio):
    calibrator = trained(density_ratio=ratio)
    X = make_data(3, seed=1)[0].unsqueeze(-2).requires_grad_()
    if ratio is None:
        assert not calibrator.predictive(X).variance.requires_grad
        return
    assert torch.autograd.gradcheck(calibrator.half_width, X)
    assert torch.autograd.gradcheck(lambda X: calibrator.predictive(X).variance, X)
    (gradient,) = torch.autograd.grad(calibrator.half_width(X).sum(), X)
    assert gradient.isfinite().all() and (gradient != 0).any()
    quantile = trained(density_ratio=ratio, continuous=False).half_width(X)
    assert not quantile.requires_grad


# ------------------------------------------------------------------ the predictive distribution


def test_initial_distribution():
    """Before any residual the interval and its tails are the Gaussian model's own."""
    X = make_data(5)[0]
    for tails, alpha in (("gaussian", 0.01), ("stretched", 0.7)):
        calibrator = WeightedConformal(alpha, density_ratio=steep, tails=tails)
        width = gaussian_half_width(alpha)
        assert_close(calibrator.half_width(X), torch.full((5, 1), width, **DOUBLE))
        far = torch.tensor([-5.0, -width, width, 5.0], **DOUBLE)
        assert_close(calibrator.predictive(X).cdf(far), torch.special.ndtr(far).expand(5, 4))
        assert calibrator.num_updates == 0 and "num_updates=0" in repr(calibrator)


def test_distribution_spreads_the_mass():
    calibrator = trained(density_ratio=steep)
    X = make_data(6, seed=1)[0]
    width = calibrator.half_width(X)
    ends = torch.cat([-width, width], dim=-1).unsqueeze(0)
    expected = torch.tensor([0.1, 0.9], **DOUBLE).expand(1, 6, 2)
    assert_close(calibrator.predictive(X).cdf(ends), expected)


def test_ties_are_covered() -> None:
    """The continuous half-width is not below the quantile, not even by rounding."""
    X = torch.rand(200, 2, dtype=torch.double)
    calibrator = WeightedConformal(0.2, density_ratio=lambda X: 1 + 0 * X[..., 0])
    calibrator.update(X, torch.full((200,), 0.7, dtype=torch.double))
    assert (calibrator.half_width(X) >= 0.7).all()
    assert calibrator.num_needed == 4

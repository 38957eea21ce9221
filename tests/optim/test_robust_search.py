"""The search for robust decisions, against grids and a long search, and its invariances."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedUpperConfidenceBound,
    LocalizedConformal,
    RobustUpperConfidenceBound,
    TotalVariationBall,
    WassersteinBall,
    WassersteinUpperConfidenceBound,
    optimize_robust,
)
from botorch_calib.acquisition import RobustAcquisition
from botorch_calib.optim.scaled_search import (
    SEPARATE_STARTS,
    InUnitBox,
    spread_of_values,
    without_search_warnings,
)
from tests.gps import DOUBLE, make_gp
from tests.newer_scipy import search_by_scipy

BETA, RADIUS = 2.25, 0.3
UNIT = torch.tensor([[0.0], [1.0]], **DOUBLE)
SQUARE = UNIT.expand(2, 2)
CONTEXTS = torch.linspace(0.05, 0.95, 7, **DOUBLE).unsqueeze(-1)
MANY = torch.linspace(0.0, 1.0, 60, **DOUBLE).unsqueeze(-1)


def wavy_gp(seed: int = 0, level: float = 0.0, unit: float = 1.0) -> SingleTaskGP:
    """Two decisions and a context, with the robust maximum inside of the box and on a kink."""
    X = draw_sobol_samples(UNIT.expand(2, 3), n=30, q=1, seed=seed).squeeze(-2)
    a, b, c = X.mT.unsqueeze(-1)
    Y = (6 * (c - a)).sin() * (b - 0.5) - 3 * (a - 0.4).square() - 3 * (b - 0.7).square()
    gp = SingleTaskGP(X, unit * Y + level, outcome_transform=Standardize(1))
    gp.covar_module.lengthscale = torch.tensor([0.4, 0.5, 0.35], **DOUBLE)
    gp.likelihood.noise = torch.tensor([1e-3], **DOUBLE)
    return gp.eval()


def wasserstein(gp: Any, radius: float = RADIUS, **kwargs: Any) -> WassersteinUpperConfidenceBound:
    return WassersteinUpperConfidenceBound(gp, BETA, radius, CONTEXTS, **kwargs)


def found(acqf: Any, bounds: Tensor = SQUARE, seed: int = 0, **kwargs: Any) -> tuple[Tensor, ...]:
    with manual_seed(seed):
        return optimize_robust(acqf, bounds, **kwargs)


def best_on_grid(acqf: Any, num: int = 4001) -> Tensor:
    """The largest value in one dimension, on a grid and then on a fine one about its best point."""
    grid = torch.linspace(0.0, 1.0, num, **DOUBLE).view(-1, 1, 1)
    best = grid[acqf(grid).argmax()].squeeze()
    finer = (best + torch.linspace(-1.0, 1.0, num, **DOUBLE) / num).clamp(0.0, 1.0).view(-1, 1, 1)
    return acqf(finer).max()


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_a_decision_at_a_bound_is_within_it(dtype: torch.dtype) -> None:
    """-0.2 plus the width of the second column exceeds 0.9 by a rounding error."""
    bounds = torch.tensor([[0.0, -0.2], [1.0, 0.9]], dtype=dtype)
    box = torch.cat([bounds, UNIT.to(dtype)], dim=-1)
    X = draw_sobol_samples(box, n=30, q=1, seed=0).squeeze(-2)
    a, b, c = X.mT.unsqueeze(-1)
    Y = 0.5 * (6 * (c - a)).sin() - 3 * (a - 0.4).square() + b
    gp = SingleTaskGP(X, Y, input_transform=Normalize(3, bounds=box)).eval()
    gp.likelihood.noise = 1e-3
    contexts = CONTEXTS.to(dtype)
    decision, _ = found(WassersteinUpperConfidenceBound(gp, BETA, RADIUS, contexts), bounds)
    assert (decision >= bounds[0]).all() and (decision <= bounds[1]).all()
    assert decision[0, 1].item() == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(("maximize", "others"), [(True, MANY), (False, None)])
def test_the_best_of_one_dimension(maximize, others) -> None:
    for radius in (0.05, RADIUS, 2.0):
        acqf = wasserstein(make_gp(), radius, maximize=maximize, lipschitz_contexts=others)
        decision, value = found(acqf, UNIT)
        assert decision.shape == (1, 1) and value.shape == ()
        assert_close(value, acqf(decision.unsqueeze(0)).squeeze(), rtol=1e-12, atol=1e-12)
        assert value >= best_on_grid(acqf) - 1e-6


def ordinary_search(acqf: Any, bounds: Tensor = SQUARE, **kwargs: Any) -> Any:
    """BoTorch's, which would start again where kinks have stopped a line search."""
    return optimize_acqf(acqf, bounds, q=1, retry_on_optimization_warning=False, **kwargs)


def long_search(acqf: Any) -> Any:
    with manual_seed(1):
        return ordinary_search(acqf, num_restarts=12, raw_samples=256)[1]


@pytest.mark.slow
def test_as_good_as_a_long_search() -> None:
    on_kinks = 0
    for seed in range(4):
        acqf = wasserstein(wavy_gp(seed), lipschitz_contexts=MANY)
        decision, value = found(acqf)
        assert value >= long_search(acqf) - 1e-5
        # Two contexts are equally steep, so a search along gradients stops.
        norms = acqf.contextual_function(decision).gradient_norms(decision, MANY)
        first, second = norms.topk(2).values[0]
        on_kinks += bool(second > first * (1 - 1e-6))
    assert on_kinks >= 3


def test_neither_level_nor_unit_matter() -> None:
    decision, _ = found(wasserstein(wavy_gp()))
    for level, unit in ((0.0, 1e6), (1e5, 1.0), (0.0, 1e-2)):
        other, _ = found(wasserstein(wavy_gp(level=level, unit=unit)))
        assert_close(other, decision, rtol=0, atol=1e-4)


class InUnits(AcquisitionFunction):
    """A bowl over a box of these widths, measured in them."""

    def __init__(self, widths: Tensor) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]
        self.widths = widths

    def forward(self, X: Tensor) -> Tensor:
        best = torch.linspace(0.2, 0.8, X.shape[-1], **DOUBLE)
        return -(X.squeeze(-2) / self.widths - best).square().sum(dim=-1)


class Linear(AcquisitionFunction):
    def __init__(self, slope: Tensor) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]
        self.slope = slope / slope.abs().square()

    def forward(self, X: Tensor) -> Tensor:
        return X.squeeze(-2) @ self.slope


def test_units_of_decisions_do_not_matter() -> None:
    """Nor for functions that BoTorch's search maximises, whose tolerance is of a gradient."""
    widths = torch.tensor([1e6, 1e-6, 1.0, 1e3], **DOUBLE)
    bounds = torch.stack([torch.zeros_like(widths), widths])
    decision, value = found(InUnits(widths), bounds)
    assert_close(decision[0] / widths, torch.linspace(0.2, 0.8, 4, **DOUBLE), rtol=0, atol=1e-3)
    assert value == InUnits(widths)(decision.unsqueeze(0))
    # The ends of the box are met exactly, without rounding errors.
    bounds = torch.tensor([[0.1, -0.3], [0.1 + 1e-7, 0.1]], **DOUBLE)
    for end in bounds:
        pull = end - bounds.mean(dim=0)
        decision, _ = found(Linear(pull), bounds)
        assert_close(decision[0], end, rtol=0, atol=0)


@pytest.mark.parametrize("ambiguity", [WassersteinBall(0.0, "lipschitz"), TotalVariationBall(0.2)])
def test_other_functions_are_left_to_botorch(ambiguity) -> None:
    acqf = RobustUpperConfidenceBound(wavy_gp(), BETA, ambiguity, CONTEXTS)
    in_units = InUnitBox(acqf, SQUARE, spread_of_values(acqf, SQUARE))
    with manual_seed(0):
        point, value = optimize_acqf(
            in_units, SQUARE, q=1, num_restarts=3, raw_samples=32, options=dict(SEPARATE_STARTS)
        )
    candidate, found_value = found(acqf, num_restarts=3, raw_samples=32)
    assert torch.equal(candidate, point) and value is not None
    assert_close(found_value, value * in_units.unit, rtol=0, atol=0)
    # Values are in units of the function, not of the search.
    assert_close(found_value, acqf(candidate)[0], rtol=1e-9, atol=0)
    assert in_units.unit != 1.0


def test_any_model_and_acquisition_function() -> None:
    model = CalibratedModel.from_history(make_gp(), LocalizedConformal(0.2, lengthscale=0.5))
    quantile = CalibratedUpperConfidenceBound(model, level=0.9)
    for acqf in (
        wasserstein(model),
        RobustUpperConfidenceBound(model, BETA, WassersteinBall(RADIUS, "lipschitz"), CONTEXTS),
        RobustAcquisition(quantile, WassersteinBall(RADIUS, "lipschitz"), CONTEXTS),
    ):
        _, value = found(acqf, UNIT, num_restarts=2, raw_samples=32)
        assert value >= best_on_grid(acqf, 401) - 1e-5


def test_a_column_may_be_fixed() -> None:
    bounds = torch.tensor([[0.0, 0.3], [1.0, 0.3]], **DOUBLE)
    acqf = wasserstein(wavy_gp())
    decision, value = found(acqf, bounds)
    assert decision[0, 1] == 0.3

    def along(x: Tensor) -> Tensor:
        return acqf(torch.cat([x, torch.full_like(x, 0.3)], dim=-1))

    assert value >= best_on_grid(along) - 1e-6
    point = torch.tensor([[0.2, 0.3], [0.2, 0.3]], **DOUBLE)
    assert_close(found(acqf, point)[0], point[:1], rtol=0, atol=0)


def test_with_the_search_of_a_newer_scipy(monkeypatch) -> None:
    """SciPy's search has other options than BoTorch's, and also searches from each start."""
    searched = [
        wasserstein(wavy_gp()),
        RobustUpperConfidenceBound(wavy_gp(), BETA, TotalVariationBall(0.2), CONTEXTS),
    ]
    expected = [found(acqf) for acqf in searched]
    sizes = search_by_scipy(monkeypatch)
    for acqf, (decision, value) in zip(searched, expected, strict=True):
        again, at_it = found(acqf)
        assert_close(at_it, value, rtol=1e-6, atol=0.0)
        assert_close(again, decision, rtol=0.0, atol=1e-3)
    assert sizes and set(sizes) == {2}


def test_other_warnings_are_passed_on() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with without_search_warnings():
            warnings.warn("at its limit", OptimizationWarning, stacklevel=1)
            warnings.warn("of the model", UserWarning, stacklevel=1)
    assert [(str(w.message), w.filename) for w in caught] == [("of the model", __file__)]


def test_repeatable_and_without_a_trace() -> None:
    acqf = wasserstein(wavy_gp())
    first, second = found(acqf, seed=5), found(acqf, seed=5)
    assert_close(first, second, rtol=0, atol=0)
    assert not first[0].requires_grad and not first[1].requires_grad


def test_values_that_are_nan() -> None:
    """Not climbed, and returned only if there are no others."""

    class Partial(WassersteinUpperConfidenceBound):
        first = 0.5

        def forward(self, X: Tensor) -> Tensor:
            return super().forward(X).where(X[..., 0, 0] > self.first, torch.nan)

    acqf = Partial(wavy_gp(), BETA, RADIUS, CONTEXTS)
    decision, value = found(acqf)
    assert decision[0, 0] > 0.5 and value.isfinite()
    acqf.first = 1.0
    assert found(acqf)[1].isnan()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"bounds": torch.zeros(2, **DOUBLE)}, BotorchTensorDimensionError, "bounds"),
        ({"bounds": SQUARE.flip(0)}, InputDataError, "bounds"),
        ({"bounds": SQUARE.long()}, InputDataError, "bounds"),
        ({"bounds": SQUARE.tolist()}, InputDataError, "`bounds` must be a tensor, got list"),
        ({"num_restarts": 0}, InputDataError, "num_restarts"),
        ({"raw_samples": 1.5}, InputDataError, "raw_samples"),
    ],
)
def test_bad_arguments(change, error, match) -> None:
    arguments = {"bounds": SQUARE, **change}
    with pytest.raises(error, match=match):
        optimize_robust(wasserstein(wavy_gp()), **arguments)

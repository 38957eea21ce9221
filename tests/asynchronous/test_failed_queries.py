"""Failed and expired queries are never repeated, and proposers avoid their region."""

import math
import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.transforms.outcome import Bilog, Log
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.asynchronous import (
    AsynchronousOptimizer,
    DelayAwareProposer,
    DelayStrategy,
    SearchSettings,
)
from botorch_calib.asynchronous import failed_queries as failures_module
from botorch_calib.asynchronous import proposer as proposer_module
from botorch_calib.asynchronous.delay_strategy import strategy_of
from botorch_calib.asynchronous.failed_queries import (
    Feasibility,
    borders_are_overdrawn,
    feasibility_of,
    with_failures_imputed,
)
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models.outcome_transforms import train_data
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import raw_train_inputs
from tests.asynchronous.runs import BOUNDS, CENSOR, Held, Inline, fit
from tests.gps import DOUBLE
from tests.long_grids import mostly_slow

# A line search may fail by rounding, depending on the CPU; BoTorch warns and starts again.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed in `gen_candidates_scipy`"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
]

SEARCH = SearchSettings(2, 32)


def slope(x: Any) -> float:
    """Best in the corner (1, 5), the maximizer of any strategy's bound."""
    return float(x[0] + x[1] / 5.0)


def fails_in_corner(x: Any) -> bool:
    """In 22 % of the box, with the best value."""
    return bool(x[0] > -0.25 and x[1] > 3.25)


def queries(ledger: FeedbackLedger, status: str) -> Tensor:
    return torch.stack([trial.x for trial in ledger.trials if trial.status == status])


STRATEGIES: dict[str, Any] = {
    "ucb": "ucb",
    "ts": "ts",
    "hallucinate": "hallucinate",
    "none": DelayStrategy(imputation="none", window=None),
    "own": DelayStrategy(
        lambda model, ledger: UpperConfidenceBound(model, 1.0), imputation="hallucinate"
    ),
}


@pytest.mark.parametrize(
    ("name", "workers"),
    mostly_slow(product(STRATEGIES, [1, 4]), {("hallucinate", 4)}),
)
def test_a_run_goes_around_a_region_that_fails(name, workers, tmp_path):
    """40 evaluations, stopped and resumed after 20, with the best value near the best possible.

    With four workers, three others run whenever a query is chosen. The greatest value below the
    corner is 1.65, at (1, 3.25).
    """
    asked: list[tuple[float, ...]] = []

    def objective(x: np.ndarray) -> float:
        asked.append(tuple(x.tolist()))
        if fails_in_corner(x):
            raise RuntimeError("no value here")
        return slope(x)

    for goal in (20, 40):
        optimizer = AsynchronousOptimizer(
            Inline() if workers == 1 else Held(workers, 20),
            objective,
            FeedbackLedger.open(tmp_path / "run", dim=2, censor_value=CENSOR),
            DelayAwareProposer(BOUNDS, STRATEGIES[name], fit, search=SEARCH),
            max_parallel=workers,
            max_consecutive_failures=5 * workers,
        )
        best = optimizer.run(goal, progress=False).best
    assert len(asked) == 40 == len(set(asked))
    # One of the design, and a few at the edge of the region, where the best values are.
    assert sum(map(fails_in_corner, asked)) <= (5 if workers == 1 else 10)
    assert best is not None and best.y is not None and best.y > 1.65 - 0.15


@pytest.mark.parametrize(
    ("imputation", "acquisition", "failures"),
    [
        ("censor", "ucb", "avoid"),
        ("hallucinate", "ts", "avoid"),
        ("none", "ucb", "impute"),
        ("censor", "ts", "impute"),
        ("hallucinate", "ucb", "ignore"),
    ],
)
def test_no_failed_choice_is_asked_again(imputation, acquisition, failures):
    """Out of 12 choices 8 fail: each is proposed once, until no choice is left."""
    choices = torch.cartesian_prod(
        torch.linspace(-1.0, 1.0, 4, **DOUBLE), torch.linspace(0.0, 5.0, 3, **DOUBLE)
    )
    strategy = DelayStrategy(acquisition, imputation, None, failures=failures)
    ledger = FeedbackLedger(2, censor_value=CENSOR)
    for _ in range(16):
        propose = DelayAwareProposer(BOUNDS, strategy, fit, 5, choices, search=SEARCH)
        trial = ledger.submit(propose(ledger))
        if ledger[trial].x[0] > -0.5:
            ledger.fail(trial)
        else:
            ledger.observe(trial, slope(ledger[trial].x))
    failed = queries(ledger, "failed")
    assert len(failed.unique(dim=0)) == len(failed)
    only = DelayAwareProposer(BOUNDS, strategy, fit, 0, failed[:1], search=SEARCH)
    with pytest.raises(InputDataError, match="All `choices` have failed"):
        only(ledger)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_failed_maximizer_is_not_proposed_again(name, monkeypatch):
    """Even if the search returns it, or a point that differs by rounding only."""
    ledger = FeedbackLedger(2, censor_value=CENSOR)
    for x in torch.tensor([[-1.0, 0.0], [0.0, 2.0], [1.0, 0.0]], **DOUBLE):
        ledger.observe(ledger.submit(x), slope(x))
    corner = BOUNDS[1]
    ledger.fail(ledger.submit(corner))

    def search(acqf: Any, bounds: Tensor, *_: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        return bounds[1:] - 1e-8, torch.zeros(())

    monkeypatch.setattr(proposer_module, "optimize_in_unit_box", search)
    make = lambda **kwargs: DelayAwareProposer(  # noqa: E731
        BOUNDS, STRATEGIES[name], fit, 0, search=SEARCH, **kwargs
    )
    point = make()(ledger)
    assert ((point - corner).abs() > 1e-3).any()
    assert torch.equal(make()(ledger), point)
    along = make(fixed_features={0: 1.0})(ledger)
    assert along[0] == 1.0 and along[1] < 5.0 - 1e-3
    # Where nothing is left to choose, the given point is returned.
    assert torch.equal(make(fixed_features={0: 1.0, 1: 5.0})(ledger), corner)


class Models:
    """A factory of acquisition functions that records their models."""

    def __init__(self, maximize: bool = True) -> None:
        self.seen: list[Any] = []
        self.maximize = maximize

    def __call__(self, model: Any, ledger: FeedbackLedger) -> UpperConfidenceBound:
        self.seen.append(model)
        return UpperConfidenceBound(model, 1.0, maximize=self.maximize)

    def failures(self, num_values: int) -> tuple[Tensor, Tensor]:
        """Data of the last model in addition to ``num_values`` values: ``n x 2`` and ``n``."""
        base = self.seen[-1].model
        targets = base.outcome_transform.untransform(base.train_targets.unsqueeze(-1))[0]
        inputs = raw_train_inputs(base)
        assert inputs is not None
        return inputs[num_values:], targets[num_values:, 0]


@pytest.mark.parametrize("imputation", ["censor", "hallucinate"])
def test_which_queries_count_as_failures(imputation, monkeypatch):
    """Failed and, unless censored, expired queries count; pending queries count at most partly."""
    models = Models()
    ledger = FeedbackLedger(2, censor_value=CENSOR, max_wait=5, late="use")
    # Some of the pending queries must be near failures.
    unit = torch.rand(10, 2, generator=torch.Generator().manual_seed(1), **DOUBLE)
    X = BOUNDS[0] + unit * (BOUNDS[1] - BOUNDS[0])
    for x in X:
        ledger.submit(x)
    for trial in (1, 2, 5):
        ledger.observe(trial, slope(X[trial]))
    ledger.fail(3)
    ledger.fail(8)
    expired = [trial.id for trial in ledger.trials if trial.status is TrialStatus.EXPIRED]
    assert expired == [0, 4]
    lost = [3, 8] if imputation == "censor" else [0, 3, 4, 8]
    for failures in ("avoid", "impute", "ignore"):
        strategy = DelayStrategy(models, imputation, None, failures=failures)
        DelayAwareProposer(BOUNDS, strategy, fit, 0, search=SEARCH)(ledger)
        assert torch.equal(models.failures(3)[0], X[[] if failures == "ignore" else lost])
    known: list[tuple[Tensor, Tensor, tuple[Any, ...]]] = []

    def keep(X: Tensor, failed: Tensor, *others: Any) -> Feasibility:
        known.append((X, failed, others))
        return Feasibility(X, failed, *others)

    monkeypatch.setattr(failures_module, "Feasibility", keep)
    for failures in ("avoid", "impute", "ignore"):
        strategy = DelayStrategy("ucb", imputation, None, failures=failures)
        DelayAwareProposer(BOUNDS, strategy, fit, 0, search=SEARCH)(ledger)
    (given, failed, others), (extended, parts, _) = known
    assert torch.equal(given[~failed], X[[1, 2, 5]]) and torch.equal(given[failed], X[lost])
    # The predicted risk of a pending query counts four times.
    alone = Feasibility(given, failed, *others)
    pending = X[[trial.id for trial in ledger.trials if trial.status is TrialStatus.PENDING]]
    shares = (4.0 * (1.0 - alone.predict(pending))).clamp(0.0, 1.0)
    near = shares > 0.004
    assert near.any() and torch.equal(extended, torch.cat([given, pending[near]]))
    assert_close(parts, torch.cat([failed.double(), shares[near]]))


def test_one_query_at_a_time_tries_the_border_of_a_region_that_fails():
    """While it is under evaluation others keep away from its neighbourhood."""
    ledger = FeedbackLedger(1)
    for x, y in ((0.1, 0.1), (0.3, 0.3), (0.5, 0.5)):
        ledger.observe(ledger.submit([x]), y)
    ledger.fail(ledger.submit([0.9]))
    strategy, bounds = strategy_of("hallucinate"), torch.tensor([[0.0], [1.0]], **DOUBLE)

    def scores(at: list[float]) -> Tensor:
        feasibility = feasibility_of(ledger, ledger.now(), strategy, bounds)
        assert feasibility is not None
        return feasibility.score(torch.tensor(at, **DOUBLE).unsqueeze(-1))

    at = [0.2, 0.66, 0.7, 0.74]
    before = scores(at)
    border = ledger.submit([0.7])
    during = scores(at)
    assert (during[1:] < 0.5 * before[1:]).all() and during[0] > 0.9 * before[0]
    ledger.observe(border, 0.7)
    assert (scores(at)[1:] > before[1:]).all()


def is_at_border(ledger: FeedbackLedger, bounds: Tensor) -> list[bool]:
    """Whether each query failed or is within 0.1 sqrt(d) of an earlier failure."""
    scale = (bounds[1] - bounds[0]).tolist()
    X = [[value / width for value, width in zip(x, scale, strict=True)] for x in ledger.queries()]
    lost = [each.id for each in ledger.trials if each.status == TrialStatus.FAILED]
    near = 0.1 * len(scale) ** 0.5
    return [any(j <= i and math.dist(X[i], X[j]) < near for j in lost) for i in range(len(X))]


@pytest.mark.parametrize("maximize", [True, False])
def test_when_borders_have_had_their_share(maximize: bool) -> None:
    """After no stretch that ends now are five more queries at borders than elsewhere."""
    random_numbers, seen, sign = random.Random(0), [], 1.0 if maximize else -1.0
    bounds = torch.tensor([[0.0, -3.0], [1.0, 5.0]], **DOUBLE)
    for _ in range(60):
        ledger = FeedbackLedger(2, maximize=maximize)
        for _ in range(random_numbers.randint(1, 40)):
            unit = torch.tensor([random_numbers.random() ** 2, 0.3 * random_numbers.random()])
            trial = ledger.submit(bounds[0] + unit * (bounds[1] - bounds[0]))
            status = random_numbers.choices(["observed", "pending", "failed"], [3, 2, 1])[0]
            if status == "failed":
                ledger.fail(trial)
            elif status == "observed":
                ledger.observe(trial, sign * (random_numbers.gauss(0.0, 1.0) - 0.1 * trial))
        best = ledger.best()
        row = is_at_border(ledger, bounds)[0 if best is None else best.id + 1 :]
        steps = [1 if each else -1 for each in row]
        expected = max((sum(steps[start:]) for start in range(len(steps))), default=0) >= 5
        found = borders_are_overdrawn(ledger, ledger.now(), strategy_of("ts"), bounds)
        assert found == expected
        seen.append(found)
    assert 10 < sum(seen) < 50


@pytest.mark.parametrize("workers", [1, 4])
def test_what_a_border_may_cost_is_bounded(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the acquisition function is always the greatest there, and no value is the best."""
    generator = torch.Generator().manual_seed(0)

    def beside_the_failure(*args: Any) -> Tensor:
        unit = torch.tensor([0.8, 0.8]) + 0.02 * torch.rand(2, generator=generator)
        return BOUNDS[0] + unit * (BOUNDS[1] - BOUNDS[0])

    monkeypatch.setattr(DelayAwareProposer, "_maximizer", beside_the_failure)
    ledger = FeedbackLedger(2, maximize=True)
    for unit, y in (([0.1, 0.2], 1.0), ([0.5, 0.4], 2.0)):
        x = BOUNDS[0] + torch.tensor(unit) * (BOUNDS[1] - BOUNDS[0])
        ledger.observe(ledger.submit(x), y)
    ledger.fail(ledger.submit(BOUNDS[0] + 0.85 * (BOUNDS[1] - BOUNDS[0])))
    propose, first = DelayAwareProposer(BOUNDS, fit=fit, num_initial=0, search=SEARCH), len(ledger)
    for count in range(40):
        if count >= workers:
            ledger.observe(first + count - workers, 1.5)
        ledger.submit(propose(ledger))
    row = is_at_border(ledger, BOUNDS)[first - 1 :]
    longest = max(len(each) for each in "".join(" x"[at] for at in row).split())
    stretches = [row[i:j] for i in range(len(row)) for j in range(i + 1, len(row) + 1)]
    assert longest == 5 and all(sum(each) <= (5 + len(each)) / 2 for each in stretches)


def test_with_failures_all_over_the_box_the_model_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every place is a border, as after many failures at random, none is elsewhere."""
    ledger, chosen = FeedbackLedger(2, maximize=True), BOUNDS[0] + 0.3 * (BOUNDS[1] - BOUNDS[0])
    for unit, y in ((0.5, 1.0), (0.52, 0.0)):
        ledger.observe(ledger.submit(BOUNDS[0] + unit * (BOUNDS[1] - BOUNDS[0])), y)
    for place in product(torch.linspace(0.0, 1.0, 7).tolist(), repeat=2):
        ledger.fail(ledger.submit(BOUNDS[0] + torch.tensor(place) * (BOUNDS[1] - BOUNDS[0])))
    assert borders_are_overdrawn(ledger, ledger.now(), strategy_of("ts"), BOUNDS)
    monkeypatch.setattr(DelayAwareProposer, "_maximizer", lambda *args: chosen)
    propose = DelayAwareProposer(BOUNDS, fit=fit, num_initial=0, search=SEARCH)
    assert torch.equal(propose(ledger), chosen)


def test_a_query_that_hangs_costs_as_many_evaluations_as_it_takes():
    ledger = FeedbackLedger(1)
    for x in torch.linspace(0.0, 0.4, 8).tolist():
        ledger.observe(ledger.submit([x]), x)
    hangs = ledger.submit([0.9])
    for x in torch.linspace(0.41, 0.5, 12).tolist():
        ledger.observe(ledger.submit([x]), x)
    ledger.fail(hangs)
    ledger.fail(ledger.submit([0.95]))
    bounds = torch.tensor([[0.0], [1.0]], **DOUBLE)
    feasibility = feasibility_of(ledger, ledger.now(), strategy_of("hallucinate"), bounds)
    assert feasibility is not None
    assert ledger.waits()[hangs] == 12 and max(ledger.waits()[:hangs]) == 0
    assert feasibility.threshold == pytest.approx(1.0 - 0.5 / (1.0 + (12 + 1) / 4))


@pytest.mark.parametrize("maximize", [True, False])
def test_failures_are_poor_values(maximize):
    """At one of two failures the prediction is worse than the poor value, at the other better."""
    models, sign = Models(maximize), 1.0 if maximize else -1.0
    ledger = FeedbackLedger(2)
    X = torch.tensor([[-0.8, 0.5], [-0.9, 0.1], [0.9, 4.5], [0.5, 2.0], [0.2, 3.5]], **DOUBLE)
    for x in X:
        trial = ledger.submit(x)
        ledger.observe(trial, sign * slope(x))
    lost = torch.tensor([[-0.95, 0.05], [0.95, 4.8]], **DOUBLE)
    for x in lost:
        ledger.fail(ledger.submit(x))
    predicted = fit(*ledger.to_observations()).posterior(lost).mean.detach().flatten()
    Y = ledger.to_observations()[1]
    poor = Y.mean() - sign * Y.std()
    assert sign * predicted[0] < sign * poor < sign * predicted[1]
    DelayAwareProposer(BOUNDS, DelayStrategy(models), fit, 0, maximize=maximize, search=SEARCH)(
        ledger
    )
    at, values = models.failures(5)
    assert_close(at, lost)
    assert_close(values, torch.stack([predicted[0], poor]))


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("transform", [Log(), Bilog()], ids=["log", "bilog"])
def test_failures_under_a_nonlinear_outcome_transform(transform, maximize):
    """Imputed values are those of a model of the targets, transformed back."""
    ledger = FeedbackLedger(1, maximize=maximize)
    for x in torch.linspace(0.0, 1.0, 6).tolist():
        ledger.observe(ledger.submit([x]), math.exp(4.0 * math.sin(5.0 * x)))
    for x in (0.3, 0.9):
        ledger.fail(ledger.submit([x]))
    X, Y = ledger.to_observations()
    assert Y.mean() < Y.std()  # their difference has no logarithm
    gp: Any = SingleTaskGP(X, Y, outcome_transform=transform)
    model = with_failures_imputed(gp, ledger, ledger.now(), DelayStrategy(Models()))
    sign, targets = 1.0 if maximize else -1.0, transform(Y)[0]
    mean = mean_and_deviation(gp, torch.tensor([[0.3], [0.9]], **DOUBLE))[0]
    poor = transform.untransform((targets.mean() - sign * targets.std()).view(1, 1))[0]
    expected = torch.minimum(mean, poor) if maximize else torch.maximum(mean, poor)
    assert_close(train_data(model)[1][-2:], expected.detach())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("refit_every", [1, 2])
def test_a_fit_that_adds_data_of_another_task(refit_every: int) -> None:
    """The queries have no task column, which failures and later values need as well."""

    def with_old_data(X: Tensor, Y: Tensor) -> MultiTaskGP:
        whole = [torch.cat([X, torch.full((len(X), 1), task, **DOUBLE)], dim=-1) for task in (0, 1)]
        return MultiTaskGP(torch.cat(whole), torch.cat([Y + 5.0, Y]), -1, output_tasks=[1]).eval()

    ledger = FeedbackLedger(2)
    for i, x in enumerate(torch.rand(6, 2, **DOUBLE)):
        trial = ledger.submit(x)
        ledger.fail(trial, "broken") if i == 5 else ledger.observe(trial, float(x.sum()))
    seen: list[Tensor] = []

    def acquisition(model: Any, _: FeedbackLedger) -> UpperConfidenceBound:
        X = raw_train_inputs(model)
        assert X is not None
        seen.append(X)
        return UpperConfidenceBound(model, beta=1.0)

    strategy = DelayStrategy(acquisition, failures="impute")
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
    propose = DelayAwareProposer(
        bounds, strategy, num_initial=2, fit=with_old_data, refit_every=refit_every
    )
    assert propose(ledger).shape == (2,)
    # The fit has each value under both tasks. Later values and the failure are of the output task.
    num_fitted = 5 if refit_every == 1 else 4
    own = torch.cat([ledger.queries(), torch.ones(6, 1, **DOUBLE)], dim=-1)
    assert torch.equal(seen[0][-1], own[-1]) and len(seen[0]) == 5 + num_fitted + 1

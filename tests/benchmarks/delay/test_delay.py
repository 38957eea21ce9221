"""The loop under delays, its traces by hand, the methods of suite `delay` and its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

from benchmarks.calibration.suites import SMOKE
from benchmarks.delay import report as delay_report
from benchmarks.delay.methods import DelayedAcquisition, compared, default, sdf
from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask, Domain, Traces, replicate, tasks
from benchmarks.delay.report import (
    FLOOR,
    DelayReport,
    delay_figure,
    log_cumulative_regret,
    log_simple_regret,
)
from benchmarks.delay.suites import DELAY
from benchmarks.delay.value_tables import ContextualTableEvaluator, TableEvaluator
from benchmarks.framework.config import describe
from benchmarks.framework.rbf_surrogate import (
    hyperparameters,
)
from benchmarks.framework.report import collect, markdown, write_report
from benchmarks.framework.result import Result, replicate_config
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.runner import Summary, run_suite
from benchmarks.framework.suite import Suite
from benchmarks.suites import get_suite
from botorch_calib.asynchronous import DelayAwareProposer
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from botorch_calib.test_functions.delayed import DelayDistribution, FixedDelay, PoissonDelay
from tests.benchmarks.results import result_with

GRID = torch.linspace(0.0, 1.0, 11, dtype=torch.double).unsqueeze(-1)


def hat(X: Tensor) -> Tensor:
    """1 at 0.3, falling off on both sides."""
    return 1.0 - (X[..., 0] - 0.3).abs()


def discrete(seed: int, noise_std: float = 0.0) -> TableEvaluator:
    return TableEvaluator(GRID, hat(GRID), noise_std)


@dataclass(frozen=True)
class ContinuousHat:
    choices: Tensor | None = None
    optimal_value: float = 1.0

    def truth(self, x: Tensor) -> float:
        return hat(x).item()

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        return self.truth(x) + 0.01 * rng.standard_normal()


def continuous(seed: int) -> ContinuousHat:
    return ContinuousHat()


def contextual(seed: int) -> ContextualTableEvaluator:
    """Three points in each of two contexts, where the best values are 0.2 and 0.9."""
    choices = torch.tensor(
        [[x, c] for c in (0.0, 1.0) for x in (0.0, 0.5, 1.0)], dtype=torch.double
    )
    values = torch.tensor([0.0, 0.1, 0.2, 0.9, 0.5, 0.0], dtype=torch.double)
    return ContextualTableEvaluator(choices, values)


def objective(build: Callable[[int], Any] = discrete, **options: int) -> DelayedObjective:
    return DelayedObjective("hat", build, ((0.0, 1.0),), 0.0, **options)


def toy(
    delay: DelayDistribution, build: Callable[[int], Any] = discrete, **options: Any
) -> DelayedTask:
    settings = {"max_wait": 4, "num_rounds": 6, "num_initial": 2, **options}
    return DelayedTask("toy", objective(build), delay, **settings)


CONTEXTUAL = DelayedTask(
    "contexts",
    objective(contextual, num_contexts=2, rounds_per_context=3),
    FixedDelay(2.0),
    max_wait=4,
    num_rounds=6,
    num_initial=2,
)


@dataclass(frozen=True)
class Scripted:
    """Makes given queries, by number among the choices, and notes what it sees."""

    name: str = "scripted"
    path: tuple[int, ...] = ()

    def start(self, task: DelayedTask, bounds: Tensor) -> ScriptedStrategy:
        strategy = ScriptedStrategy(self.path)
        STARTED.append(strategy)
        return strategy


@dataclass
class ScriptedStrategy:
    path: tuple[int, ...]
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)
    choices: list[Tensor] = field(default_factory=list)

    def fit(self, ledger: FeedbackLedger, step: int) -> Any:
        self.seen.append(ledger.to_observations())
        self.pending.append(ledger.pending())

    def propose(self, model: Any, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        assert choices is not None
        self.choices.append(choices)
        step = len(self.seen) - 1
        return choices[self.path[step] if self.path else step % len(choices)]


STARTED: list[ScriptedStrategy] = []


def without_times(result: Result) -> Result:
    return replace(result, fit_seconds=[], acquisition_seconds=[])


# ---------------------------------------------------------------------------- the loop


def test_traces_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=3, num_initial=1, max_wait=2)
    # The optimum 0.3 is queried in round 0 and known for the choice of round 2.
    y, f = [0.5, 0.9, 0.7, 0.8], [0.5, 1.0, 0.6, 0.8]
    traces = Traces(task, y, f, [1.0] * 4, [0, 2, 1, 3])
    assert traces.arrivals == [0.0, 2.0, 2.0, math.inf]
    assert traces.best_by_outcome() == [0, 0, 1, 1]
    extras = traces.extras()
    assert extras["delay"] == [2.0, 1.0, 3.0]
    assert extras["arrival"] == [2.0, 2.0, None]
    assert extras["optimum"] == [1.0, 1.0, 1.0]
    assert extras["best_arrived"] == [0.5, 0.5, 0.9, 0.9]
    assert extras["simple_regret"] == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert extras["cumulative_regret"] == pytest.approx([0.0, 0.0, 0.4, 0.4])
    assert extras["cumulative_regret_all"] == pytest.approx([0.0, 0.0, 0.4, 0.6])


def test_a_value_without_delay_is_known_one_round_later() -> None:
    task = toy(FixedDelay(0.0), num_rounds=2, num_initial=1)
    assert Traces(task, [0.0] * 3, [0.0] * 3, [1.0] * 3, [0, 0, 0]).arrivals == [0.0, 1.0, 2.0]


def test_replicate_by_hand() -> None:
    task = toy(FixedDelay(2.0), num_rounds=4)
    result = replicate(task, Scripted(path=(3, 5, 0, 10)), seed=0)
    initial = result.X[:2]
    assert initial == Domain.of(task.objective, discrete(0)).initial_points(2, 0).tolist()
    assert result.X[2:] == GRID[[3, 5, 0, 10]].tolist()
    assert result.f == result.y == pytest.approx(hat(torch.tensor(result.X)).tolist())
    start = min(1.0 - value for value in result.f[:2])
    assert result.extras["simple_regret"] == pytest.approx([start, start, 0.0, 0.0, 0.0])
    # Regrets are 0, 0.2, 0.3 and 0.7, and the last two arrive after the end.
    assert result.extras["cumulative_regret"] == pytest.approx([0.0, 0.0, 0.0, 0.2, 0.5])
    assert result.extras["cumulative_regret_all"] == pytest.approx([0.0, 0.0, 0.2, 0.5, 1.2])
    assert result.inference_by_outcome[2:] == [2, 2, 2]
    assert result.regret_by_outcome == pytest.approx([start, start, 0.0, 0.0, 0.0])
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 4


@pytest.mark.parametrize("delay", [PoissonDelay(3.0), FixedDelay(3.0), FixedDelay(0.0)])
def test_a_strategy_sees_what_the_traces_say_has_arrived(delay) -> None:
    task = toy(delay, partial(discrete, noise_std=0.1), num_rounds=30)
    result = replicate(task, Scripted(), seed=5)
    strategy = STARTED[-1]
    n = task.num_initial
    waits = [int(wait or 0) for wait in result.extras["delay"]]
    late = sum(wait > task.max_wait for wait in waits)
    assert late > 0 or isinstance(delay, FixedDelay)
    for step in range(task.num_rounds):
        # Written out from the paper's condition: d <= min(m, t - s).
        known = [s for s in range(step) if waits[s] <= min(task.max_wait, step - s)]
        values = sorted([*result.y[:n], *(result.y[n + s] for s in known)])
        assert strategy.seen[step][1].squeeze(-1).sort().values.tolist() == pytest.approx(values)
        waited = [s for s in range(step) if s not in known and step - s <= task.max_wait]
        assert strategy.pending[step].tolist() == [result.X[n + s] for s in waited]
        best = max(values)
        assert result.extras["best_arrived"][step] == pytest.approx(best)


def test_replicate_is_deterministic_and_leaves_the_random_state_alone() -> None:
    task = toy(PoissonDelay(2.0), partial(discrete, noise_std=0.1))
    method = sdf("ts_sdf", "ts")
    before = torch.random.get_rng_state()
    first = replicate(task, method, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    assert without_times(replicate(task, method, 3)) == without_times(first)
    other = replicate(task, method, 4)
    assert other.X != first.X
    assert other.extras["delay"] != first.extras["delay"]


def test_methods_of_one_seed_share_initial_points_noise_and_delays() -> None:
    task = toy(PoissonDelay(2.0), partial(discrete, noise_std=0.1))
    one, two = (replicate(task, Scripted(path=path), 3) for path in [(0,) * 6, (5,) * 6])
    assert one.X[:2] == two.X[:2]
    assert one.extras["delay"] == two.extras["delay"]
    noise = [np.subtract(result.y, result.f) for result in (one, two)]
    assert noise[0] == pytest.approx(noise[1])
    assert abs(noise[0]).min() > 0
    other = replicate(task, Scripted(path=(0,) * 6), 4)
    assert other.extras["delay"] != one.extras["delay"]
    assert np.subtract(other.y, other.f) != pytest.approx(noise[0])


def test_contexts_come_in_order_and_each_has_its_optimum() -> None:
    result = replicate(CONTEXTUAL, Scripted(path=(0, 1, 2, 0, 1, 2)), seed=0)
    strategy = STARTED[-1]
    assert [choices[:, -1].unique().tolist() for choices in strategy.choices] == [[0.0]] * 3 + [
        [1.0]
    ] * 3
    assert [x[-1] for x in result.X[:2]] == [0.0, 0.0]
    assert result.X[2:] == contextual(0).choices.tolist()
    assert result.extras["optimum"] == [0.2] * 3 + [0.9] * 3
    assert result.extras["cumulative_regret_all"] == pytest.approx(
        [0.0, 0.2, 0.3, 0.3, 0.3, 0.7, 1.6]
    )
    assert result.extras["cumulative_regret"] == pytest.approx([0, 0, 0.2, 0.3, 0.3, 0.3, 0.7])
    assert "simple_regret" not in result.extras
    assert result.regret_by_outcome == result.inference_by_outcome == []


def test_results_survive_json() -> None:
    for task in (toy(PoissonDelay(4.0)), CONTEXTUAL):
        result = replicate(task, Scripted(), seed=0)
        assert Result.from_json(result.to_json()) == result


def test_the_box_of_a_contextual_task_has_the_range_of_its_contexts() -> None:
    domain = Domain.of(CONTEXTUAL.objective, contextual(0))
    assert domain.bounds.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert domain.contexts == (0.0, 1.0)


def test_initial_points_of_a_box_are_random_within_it() -> None:
    spec = DelayedObjective("box", continuous, ((-4.0, -2.0), (10.0, 20.0)), 0.0)
    points = Domain.of(spec, ContinuousHat()).initial_points(200, seed=1)
    assert points.shape == (200, 2)
    lower, upper = torch.tensor([-4.0, 10.0]), torch.tensor([-2.0, 20.0])
    assert ((points >= lower) & (points <= upper)).all()
    # Means of 200 uniform variables: 4 standard errors are 4 / sqrt(12 * 200) of the width.
    middle = (points.mean(dim=0) - lower) / (upper - lower)
    assert (middle - 0.5).abs().max() < 4 / math.sqrt(12 * 200)


def test_bad_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="6 rounds, its contexts 8"):
        replace(CONTEXTUAL, objective=objective(contextual, num_contexts=2, rounds_per_context=4))
    three = objective(contextual, num_contexts=3, rounds_per_context=2)
    with pytest.raises(ValueError, match="2 contexts"):
        replicate(replace(CONTEXTUAL, objective=three), Scripted(), 0)
    with pytest.raises(ValueError, match="discrete"):
        Domain.of(three, ContinuousHat())
    with pytest.raises(ValueError, match="counted in rounds"):
        replicate(toy(FixedDelay(1.5)), Scripted(), 0)


# ---------------------------------------------------------------------------- the methods


def ledger_with_pending(censor_value: float = 0.0) -> FeedbackLedger:
    """Four values, two queries still waited for and one given up."""
    ledger = FeedbackLedger(1, censor_value=censor_value, max_wait=3, late="discard")
    for x in (0.9, 0.0, 0.2, 0.5, 1.0, 0.6, 0.8):
        ledger.submit(torch.tensor([x], dtype=torch.double))
    for trial, y in zip((1, 2, 3, 4), (0.7, 0.9, 0.8, 0.3), strict=True):
        ledger.observe(trial, y, time=trial + 1)
    assert ledger.pending().flatten().tolist() == pytest.approx([0.6, 0.8])
    assert ledger.incomplete().flatten().tolist() == pytest.approx([0.9, 0.6, 0.8])
    return ledger


def acquisition_of(method: DelayedAcquisition, choices: Tensor | None = GRID) -> tuple[Any, Any]:
    """The acquisition function and the strategy of a first round."""
    ledger = ledger_with_pending()
    strategy = method.start(toy(FixedDelay(1.0)), torch.tensor([[0.0], [1.0]]).double())
    model = strategy.fit(ledger, 0)
    return strategy.acquisition_function(model, ledger, choices), strategy


def method_named(name: str) -> DelayedAcquisition:
    (found,) = (method for method in compared() if method.name == name)
    return found


def dense_posterior(gp: Any, X: Tensor, Y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation at ``at`` given ``X`` and ``Y``, by solving densely.

    In units of the outcome, with the hyperparameters and the standardisation of ``gp``.
    """
    found = hyperparameters(gp)
    scale, shift = gp.outcome_transform.stdvs.item(), gp.outcome_transform.means.item()

    def kernel(A: Tensor, B: Tensor) -> Tensor:
        return found.outputscale * torch.exp(-0.5 * ((A - B.T) / found.lengthscales[0]) ** 2)

    covariance = kernel(X, X) + found.noise * torch.eye(len(X)).to(X)
    weights = torch.linalg.solve(covariance, kernel(X, at))
    mean = found.mean + weights.T @ ((Y - shift) / scale - found.mean)
    variance = found.outputscale - (kernel(at, X).T * weights).sum(dim=0)
    return shift + scale * mean.squeeze(-1), scale * variance.sqrt()


def test_ucb_ignores_what_is_pending() -> None:
    acquisition, strategy = acquisition_of(method_named("ucb"))
    plain = UpperConfidenceBound(strategy.gp, beta=1.0)
    with torch.no_grad():
        assert torch.allclose(acquisition(GRID.unsqueeze(-2)), plain(GRID.unsqueeze(-2)))


def test_ucb_sdf_is_that_of_the_paper() -> None:
    acquisition, strategy = acquisition_of(sdf("ucb_sdf", "ucb", feedback_bound=0.7))
    ledger = ledger_with_pending()
    X, Y = ledger.training_data()
    mean, sigma = dense_posterior(strategy.gp, X, Y, GRID)
    _, pending = dense_posterior(strategy.gp, X, Y, ledger.pending())
    # The sum is in standard deviations of the outcome.
    nu = 1.0 + 0.7 * pending.sum() / strategy.gp.outcome_transform.stdvs.squeeze()
    with torch.no_grad():
        values = acquisition(GRID.unsqueeze(-2))
    assert torch.allclose(values, mean + nu * sigma, rtol=1e-6, atol=1e-6)


def test_ucb_hallucinate_keeps_the_mean_and_shrinks_the_deviation() -> None:
    acquisition, strategy = acquisition_of(method_named("ucb_hallucinate"))
    ledger = ledger_with_pending()
    X, Y = ledger.to_observations()
    mean, _ = dense_posterior(strategy.gp, X, Y, GRID)
    X = torch.cat([X, ledger.pending()])
    _, sigma = dense_posterior(strategy.gp, X, torch.zeros_like(X), GRID)
    with torch.no_grad():
        values = acquisition(GRID.unsqueeze(-2))
    assert torch.allclose(values, mean + sigma, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["qlogei_pending", "qucb_pending"])
def test_botorch_is_given_the_pending_points_and_the_model_of_the_data(name) -> None:
    acquisition, strategy = acquisition_of(method_named(name))
    assert torch.equal(acquisition.X_pending, ledger_with_pending().pending())
    assert acquisition.model is strategy.gp
    assert len(strategy.gp.train_targets) == 4


def test_thompson_samples_change_from_round_to_round_and_methods_share_them() -> None:
    torch.manual_seed(0)
    first, _ = acquisition_of(method_named("ts"))
    second, _ = acquisition_of(method_named("ts"))
    with torch.no_grad():
        values = [a(GRID.unsqueeze(-2)) for a in (first, second)]
    assert not torch.allclose(*values)
    torch.manual_seed(0)
    with torch.no_grad():
        again = acquisition_of(method_named("ts"))[0](GRID.unsqueeze(-2))
    assert torch.equal(again, values[0])


# A choice that is pending already makes a joint covariance singular.
@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize("name", [method.name for method in compared()])
def test_a_discrete_choice_is_the_maximum(name) -> None:
    method = method_named(name)
    task = toy(FixedDelay(2.0), num_rounds=3)
    torch.manual_seed(1)
    acquisition, strategy = acquisition_of(method)
    torch.manual_seed(1)
    strategy.gp = None
    ledger = ledger_with_pending()
    x = strategy.propose(strategy.fit(ledger, 0), ledger, GRID)
    with torch.no_grad():
        values = [acquisition(choice.reshape(1, 1, 1)).item() for choice in GRID]
    assert x.tolist() == GRID[int(np.argmax(values))].tolist()
    result = replicate(task, method, 0)
    assert len(result.y) == 5


@pytest.mark.parametrize("name", ["ucb_sdf", "ts_sdf", "qlogei_pending"])
def test_methods_run_on_a_box(name) -> None:
    method = replace(method_named(name), raw_samples=16, num_restarts=2)
    result = replicate(toy(PoissonDelay(2.0), continuous, num_rounds=3), method, 0)
    points = torch.tensor(result.X)
    assert points.shape == (5, 1)
    assert ((points >= 0) & (points <= 1)).all()
    assert points.unique(dim=0).shape[0] == 5


def test_methods_run_with_contexts() -> None:
    result = replicate(CONTEXTUAL, method_named("ucb_sdf"), 0)
    assert [x[-1] for x in result.X] == [0.0] * 5 + [1.0] * 3


def test_what_a_censored_value_is_taken_to_be() -> None:
    ledger = FeedbackLedger(1, censor_value=-5.0)
    for x, y in ((0.1, 0.3), (0.5, 0.2), (0.9, 0.7)):
        ledger.observe(ledger.submit([x]), y)
    ledger.submit([0.3])
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    methods = {"least": -5.0, "worst": 0.2, "prior": None}
    for censor_at, value in methods.items():
        strategy = sdf("x", "ucb", censor_at=censor_at).start(tasks()[0], bounds)
        model = strategy.fit(ledger, 0)
        if value is None:
            # The constant mean, 0.4 at about the middle of the values, in their units.
            gp: Any = strategy.gp
            constant = gp.mean_module.constant.item()
            value = 0.4 + constant * torch.tensor([0.3, 0.2, 0.7]).std().item()
            assert 0.2 < value < 0.7
        assert isinstance(model, CensoredDelayModel)
        assert model.X_pending.tolist() == [[0.3]]
        assert model.Y_imputed.item() == pytest.approx(value, abs=1e-7)


def test_unknown_settings() -> None:
    with pytest.raises(ValueError, match="nope"):
        DelayedAcquisition("x", "nope")
    with pytest.raises(ValueError, match="nope"):
        DelayedAcquisition("x", censor_at="nope")


def test_the_suite_is_that_of_the_protocol() -> None:
    suite = get_suite("delay")
    assert [method.name for method in suite.methods] == [
        "ucb_sdf",
        "ucb_sdf_worst",
        "ucb",
        "ucb_hallucinate",
        "ts_sdf",
        "ts",
        "ts_hallucinate",
        "qlogei_pending",
        "qucb_pending",
        "ucb_default",
    ]
    assert list(suite.seeds) == list(range(10000, 10030))
    for task in tasks():
        assert (task.num_rounds, task.max_wait) == (100, 20)
        kind = task.name.rpartition("_")[2]
        assert task.delay == {"poisson": PoissonDelay(10.0), "fixed": FixedDelay(10.0)}[kind]
        assert not task.contextual
    assert len(tasks()) == 8


def test_the_default_is_that_of_the_proposer() -> None:
    taken = DelayAwareProposer([[0.0], [1.0]]).strategy
    ours = default()
    for name in ("acquisition", "imputation", "window", "beta"):
        assert getattr(ours, name) == getattr(taken, name)
    # So that it is the same rule with ten queries under way.
    assert taken.spread_beyond is None or taken.spread_beyond > 10


def test_stored_results_of_other_suites_stay_valid() -> None:
    """What describes them must not gain or lose a field: their hashes would change."""
    config = replicate_config(SMOKE.problems[0], SMOKE.methods[0])
    assert list(config["problem"]) == [
        "type",
        "name",
        "build",
        "bounds",
        "optimal_value",
        "initial_design",
        "num_initial",
        "num_evaluations",
        "surrogate",
    ]
    assert config["problem"]["type"] == "benchmarks.Problem"
    assert list(config["method"]) == ["type", "name", "build"]
    assert config["method"]["type"] == "benchmarks.Method"


def test_the_configuration_names_delays_and_settings() -> None:
    config = describe(toy(PoissonDelay(3.0)))
    assert config["delay"]["mean"] == 3.0
    assert config["max_wait"] == 4
    assert describe(sdf("x", "ucb"))["window"] == "pending"


# ---------------------------------------------------------------------------- the report


TOY_SUITE: Suite[Any, Any] = Suite(
    name="toys",
    problems=(toy(FixedDelay(2.0)), CONTEXTUAL),
    methods=(Scripted("ucb"), Scripted("ts", (3,) * 6), Scripted("ts_sdf", (0,) * 6)),
    baseline="ucb",
    replicate=replicate,
    report=DelayReport(),
)


def test_a_suite_runs_resumes_and_is_reported(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    suite = replace(TOY_SUITE, problems=TOY_SUITE.problems[:1])
    assert run_suite(suite, store, [0, 1], progress=False) == Summary(finished=6)
    assert run_suite(suite, store, [0, 1, 2], progress=False) == Summary(finished=3, skipped=6)
    text = write_report(suite, store, tmp_path / "t", tmp_path / "f")
    assert (tmp_path / "t" / "toys.md").read_text() == text
    assert (tmp_path / "f" / "toys.png").stat().st_size > 0
    assert "## toy" in text
    collected, unfit = collect(suite, store)
    assert unfit == 0
    assert [len(results) for results in collected["toy"].values()] == [3, 3, 3]


def result(
    method: str, seed: int, regret: Sequence[float], every: Sequence[float], best: float = 0.5
) -> Result:
    """A result with the given traces; what the report ignores is empty."""
    extras: dict[str, list[float | None]] = {
        "cumulative_regret": [value / 2 for value in every],
        "cumulative_regret_all": list(every),
        "best_arrived": [0.0, best],
    }
    if regret:
        extras["simple_regret"] = list(regret)
    return result_with(
        problem="toy",
        method=method,
        seed=seed,
        num_initial=1,
        fit_seconds=[0.5, 1.5],
        acquisition_seconds=[2.0, 4.0],
        extras=extras,
        versions={"python": "3"},
    )


# Final simple regrets 2, 4, 6 of `ucb`; 1, 2, 3 of `ucb_sdf`; 5, 5, 5 of `ts`.
BY_METHOD = {
    "ucb": [result("ucb", s, [9.0, r], [0.0, 2 * r]) for s, r in enumerate([2.0, 4.0, 6.0])],
    "ucb_sdf": [
        result("ucb_sdf", s, [9.0, r], [0.0, 6 * r]) for s, r in enumerate([1.0, 2.0, 3.0])
    ],
    "ts": [result("ts", s, [9.0, 5.0], [0.0, 10.0]) for s in range(3)],
    "ts_sdf": [result("ts_sdf", s, [9.0, 4.0 + s], [0.0, 9.0]) for s in range(3)],
    "qlogei_pending": [result("qlogei_pending", s, [9.0, 1.0], [0.0, 1.0]) for s in range(3)],
}


def test_comparison_by_hand() -> None:
    row = delay_report.compare("ucb_sdf", BY_METHOD, "ucb")
    assert (row.method, row.counterpart, row.seeds) == ("ucb_sdf", "ucb", 3)
    assert row.simple.mean == 2.0
    assert (row.arrived.mean, row.every.mean) == (6.0, 12.0)
    ignoring, pending = row.simple_versus
    assert ignoring.difference.mean == -2.0
    # Differences of one sign: Wilcoxon's p-value is 2 / 2^3.
    assert ignoring.wilcoxon_p_value == pytest.approx(0.25)
    assert pending.difference.mean == 1.0
    assert [test.difference.mean for test in row.every_versus] == [4.0, 11.0]
    assert (row.fit_seconds, row.acquisition_seconds) == (1.0, 3.0)


def test_thompson_sampling_is_compared_with_its_own_kind() -> None:
    row = delay_report.compare("ts_sdf", BY_METHOD, "ucb")
    assert row.counterpart == "ts"
    assert row.simple_versus[0].difference.mean == 0.0
    without = {name: runs for name, runs in BY_METHOD.items() if name != "ts"}
    assert delay_report.compare("ts_sdf", without, "ucb").counterpart == "ucb"


def test_tables_by_hand() -> None:
    lines = markdown(TOY_SUITE, {"toy": BY_METHOD}).splitlines()
    row = (
        "| ucb_sdf | 3 | 2 ± 0.58 | -2 ± 0.58 (0.25) | 1 ± 0.58 (0.5) | 6 ± 1.7 | 12 ± 3.5 | "
        "4 ± 1.2 (0.25) | 11 ± 3.5 (0.25) | 1 | 3 |"
    )
    assert row in lines
    assert "| ucb | 3 | 4 ± 1.2 | – |" in "\n".join(lines)
    # Of mean simple regret, -50 %; of cumulative regret, 3 times the baseline's on every seed.
    summary = next(line for line in lines if line.startswith("| ucb_sdf | 1 |"))
    assert "| 0 | 0 | -50 ± 14 (0.25) | 50 ± 14 (0.25) |" in summary
    assert not any("published" in line for line in lines)


def test_significance_counts_by_hand() -> None:
    # Eight seeds with differences of one sign: p = 2 / 2^8 = 0.0078.
    by_method = {
        name: [result(name, s, [9.0, offset + s + 0.1 * s * offset], [0.0, 1.0]) for s in range(8)]
        for name, offset in [("ucb", 2.0), ("ucb_sdf", 1.0), ("ucb_hallucinate", 3.0)]
    }
    lines = markdown(TOY_SUITE, {"toy": by_method}).splitlines()
    assert any(line.startswith("| ucb_sdf | 1 | 1 | 0 |") for line in lines)
    assert any(line.startswith("| ucb_hallucinate | 1 | 0 | 1 |") for line in lines)


# Mean simple regrets, 3 for other methods; what varies by seed and method is a percent.
LEVELS = {"ucb": 4.0, "ucb_sdf": 2.0, "ucb_default": 2.0, "qlogei_pending": 1.0}


def late(name: str, factor: float = 1.0) -> list[Result]:
    """Eight results of a method; cumulative regret is ten times as much."""
    draws = np.random.default_rng(sum(map(ord, name))).uniform(0.99, 1.01, 8)
    values = (factor * LEVELS.get(name, 3.0) * draws).tolist()
    return [result(name, seed, [9.0, v, v], [0.0, 10 * v]) for seed, v in enumerate(values)]


def declared(text: str, *keys: str) -> list[str]:
    """The cells behind ``keys``."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {' | '.join(keys)} |"))
    return [cell.strip() for cell in line.split("|")[len(keys) + 1 : -1]]


def test_declared_comparisons_average_over_problems() -> None:
    names = [method.name for method in DELAY.methods]
    # Twice and half the regret, so that the mean of logarithms over both is that of `LEVELS`.
    text = markdown(
        DELAY,
        {
            "a": {name: late(name, 2.0) for name in names},
            "b": {name: late(name, 0.5) for name in names},
        },
    )
    found = declared(text, "primary", "ucb_sdf", "ucb")
    assert found[:2] == ["8", "-50 %"]
    # All eight of one sign: 2 / 2^8, in four comparisons.
    assert found[3:5] == ["0.031", "better"]
    assert found[6] == "-50 %"
    assert declared(text, "primary", "ucb_default", "ucb_sdf")[4] == "equivalent"
    found = declared(text, "primary", "ucb_default", "qlogei_pending")
    assert (found[1], found[4], found[6]) == ("+100 %", "worse", "+100 %")
    assert declared(text, "secondary", "ts_sdf", "ts")[4] == "equivalent"
    assert declared(text, "secondary", "ts", "qlogei_pending")[1] in ("+199 %", "+200 %", "+201 %")


def test_no_pair_of_methods_is_declared_twice() -> None:
    lines = markdown(DELAY, {"a": {m.name: late(m.name) for m in DELAY.methods}}).splitlines()
    pairs = [
        frozenset(cell.strip() for cell in line.split("|")[2:4])
        for line in lines
        if line.startswith(("| primary |", "| secondary |"))
    ]
    assert len(pairs) == len(set(pairs)) == 17
    assert all(len(pair) == 2 for pair in pairs)


def test_a_regret_of_next_to_nothing_counts_as_the_floor() -> None:
    assert log_simple_regret(result("x", 0, [9.0, 0.0, 0.0], [1.0])) == math.log(FLOOR)
    assert log_simple_regret(result("x", 0, [9.0, 0.5, 1.5], [1.0])) == 0.0
    assert log_cumulative_regret(result("x", 0, [9.0, 0.0], [1.0, 3.0])) == math.log(3.0)


def test_published_means_stand_beside_ours() -> None:
    runs = {"ucb_sdf": [result("ucb_sdf", s, [1.0], [0.0], 0.75 + 0.01 * s) for s in range(3)]}
    text = markdown(TOY_SUITE, {"svm_poisson": runs, "svm_fixed": runs})
    # The interval reaches 4.303 standard errors, 0.01 / sqrt(3), to each side.
    row = "| svm_poisson | ucb_sdf | 3 | 0.76 ± 0.0058 | 0.735 to 0.785 | 0.757 ± 0.0075 | 0.003 |"
    assert row in text
    assert (
        "| svm_fixed | ucb_sdf | 3 | 0.76 ± 0.0058 | 0.735 to 0.785 | 0.764 ± 0.0015 | -0.004 |"
        in text
    )


def test_figure_has_a_panel_per_problem() -> None:
    contexts = {"ucb": [result("ucb", s, (), [0.0, 1.0, 4.0]) for s in range(2)]}
    figure = delay_figure({"toy": BY_METHOD, "contexts": contexts})
    first, second = figure.axes
    assert first.get_title() == "toy"
    assert first.get_ylabel() == "simple regret, arrived"
    assert len(first.lines) == 5
    assert np.asarray(first.lines[0].get_ydata()).tolist() == [9.0, 4.0]
    assert second.get_ylabel() == "cumulative regret, all"
    assert np.asarray(second.lines[0].get_ydata()).tolist() == [0.0, 1.0, 4.0]


def test_a_strategy_needs_a_model() -> None:
    strategy = method_named("ucb").start(toy(FixedDelay(1.0)), torch.zeros(2, 1))
    model: Model = SingleTaskGP(GRID, hat(GRID).unsqueeze(-1))
    with pytest.raises(ValueError, match="fitted"):
        strategy.acquisition_function(model, ledger_with_pending(), GRID)

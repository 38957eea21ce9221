"""The loop with contexts, the methods of suite `robust` and its report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.config import describe
from benchmarks.framework.markdown import interval
from benchmarks.framework.rbf_surrogate import RefittedRBF
from benchmarks.framework.report import collect, markdown, write_report
from benchmarks.framework.result import Result, replicate_config
from benchmarks.framework.result_store import ResultStore
from benchmarks.framework.runner import Summary, run_suite
from benchmarks.framework.suite import Suite
from benchmarks.robust import methods as robust_methods
from benchmarks.robust import report as robust_report
from benchmarks.robust.methods import BETA, RobustBO, Situation, compared, grid
from benchmarks.robust.replicate import (
    ContextualTask,
    History,
    reference_contexts,
    replicate,
    tasks,
)
from benchmarks.robust.report import RobustReport, robust_figure
from benchmarks.suites import get_suite
from botorch_calib.test_functions import ContextShift, ModifiedBranin, ThreeHumpCamel
from tests.benchmarks.results import result_with

CAMEL = ContextualTask("camel", ThreeHumpCamel, num_rounds=4, num_initial=2)


@dataclass(frozen=True)
class Scripted:
    """Makes given decisions in turn, and notes what it is told."""

    name: str = "scripted"
    path: tuple[float, ...] = (0.0,)

    def start(self, task: ContextualTask, problem: Any) -> ScriptedStrategy:
        strategy = ScriptedStrategy(self.path, problem.num_decisions)
        STARTED.append(strategy)
        return strategy


@dataclass
class ScriptedStrategy:
    path: tuple[float, ...]
    num_decisions: int
    seen: list[History] = field(default_factory=list)

    def fit(self, history: History, step: int) -> Any:
        assert step == len(self.seen)
        self.seen.append(history)

    def propose(self, model: Any, history: History) -> Tensor:
        value = self.path[(len(self.seen) - 1) % len(self.path)]
        return torch.full((self.num_decisions,), value, dtype=torch.double)


STARTED: list[ScriptedStrategy] = []


def without_times(result: Result) -> Result:
    return replace(result, fit_seconds=[], acquisition_seconds=[])


# ---------------------------------------------------------------------------- the loop


def camel(x: float, c: float) -> float:
    return -(2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * c + c**2)


def test_replicate_by_hand() -> None:
    result = replicate(CAMEL, Scripted(path=(0.0, 1.0, -0.5, 0.0)), seed=0)
    X = np.array(result.X)
    assert X.shape == (6, 2)
    assert X[2:, 0].tolist() == [0.0, 1.0, -0.5, 0.0]
    assert result.f == pytest.approx([camel(x, c) for x, c in X])
    noise = np.subtract(result.y, result.f)
    assert 0.0 < abs(noise).max() < 0.05
    # In expectation, x c + c^2 is 1/3 in place of whatever was drawn.
    expected = [camel(x, 0.0) - 1 / 3 for x in X[2:, 0]]
    regret = [-1 / 3 - value for value in expected]
    assert result.extras["expected"] == pytest.approx(expected)
    assert result.extras["regret"] == pytest.approx(regret)
    assert result.extras["cumulative_regret"] == pytest.approx(np.cumsum(regret))
    assert regret[1] > 1.0
    assert len(result.fit_seconds) == len(result.acquisition_seconds) == 4
    assert Result.from_json(result.to_json()) == result


def test_a_method_sees_the_past_and_nothing_else() -> None:
    result = replicate(CAMEL, Scripted(), seed=1)
    for step, history in enumerate(STARTED[-1].seen):
        known = CAMEL.num_initial + step
        assert history.X.tolist() == result.X[:known]
        assert history.Y.squeeze(-1).tolist() == result.y[:known]
        assert history.contexts.tolist() == [x[1:] for x in result.X[:known]]
        assert history.radius == pytest.approx(0.3 / math.sqrt(known))


def test_with_a_reference_distribution_methods_are_given_that() -> None:
    (task,) = (task for task in tasks() if task.reference)
    replicate(replace(task, num_rounds=2), Scripted(), seed=0)
    reference = ContextShift().reference_distribution(64)
    for history in STARTED[-1].seen:
        assert torch.equal(history.contexts, reference.points)
        assert history.radius == 0.1
    with pytest.raises(ValueError, match="no reference"):
        replicate(replace(CAMEL, reference=True), Scripted(), 0)
    assert reference_contexts(CAMEL, ThreeHumpCamel()) is None


def test_methods_of_one_seed_share_initial_points_contexts_and_noise() -> None:
    one, two = (replicate(CAMEL, Scripted(path=path), 3) for path in [(0.0,), (0.7,)])
    assert one.X[:2] == two.X[:2]
    assert [x[1] for x in one.X] == [x[1] for x in two.X]
    noise = [np.subtract(result.y, result.f) for result in (one, two)]
    assert noise[0] == pytest.approx(noise[1])
    other = replicate(CAMEL, Scripted(), 4)
    assert [x[1] for x in one.X] != [x[1] for x in other.X]
    assert one.X[0][0] != other.X[0][0]
    assert np.subtract(other.y, other.f) != pytest.approx(noise[0])


def test_replicate_is_deterministic_and_leaves_the_random_state_alone() -> None:
    method = quick("sbo_kde")
    before = torch.random.get_rng_state()
    first = replicate(CAMEL, method, 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    assert without_times(replicate(CAMEL, method, 3)) == without_times(first)
    assert replicate(CAMEL, method, 4).X != first.X


def test_decisions_of_the_wrong_width_are_refused() -> None:
    task = replace(CAMEL, build=ModifiedBranin)
    strategy = Scripted().start(task, ModifiedBranin())
    strategy.num_decisions = 1

    @dataclass(frozen=True)
    class Wrong:
        name: str = "wrong"

        def start(self, task: ContextualTask, problem: Any) -> ScriptedStrategy:
            return strategy

    with pytest.raises(ValueError, match="2 decisions"):
        replicate(task, Wrong(), 0)


# ---------------------------------------------------------------------------- the methods


def method_named(name: str) -> RobustBO:
    (found,) = (method for method in compared() if method.name == name)
    return found


def quick(name: str) -> RobustBO:
    return replace(method_named(name), num_restarts=2, raw_samples=8, maxiter=5)


SAMPLES = torch.tensor([[0.2, 0.4], [0.3, 0.8], [0.6, 0.5], [0.7, 0.1]], dtype=torch.double)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def history(radius: float = 0.1) -> History:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(12, 4, dtype=torch.double, generator=generator)
    return History(X, ModifiedBranin()(X).unsqueeze(-1), SAMPLES, radius)


def bound(gp: SingleTaskGP, x: Tensor, contexts: Tensor) -> Tensor:
    """The upper confidence bound at ``x`` in each context, by BoTorch."""
    joint = torch.cat([x.expand(len(contexts), -1), contexts], dim=-1)
    with torch.no_grad():
        return UpperConfidenceBound(gp, beta=BETA)(joint.unsqueeze(-2))


def value_and_gp(name: str, at: Tensor, radius: float = 0.1) -> tuple[float, SingleTaskGP]:
    """The acquisition function of a method at the decisions ``at``, and its process."""
    known = history(radius)
    strategy = method_named(name).start(replace(CAMEL, build=ModifiedBranin), ModifiedBranin())
    torch.manual_seed(0)
    gp = strategy.fit(known, 0)
    acquisition = strategy.acquisition_function(gp, known)
    with torch.no_grad():
        return acquisition(at.reshape(1, 1, -1)).item(), gp


AT = torch.tensor([0.3, 0.6], dtype=torch.double)


def test_grid() -> None:
    points = grid(torch.tensor([[0.0, -1.0], [1.0, 1.0]], dtype=torch.double), 9)
    assert len(points) == 9
    assert points[0].tolist() == [0.0, -1.0]
    assert points[-1].tolist() == [1.0, 1.0]
    assert points[1].tolist() == [0.0, 0.0]
    assert grid(UNIT[:, :1], 5).flatten().tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_distributions_of_the_samples() -> None:
    situation = Situation(SAMPLES, UNIT, 0.1)
    snapped = situation.gridded(9)
    kept = snapped.points[snapped.weights > 0]
    # (0.2, 0.4) -> (0, 0.5), (0.3, 0.8) -> (0.5, 1), (0.6, 0.5) -> (0.5, 0.5), (0.7, 0.1) -> ...
    assert kept.tolist() == [[0.0, 0.5], [0.5, 0.0], [0.5, 0.5], [0.5, 1.0]]
    assert snapped.weights.sum().item() == pytest.approx(1.0)
    extended = situation.with_candidates(9)
    assert extended.num_points == 13
    assert (extended.weights > 0).sum() == 4
    torch.testing.assert_close(extended.mean, SAMPLES.mean(dim=0))
    smoothed = situation.smoothed()
    assert ((smoothed.points >= 0) & (smoothed.points <= 1)).all()


def test_empirical_risk_is_the_mean_of_the_bound() -> None:
    value, gp = value_and_gp("erbo", AT)
    assert value == pytest.approx(bound(gp, AT, SAMPLES).mean().item(), rel=1e-6)


def test_wdrbo_subtracts_the_largest_gradient_over_the_draws() -> None:
    value, gp = value_and_gp("wdrbo", AT, radius=0.25)
    torch.manual_seed(0)
    method_named("wdrbo").start(CAMEL, ModifiedBranin()).fit(history(), 0)
    draws = torch.rand(100, 2, dtype=torch.double).requires_grad_()
    joint = torch.cat([AT.expand(100, -1), draws], dim=-1)
    values = UpperConfidenceBound(gp, beta=BETA)(joint.unsqueeze(-2))
    (gradient,) = torch.autograd.grad(values.sum(), draws)
    expected = bound(gp, AT, SAMPLES).mean() - 0.25 * gradient.norm(dim=-1).max()
    assert value == pytest.approx(expected.item(), rel=1e-6)


def test_gp_ucb_ignores_contexts() -> None:
    value, gp = value_and_gp("gp_ucb", AT)
    assert gp.train_inputs[0].shape[-1] == 2
    with torch.no_grad():
        posterior = gp.posterior(AT.unsqueeze(0))
    expected = posterior.mean + 1.5 * posterior.variance.sqrt()
    assert value == pytest.approx(expected.item(), rel=1e-8)


def test_stable_opt_takes_the_worst_of_the_box() -> None:
    value, gp = value_and_gp("stable_opt", AT)
    mean, std = SAMPLES.mean(dim=0), SAMPLES.std(dim=0, correction=0)
    axes = [torch.linspace(m - s, m + s, 6).double() for m, s in zip(mean, std, strict=True)]
    box = torch.cartesian_prod(*axes)
    assert value == pytest.approx(bound(gp, AT, box).min().item(), rel=1e-5)


@pytest.mark.parametrize("name", ["wdrbo", "wdrbo_exact", "drbo_kde", "drbo_mmd_minimax"])
def test_balls_of_radius_zero_are_their_centres(name) -> None:
    centre = {"drbo_kde": "sbo_kde", "wdrbo": "erbo", "wdrbo_exact": "erbo"}
    value, gp = value_and_gp(name, AT, radius=0.0)
    if name in centre:
        expected, _ = value_and_gp(centre[name], AT)
    else:
        contexts = Situation(SAMPLES, UNIT, 0.0).gridded(robust_methods.MINIMAX_POINTS)
        expected = (bound(gp, AT, contexts.points) @ contexts.weights).item()
    assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["wdrbo", "wdrbo_exact", "drbo_kde", "drbo_mmd"])
def test_larger_balls_are_worse(name) -> None:
    values = [value_and_gp(name, AT, radius=radius)[0] for radius in (0.0, 0.05, 0.2)]
    assert values[0] > values[1] > values[2]


def test_exact_ball_is_between_the_lipschitz_bound_and_the_expectation() -> None:
    exact, gp = value_and_gp("wdrbo_exact", AT)
    expected, _ = value_and_gp("erbo", AT)
    contexts = torch.cartesian_prod(*[torch.linspace(0, 1, 40).double()] * 2).requires_grad_()
    joint = torch.cat([AT.expand(1600, -1), contexts], dim=-1)
    values = UpperConfidenceBound(gp, beta=BETA)(joint.unsqueeze(-2))
    (gradient,) = torch.autograd.grad(values.sum(), contexts)
    assert expected - 0.1 * gradient.norm(dim=-1).max().item() <= exact < expected


@pytest.mark.parametrize("name", [method.name for method in compared()])
@pytest.mark.parametrize("build", [ThreeHumpCamel, ModifiedBranin])
def test_methods_run(name, build) -> None:
    task = replace(CAMEL, build=build, num_rounds=2, num_initial=4)
    result = replicate(task, quick(name), 0)
    problem = build()
    chosen = torch.tensor(result.X)[:, : problem.num_decisions]
    lower, upper = problem.decision_bounds
    assert chosen.shape == (6, problem.num_decisions)
    assert ((chosen >= lower) & (chosen <= upper)).all()
    assert min(float(value or 0.0) for value in result.extras["regret"]) >= 0.0


def test_the_choice_is_a_maximum() -> None:
    known = history()
    strategy = method_named("erbo").start(replace(CAMEL, build=ModifiedBranin), ModifiedBranin())
    gp = strategy.fit(known, 0)
    acquisition = strategy.acquisition_function(gp, known)
    torch.manual_seed(0)
    x = strategy.propose(gp, known)
    with torch.no_grad():
        others = acquisition(grid(UNIT, 1600).unsqueeze(-2))
        assert acquisition(x.reshape(1, 1, -1)).item() >= others.max().item() - 1e-6


# ---------------------------------------------------------------------------- the suite


def test_the_suite_is_that_of_the_protocol() -> None:
    suite = get_suite("robust")
    assert [method.name for method in suite.methods] == [
        "wdrbo",
        "wdrbo_exact",
        "erbo",
        "gp_ucb",
        "sbo_kde",
        "drbo_kde",
        "drbo_mmd",
        "drbo_mmd_minimax",
        "stable_opt",
    ]
    assert [task.name for task in tasks()] == [
        "context_shift",
        "ackley",
        "hartmann6",
        "branin",
        "camel",
        "newsvendor",
    ]
    assert suite.seeds == range(10000, 10015)
    assert suite.baseline == "erbo"
    for task in tasks():
        assert task.num_rounds == 100
        assert (task.radius, task.radius_shrinks) == (
            (0.1, False) if task.reference else (0.3, True)
        )
        assert task.reference == (task.name == "context_shift")
        assert task.surrogate == RefittedRBF(every=1)


def test_configurations_of_other_suites_are_unchanged() -> None:
    config = replicate_config(SMOKE.problems[0], SMOKE.methods[0])
    assert len(config["problem"]) == 9
    for name in ("smoke", "delay", "locbo"):
        suite = get_suite(name)
        assert "radius" not in str(replicate_config(suite.problems[0], suite.methods[0]))


def test_the_configuration_names_settings() -> None:
    config = describe(tasks()[0])
    assert config["radius"] == 0.1
    assert config["build"]["callable"].endswith("ContextShift")
    assert describe(method_named("wdrbo"))["acquisition"]["callable"].endswith("wasserstein")


# ---------------------------------------------------------------------------- the report


TOY_SUITE: Suite[Any, Any] = Suite(
    name="toys",
    problems=(CAMEL, replace(CAMEL, name="camels")),
    methods=(Scripted("erbo", (0.5,)), Scripted("wdrbo", (0.1,)), Scripted("gp_ucb", (0.9,))),
    baseline="erbo",
    replicate=replicate,
    report=RobustReport(),
)


def test_a_suite_runs_resumes_and_is_reported(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    assert run_suite(TOY_SUITE, store, [0], progress=False) == Summary(finished=6)
    resumed = run_suite(TOY_SUITE, store, [0, 1, 2], progress=False)
    assert resumed == Summary(finished=12, skipped=6)
    text = write_report(TOY_SUITE, store, tmp_path / "t", tmp_path / "f")
    assert (tmp_path / "t" / "toys.md").read_text() == text
    assert (tmp_path / "f" / "toys.png").stat().st_size > 0
    assert "## camels" in text
    collected, unfit = collect(TOY_SUITE, store)
    assert unfit == 0
    assert [len(results) for results in collected["camel"].values()] == [3, 3, 3]


def result(method: str, seed: int, regrets: Sequence[float], seconds: float = 1.0) -> Result:
    """A result with the given regrets; what the report ignores is empty."""
    extras: dict[str, list[float | None]] = {
        "regret": list(regrets),
        "cumulative_regret": [*np.cumsum(regrets).tolist()],
    }
    return result_with(
        problem="toy",
        method=method,
        seed=seed,
        fit_seconds=[0.25 * seconds] * len(regrets),
        acquisition_seconds=[0.75 * seconds] * len(regrets),
        extras=extras,
    )


def toy_results() -> dict[str, list[Result]]:
    """Regrets of two rounds: 3 + seed for the baseline, one less for the other method."""
    return {
        "erbo": [result("erbo", seed, [2.0 + seed, 1.0]) for seed in range(8)],
        "wdrbo": [result("wdrbo", seed, [1.0 + seed, 1.0 + 0.01 * seed], 2.0) for seed in range(8)],
    }


def test_late_regret_is_that_of_the_last_rounds() -> None:
    run = result("erbo", 0, [5.0] * 30 + [1.0] * 10 + [2.0] * 10)
    assert robust_report.late_regret(run) == 1.5
    assert robust_report.cumulative_regret(run) == 180.0


def test_tables() -> None:
    suite = replace(TOY_SUITE, problems=(replace(CAMEL, name="toy"),))
    lines = markdown(suite, {"toy": toy_results()}).splitlines()
    erbo, own = ([line for line in lines if line.startswith(f"| {m} |")] for m in ("erbo", "wdrbo"))
    assert erbo[0].split(" | ")[1:] == ["2", "1.00 x |"]
    assert own[0].split(" | ")[1:] == ["4", "2.00 x |"]
    cells = own[1].split(" | ")
    totals = np.array([2.0 + 1.01 * seed for seed in range(8)])
    assert cells[1:4] == ["8", f"{totals.mean():.3g}", interval(totals.tolist(), ".3g")]
    logs = np.log(totals / (3.0 + np.arange(8)))
    reach = 2.3646 * logs.std(ddof=1) / math.sqrt(8)
    low, mean, high = (100 * math.expm1(logs.mean() + side * reach) for side in (-1, 0, 1))
    assert cells[4:6] == [f"{mean:+.0f} %", f"{low:+.0f} to {high:+.0f} %"]
    # Two rounds are all there are.
    assert cells[6].startswith(f"{np.mean([1.0 + 0.505 * seed for seed in range(8)]):.3g}")
    assert cells[7:] == ["0.5", "1.5", "4 |"]
    assert erbo[1].split(" | ")[4:6] == ["–", "–"]


def test_the_primary_comparisons() -> None:
    suite = replace(TOY_SUITE, problems=(replace(CAMEL, name="toy"),))
    section = markdown(suite, {"toy": toy_results()}).split("## Primary comparisons")[1]
    (row,) = (line for line in section.split("##")[0].splitlines() if line.startswith("| toy |"))
    cells = row.split(" | ")
    assert cells[1:3] == ["wdrbo", "8"]
    # The exact test of 8 differences of one sign, times the three comparisons that are declared.
    assert cells[5] == f"{3 * 2 / 2**8:.2g}"


def test_interval_by_hand() -> None:
    # Mean 2, standard error 1 / sqrt(3), t quantile with 2 degrees of freedom 4.303.
    assert interval([1.0, 2.0, 3.0], ".3g") == "-0.484 to 4.48"
    assert interval([1.0], ".3g") == "–"


def test_report_without_the_baseline_or_with_one_seed() -> None:
    only = {"toy": {"wdrbo": toy_results()["wdrbo"]}}
    assert "| wdrbo | 8 | 5.54 |" in markdown(TOY_SUITE, only)
    single = {"toy": {name: runs[:1] for name, runs in toy_results().items()}}
    assert "| wdrbo | 1 | 2 | – | -33 % | – |" in markdown(TOY_SUITE, single)
    assert len(robust_figure(single).axes) == 1

"""Suite `bbob_constrained`: its functions come from COCO, and its starting points are safe."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from benchmarks.decisions.bbob_constrained import (
    CASES,
    CocoReplicate,
    InstanceTask,
    start_value,
    tasks,
)
from benchmarks.decisions.oracle_report import OracleReport
from benchmarks.decisions.suites import BBOB_CONSTRAINED
from benchmarks.decisions.tasks import Search, cube
from benchmarks.framework.runner import without_expected_warnings

cocoex = pytest.importorskip("cocoex")

TASKS = {task.name: task for task in tasks()}
TASK = TASKS["bbob_three_2d"]
PLAIN = next(method for method in BBOB_CONSTRAINED.methods if method.name == "plain")


def coco(function: int, dim: int, instance: int) -> Any:
    """The problem from COCO's whole suite, by its index."""
    suite = cocoex.Suite("bbob-constrained", f"instances: {instance}", "")
    return suite.get_problem(f"bbob-constrained_f{function:03d}_i{instance:02d}_d{dim:02d}")


@pytest.mark.parametrize("family", [0, 4, 8])
@pytest.mark.parametrize(
    ("case", "function", "dim", "num_constraints"),
    [("one_2d", 1, 2, 1), ("one_5d", 1, 5, 1), ("three_2d", 2, 2, 3), ("three_5d", 2, 5, 3)],
)
def test_values_are_those_of_coco(
    case: str, function: int, dim: int, num_constraints: int, family: int
) -> None:
    instance = TASKS[f"bbob_{case}"].instance(family, 3)
    problem = coco(function + 6 * family, dim, 3)
    assert problem.number_of_constraints == num_constraints == len(instance.outcome.parts)
    U = cube(dim, 64, seed=1)
    X = (10.0 * U - 5.0).numpy()
    negative = np.array([-problem(x) for x in X])
    np.testing.assert_allclose(instance.objective.raw(U).squeeze(-1), negative, rtol=1e-12)
    constraints = np.array([problem.constraint(x) for x in X])
    for part, values in zip(instance.outcome.parts, constraints.T, strict=True):
        np.testing.assert_allclose(part.surface.raw(U).squeeze(-1), values, rtol=1e-12)
        # It is only divided by its spread, so it holds where COCO's constraint holds.
        assert part.limit == 0.0
        assert ((part.surface(U) <= 0.0).squeeze(-1).numpy() == (values <= 0.0)).all()
    # The order of objective values is COCO's.
    assert instance.objective(U).argmax().item() == negative.argmax()


def test_functions_have_unit_spread_over_the_box() -> None:
    instance = TASK.instance(3, 1)
    U = cube(2, 2**12, seed=5)
    objective = instance.objective(U)
    assert objective.mean().item() == pytest.approx(0.0, abs=0.01)
    assert objective.std().item() == pytest.approx(1.0, abs=0.01)
    for part in instance.outcome.parts:
        assert part.surface(U).std().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_a_seed_has_the_first_instance_whose_start_is_safe(seed: int) -> None:
    chosen = TASK.drawn(seed)
    for number in range(100 * seed + 1, 100 * seed + 100):
        problem = coco(6 * seed % 54 + 2, 2, number)
        start = problem.initial_solution
        constraints = np.array(problem.constraint(start))
        assert (constraints <= 0.0).all()
        X = 10.0 * cube(2, 2**12, seed=0).numpy() - 5.0
        spreads = np.std([problem.constraint(x) for x in X], axis=0, ddof=1)
        kept = norm.cdf(-constraints / (0.3 * spreads)).prod()
        if kept >= 0.9:
            break
    np.testing.assert_allclose(10.0 * np.array(chosen.start) - 5.0, start, rtol=1e-12)
    at = torch.tensor([chosen.start], dtype=torch.double)
    assert chosen.outcome.violation_probability(at, 0.0).item() == pytest.approx(1.0 - kept)


def test_constraints_are_seen_through_noise_of_the_stated_size() -> None:
    instance = TASK.drawn(7)
    at = torch.tensor([instance.start], dtype=torch.double)
    torch.manual_seed(0)
    num = 20000
    seen = instance.outcome.observe(at.expand(num, -1), time=0.0)
    truth = torch.cat([part.surface(at) for part in instance.outcome.parts], dim=-1)
    # Five standard errors.
    torch.testing.assert_close(
        seen.mean(dim=0), truth[0], rtol=0.0, atol=5 * 0.3 / num**0.5, check_stride=False
    )
    deviations = torch.full((3,), 0.3, dtype=torch.double)
    torch.testing.assert_close(
        seen.std(dim=0), deviations, rtol=0.0, atol=5 * 0.3 / (2 * num) ** 0.5
    )


def short(seed: int) -> InstanceTask:
    return replace(TASK.drawn(seed), num_rounds=2, search=Search(64, 32))


def test_a_run_begins_at_the_start_and_depends_on_its_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.decisions.tasks.SEARCH_POINTS", 2**8)
    with without_expected_warnings():
        first, again, other = (CocoReplicate(short(s), PLAIN, s).run() for s in (7, 7, 8))
    assert len(first.X) == 8 + 2
    assert tuple(first.X[0]) == TASK.drawn(7).start
    assert (first.X, first.y, first.extras) == (again.X, again.y, again.extras)
    assert other.X[0] != first.X[0]


def test_the_objective_is_fitted_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CocoReplicate(short(7), PLAIN, 7)
    with without_expected_warnings(), run.choosing(0):
        model = run.fit(0)
        expected = TASK.surrogate(run.X, run.objectives, run.bounds, 0, None).eval()
    X = cube(2, 5, seed=3)
    torch.testing.assert_close(
        model.objective.posterior(X).mean, expected.posterior(X).mean, rtol=1e-4, atol=1e-4
    )


def test_seeds_have_all_families_equally_often() -> None:
    families = [seed % 9 for seed in BBOB_CONSTRAINED.seeds]
    assert len(TASKS) == len(CASES) == 4
    assert {families.count(family) for family in range(9)} == {2}


def test_gains_over_the_start_are_shares_of_the_oracles() -> None:
    seeds, start = (25000, 25001), TASK.drawn(25000).start
    values = [start_value(TASK, seed) for seed in seeds]
    at = torch.tensor([start], dtype=torch.double)
    assert values[0] == pytest.approx(TASK.drawn(25000).objective(at).item(), rel=1e-12)

    def run(seed: int, gain: float) -> Any:
        reward = start_value(TASK, seed) + gain
        return SimpleNamespace(seed=seed, extras={"mean_reward": [reward]})

    runs = {
        "plain": [run(s, gain) for s, gain in zip(seeds, (1.0, 2.0), strict=True)],
        "oracle": [run(s, gain) for s, gain in zip(seeds, (2.0, 4.0), strict=True)],
    }
    report = BBOB_CONSTRAINED.report
    assert isinstance(report, OracleReport)
    plain, oracle = report._gains(TASK, runs)
    assert plain == [TASK.name, "plain", "2", "1.500", "50", "50 to 50"]
    assert oracle[4] == "100"

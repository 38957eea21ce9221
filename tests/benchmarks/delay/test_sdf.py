"""Suites `sdf_*`: what differs and is compared, and the report by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.delay import sdf_published
from benchmarks.delay.replicate import DelayedTask, replicate
from benchmarks.delay.report import cumulative_regret_all, mean_simple_regret
from benchmarks.delay.sdf_report import SdfReport, means, share_of_new_points
from benchmarks.delay.value_tables import TableEvaluator
from benchmarks.framework.archive import Entry
from benchmarks.framework.collected import Run
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.rbf_surrogate import RawRBF, hyperparameters
from benchmarks.framework.result import Result
from benchmarks.suites import get_suite
from botorch_calib.ledger import FeedbackLedger
from tests.benchmarks.results import result_with

PUBLISHED, SWEEPS = get_suite("sdf_published"), get_suite("sdf_sweeps")
HYPERPARAMETERS = get_suite("sdf_hyperparameters")
CONTEXTS = get_suite("sdf_contexts")
TASKS = get_suite("sdf_tasks")
METHODS = {method.name: method for method in sdf_published.compared()}
GRID = torch.linspace(0.0, 1.0, 11, dtype=torch.double).unsqueeze(-1)


def test_what_is_compared_is_run() -> None:
    suites: list[Any] = [PUBLISHED, HYPERPARAMETERS, CONTEXTS, TASKS, SWEEPS]
    for suite in suites:
        runs = {Run(p.name, m.name) for p in suite.problems for m in suite.methods}
        primary = suite.report.primary
        assert len(set(primary)) == len(primary)
        assert {run for pair in primary for run in pair} <= runs


def test_censoring_at_zero_is_censoring_at_the_prior_mean_of_the_raw_process() -> None:
    ledger = FeedbackLedger(1, censor_value=0.0)
    for x, y in ((0.1, 0.7), (0.5, 0.6), (0.9, 0.75)):
        ledger.observe(ledger.submit([x]), y)
    ledger.submit([0.3])
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    values = []
    for name in ("ucb_sdf", "ucb_sdf_prior"):
        strategy = METHODS[name].start(sdf_published.contextual_tasks()[1], bounds)
        model: Any = strategy.fit(ledger, 0)
        assert strategy.gp is not None and hyperparameters(strategy.gp).mean == 0.0
        acquisition: Any = strategy.acquisition_function(model, ledger, GRID)
        sigma = model.posterior(ledger.pending().unsqueeze(-2)).variance.sum().sqrt()
        # Outcomes are not standardised, so the bound of feedback in [0, 1] is 1.
        assert acquisition.nu.item() == pytest.approx(1.0 + sigma.item())
        with torch.no_grad():
            values.append(acquisition(GRID.unsqueeze(-2)))
    assert torch.equal(*values)


def test_the_control_shares_the_hyperparameters_and_nothing_else() -> None:
    # No seed of the suite that the question came from.
    assert not set(HYPERPARAMETERS.seeds) & set(PUBLISHED.seeds)
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(12, 1, dtype=torch.double, generator=generator)
    ledger = FeedbackLedger(1, censor_value=0.0)
    for number, x in enumerate(X):
        trial = ledger.submit(x)
        if number < 9:
            ledger.observe(trial, 0.7 + 0.1 * math.sin(6.0 * x.item()))
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    control, script = (
        method.start(HYPERPARAMETERS.problems[0], bounds) for method in HYPERPARAMETERS.methods
    )
    models: list[Any] = [strategy.fit(ledger, 0) for strategy in (control, script)]
    assert control.gp is not None and script.gp is not None
    assert hyperparameters(control.gp) == hyperparameters(script.gp)
    # The control's posterior is that of the nine values, with nu = 1.
    assert len(models[0].conditioned_model.train_targets) == 9
    assert len(models[1].conditioned_model.train_targets) == 12
    assert control.acquisition_function(models[0], ledger, GRID).nu == 1.0
    assert script.acquisition_function(models[1], ledger, GRID).nu > 1.0


def wave(seed: int) -> TableEvaluator:
    return TableEvaluator(GRID, 0.7 + 0.1 * (6.0 * GRID[:, 0]).sin())


def short(surrogate: Any) -> DelayedTask:
    """A run of the raw or of our process in no time."""
    full = sdf_published.svm_tasks()[0]
    objective = replace(full.objective, build=wave, bounds=((0.0, 1.0),))
    return replace(full, objective=objective, num_rounds=14, surrogate=surrogate)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_runs_and_its_archive_suffices_for_the_report(name) -> None:
    run = replicate(short(RawRBF()), METHODS[name], 1000)
    # Measured times would differ from call to call, and now and then in the last digit shown.
    raw = [replace(run, fit_seconds=[0.5] * 14, acquisition_seconds=[0.25] * 14)]
    kept = [Entry.of(result, PUBLISHED.archive).result() for result in raw]
    rows = [means({"svm_poisson": {name: runs}}) for runs in (raw, kept)]
    assert rows[0] == rows[1]
    report = SdfReport(mean_simple_regret, ((Run("x", "ucb"), Run("x", "ucb")),))
    collected = {"svm_poisson": {method: kept for method in METHODS}}
    lines = report.lines(PUBLISHED, collected)
    assert "## Beside the published means" in lines
    assert len(report.figure(collected).axes) == 1


def fake(problem: str, method: str, seed: int, every: Sequence[float]) -> Result:
    return result_with(
        problem=problem,
        method=method,
        seed=seed,
        num_initial=1,
        X=[[0.5], [0.5], [0.1], [0.1], [0.2], [0.5]],
        extras={"cumulative_regret_all": list(every), "cumulative_regret": list(every)},
        fit_seconds=[0.5, 1.5],
        acquisition_seconds=[1.0],
    )


def test_report_by_hand(tmp_path: Path) -> None:
    regrets = {"ucb": (4.0, 2.0), "ucb_hallucinate": (1.0, 1.0), "ucb_sdf": (2.0, 1.0)}
    collected = {
        "contexts_ours": {
            method: [fake("contexts_ours", method, seed, [0.0, r]) for seed, r in enumerate(pair)]
            for method, pair in regrets.items()
        }
    }
    report = SdfReport(cumulative_regret_all, sdf_published.PRIMARY)
    text = "\n".join(report.lines(PUBLISHED, collected))
    first = "ucb_sdf on contexts_ours"
    # Half in both seeds: a difference that is the same everywhere has a width of zero.
    row = f"| primary | {first} | ucb on contexts_ours | 2 | -50 % | -50 to -50 % |"
    assert row in text
    # Twice and as much: the geometric mean is 1.41.
    assert f"| secondary | {first} | ucb_hallucinate on contexts_ours | 2 | +41 % |" in text
    # Two of the five points are new: the first one was among the initial ones.
    assert share_of_new_points(collected["contexts_ours"]["ucb"][0]) == 40.0
    assert "| contexts_ours | ucb | 2 | – | – | 3 ± 1 | 3 ± 1 | 40 ± 0 | 3 |" in text
    assert f"verdict (margin {100 * math.expm1(margin_of(PUBLISHED)):.0f} %)" in text
    assert "published means" not in text
    report.figure(collected).savefig(tmp_path / "figure.png")


def test_the_figure_of_the_sweeps_is_by_mean_delay_and_by_m() -> None:
    # The first is that of the initial points.
    every = {1: [9.0, 1.0, 3.0], 2: [9.0, 4.0, 4.0], 3: [9.0, 16.0, 16.0]}
    collected = {
        task.name: {
            "ucb": [
                result_with(task.name, "ucb", seed, extras={"simple_regret": regrets})
                for seed, regrets in every.items()
                if task.name != "mean_10_m_5"
            ]
        }
        for task in SWEEPS.problems
    }
    by_mean, by_wait = SWEEPS.report.figure(collected).axes
    ticks = [[label.get_text() for label in p.get_xticklabels()] for p in (by_mean, by_wait)]
    assert ticks == [["2", "5", "10", "20"], ["5", "10", "20", "40"]]
    # The geometric mean of 2, 4 and 16.
    (drawn,) = by_mean.containers
    assert drawn[0].get_ydata() == pytest.approx([128.0 ** (1 / 3)] * 4)
    (drawn,) = by_wait.containers
    assert math.isnan(drawn[0].get_ydata()[0])

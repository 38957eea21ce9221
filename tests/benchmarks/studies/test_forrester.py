"""The study on Forrester's function: its problem, its bounds and what it counts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError

from benchmarks.framework.result import Result
from benchmarks.framework.sequential import replicate
from benchmarks.studies import forrester
from benchmarks.studies.forrester import MINIMUM, OPTIMUM, STUDY, NoiseFreeRbf

BOUNDS = torch.tensor([[0.0], [1.0]], dtype=torch.double)
X = torch.tensor([[0.05], [0.3], [0.5]], dtype=torch.double)


def objective(x: float) -> float:
    """Minus Forrester's function, written out once more."""
    return -((6 * x - 2) ** 2) * math.sin(12 * x - 4)


Y = torch.tensor([[objective(x)] for x in X.flatten().tolist()], dtype=torch.double)


def result(points: list[float], pits: list[float] | None = None, **extras: Any) -> Any:
    """What the report reads of a run from one initial point, at 0."""
    pits = [0.5] * len(points) if pits is None else pits
    values = [objective(x) for x in [0.0, *points]]
    best = [max(range(n), key=values.__getitem__) for n in range(1, len(values) + 1)]
    ones = [1.0] * len(points)
    return SimpleNamespace(
        num_initial=1,
        X=[[0.0]] + [[x] for x in points],
        y=values,
        inference_by_outcome=best,
        extras={"pit": pits, "multiple": ones, "headroom": ones, **extras},
    )


def test_optimum_by_a_dense_grid() -> None:
    values = [objective(i / 100_000) for i in range(100_001)]
    best = max(range(len(values)), key=values.__getitem__)
    assert best / 100_000 == pytest.approx(OPTIMUM, abs=1e-5)
    assert values[best] == pytest.approx(-MINIMUM, abs=1e-6)


def test_the_gp_interpolates() -> None:
    gp = NoiseFreeRbf()(X, Y, BOUNDS, 0, None)
    posterior = gp.posterior(X)
    # Pulled off the data by 1e-5 of the variance at most, if at all.
    torch.testing.assert_close(posterior.mean, Y, rtol=0.0, atol=1e-2)
    assert posterior.variance.max() < 1e-4 * Y.var()


def test_the_fitted_lengthscale_maximises_its_posterior_density() -> None:
    gp = NoiseFreeRbf()(X, Y, BOUNDS, 0, None)
    scale, centre = gp.covar_module.outputscale.item(), gp.mean_module.constant.item()
    y = ((Y - Y.mean()) / Y.std()).flatten()

    def log_density(lengthscale: float) -> float:
        kernel = scale * (-0.5 * (X - X.mT).square() / lengthscale**2).exp()
        prior = torch.distributions.MultivariateNormal(
            torch.full_like(y, centre), kernel + forrester.RELATIVE_NOISE * torch.eye(3)
        )
        # A log-normal prior with parameters sqrt(2) and sqrt(3), up to a constant.
        log_prior = -((math.log(lengthscale) - 2**0.5) ** 2) / 6 - math.log(lengthscale)
        return prior.log_prob(y).item() + log_prior

    fitted = gp.covar_module.base_kernel.lengthscale.item()
    assert log_density(fitted) > max(log_density(0.97 * fitted), log_density(1.03 * fitted))


def test_the_variant_keeps_its_lengthscale_and_fits_the_output_scale() -> None:
    gp = NoiseFreeRbf(0.5)(X, Y, BOUNDS, 0, None)
    assert gp.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.5)
    # With the mean fitted, too, the likelihood is largest where (y - m)' K^-1 (y - m) = n.
    kernel = gp.covar_module(gp.transform_inputs(X)).to_dense()
    covariance = kernel + forrester.RELATIVE_NOISE * torch.eye(3)
    residual = (Y - Y.mean()) / Y.std() - gp.mean_module.constant
    quadratic = (residual.mT @ torch.linalg.solve(covariance, residual)).item()
    assert quadratic == pytest.approx(3.0, rel=1e-2)


def test_a_fit_that_fails_keeps_the_hyperparameters_of_the_step_before(monkeypatch) -> None:
    def fail(mll: Any) -> None:
        raise ModelFittingError("on purpose")

    previous = NoiseFreeRbf()(X[:2], Y[:2], BOUNDS, 0, None)
    monkeypatch.setattr(forrester, "fit_gpytorch_mll", fail)
    gp = NoiseFreeRbf()(X, Y, BOUNDS, 1, previous)
    for name, value in previous.covar_module.state_dict().items():
        assert torch.equal(gp.covar_module.state_dict()[name], value)
    torch.testing.assert_close(gp.posterior(X).mean, Y, rtol=0.0, atol=1e-2)
    with pytest.raises(ModelFittingError):
        NoiseFreeRbf()(X, Y, BOUNDS, 0, None)


@pytest.mark.parametrize("name", forrester.CALIBRATORS)
def test_proposals_maximise_the_stated_quantile(name: str) -> None:
    strategy: Any = forrester.method(name, 0.9).build(STUDY.problems[0], 0)
    model: Any = strategy.fit(X, Y)
    with torch.no_grad():
        quantiles = model.posterior(forrester.GRID).quantile(torch.tensor(0.9).double()).flatten()
    chosen = quantiles[(forrester.GRID.flatten() - strategy.propose(model, X, Y)).abs().argmin()]
    assert chosen.item() == pytest.approx(quantiles.max().item(), abs=1e-9)


def test_the_papers_method_learns_from_leave_one_out_residuals() -> None:
    strategy: Any = forrester.method("loo", 0.9).build(STUDY.problems[0], 0)
    model = strategy.fit(X, Y)
    expected = []
    for i in range(3):
        others = [j for j in range(3) if j != i]
        gp = model.model
        K = (gp.covar_module(X).to_dense() + 1e-5 * torch.eye(3)).detach()
        y = gp.train_targets - gp.mean_module.constant.detach()
        weights = torch.linalg.solve(K[others][:, others], K[others, i])
        deviation = (K[i, i] - weights @ K[others, i]).sqrt()
        expected.append((y[i] - weights @ y[others]) / deviation)
    scores = torch.special.ndtr(torch.stack(expected))
    torch.testing.assert_close(model.calibrator.tracker.scores.flatten(), scores)


def test_extras_describe_the_optimum() -> None:
    strategy: Any = forrester.method("plain", 0.975).build(STUDY.problems[0], 0)
    model = strategy.fit(X, Y)
    extras = strategy.extras(model, X[:1], Y[:1])
    assert extras["multiple"] == pytest.approx(1.959964, abs=1e-5)
    posterior = model.posterior(torch.tensor([[OPTIMUM]], dtype=torch.double))
    bound = posterior.mean.item() + 1.959964 * posterior.variance.sqrt().item()
    assert extras["headroom"] == pytest.approx(bound - objective(OPTIMUM), abs=1e-4)


def test_first_visit_ignores_the_initial_points() -> None:
    assert forrester.first_visit(result([0.1, 0.69, 0.75])) == 2
    assert math.isinf(forrester.first_visit(result([0.1, 0.68, 0.83])))
    inside = result([0.1])
    inside.X[0] = [OPTIMUM]
    assert math.isinf(forrester.first_visit(inside))


def test_series_before_the_visit_include_the_choice_that_led_there() -> None:
    run = result([0.1, 0.7, 0.75, 0.2], multiple=[1.0, 2.0, 3.0, 4.0])
    assert forrester.before_visit(run, "multiple") == [1.0, 2.0]
    never = result([0.1, 0.2], multiple=[1.0, None])
    assert forrester.before_visit(never, "multiple") == [1.0]


def test_calibration_error_by_hand() -> None:
    # All PITs at 0.45: the frequencies are 0 below that level and 1 above it.
    run = result([0.1] * 4, pits=[0.45] * 4)
    expected = sum(p**2 for p in (0.1, 0.2, 0.3, 0.4)) + sum(
        (1 - p) ** 2 for p in (0.5, 0.6, 0.7, 0.8, 0.9)
    )
    assert forrester.misjudged(run) == pytest.approx(expected)


def test_row_by_hand() -> None:
    plain = [result([0.1, 0.75]), result([0.1, 0.1]), result([0.1, 0.1]), result([0.1, 0.1])]
    runs = [
        result([0.1, 0.2], pits=[0.5, 0.95], multiple=[1.0, 1.5], headroom=[-1.0, -1.0]),
        result([0.75, 0.1], pits=[0.5, 0.95], multiple=[2.0, 9.0], headroom=[1.0, -1.0]),
        result([0.1, 0.75]),
        result([0.1, 0.2]),
    ]
    cells = dict(zip(forrester.HEADER, forrester.row("loo", 0.9, runs, plain), strict=True))
    # Clopper and Pearson's interval of 2 of 4.
    assert cells["found the basin [95 %]"] == "2 of 4 [0.07, 0.93]"
    assert cells["seeds gained, lost"] == "+2 −1"
    # Visits at steps 1 and 2, and two at no step.
    assert cells["median step"] == "never"
    assert cells["bound held"] == "0.75"
    # 1 and 1.5, 2, 1 and 1, 1 and 1.
    assert cells["multiple of sigma"] == "1.00"
    assert cells["bound below optimum"] == "0.29"


def test_a_tiny_run_writes_the_table(tmp_path: Path, monkeypatch, capsys) -> None:
    problems = tuple(replace(problem, num_evaluations=1) for problem in STUDY.problems)
    monkeypatch.setattr(forrester, "STUDY", replace(STUDY, problems=problems))
    folders = ["--results", str(tmp_path / "results"), "--tables", str(tmp_path)]
    assert forrester.main(["--seeds", "3", *folders]) == 0
    table = (tmp_path / "forrester.md").read_text(encoding="utf-8")
    assert table.strip() in capsys.readouterr().out
    for problem in STUDY.problems:
        for level in forrester.LEVELS:
            assert f"## GP `{problem.name}`, level {level:g}" in table
    assert table.count("of 1 [") == len(problems) * len(STUDY.methods)
    # What is finished is not run again.
    assert forrester.main(["--seeds", "3", *folders]) == 0
    assert "0 run, 20 finished before" in capsys.readouterr().out


def test_replicates_are_reproducible() -> None:
    problem = replace(STUDY.problems[0], num_evaluations=2)
    first, second = (replicate(problem, STUDY.methods[-1], 5) for _ in range(2))
    assert isinstance(first, Result)
    assert first.X == second.X
    assert first.extras == second.extras

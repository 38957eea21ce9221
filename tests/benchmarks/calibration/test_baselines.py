"""Baselines: their models by hand, reproducible runs, and what they have in common."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from botorch.models.transforms.input import ChainedInputTransform
from botorch.utils.sampling import manual_seed
from scipy.stats import norm

from benchmarks.calibration.ackley import small_noisy_ackley
from benchmarks.calibration.baselines import (
    AdaptiveUCBStrategy,
    BaggedModel,
    BaggingStrategy,
    OutcomeWarpingStrategy,
    WarpedInputs,
    in_study,
    study_methods,
)
from benchmarks.calibration.synthetic import problems
from benchmarks.framework.results import Result
from benchmarks.framework.runner import Task, run_task
from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import AcquisitionStrategy
from benchmarks.framework.surrogates import fit_gp
from tests.long_grids import mostly_slow

PROBLEMS = {problem.name: problem for problem in problems()}
CAMEL = PROBLEMS["six_hump_camel_ei"]
METHODS = study_methods()  # once, as their builders are equal only to themselves


@pytest.mark.parametrize(
    "method",
    # The others are of the same classes, or among those of framework/test_strategies.py.
    mostly_slow(
        METHODS,
        [m for m in METHODS if m.name not in ("bo", "ocbo", "box_cox", "logarithm")],
    ),
    ids=lambda method: method.name,
)
def test_methods_run_and_are_reproducible(method) -> None:
    problem = replace(PROBLEMS["forrester"], num_evaluations=2)
    quick = Method(method.name, partial(method.build, num_restarts=2, raw_samples=16))
    one, other = (run_task(Task(problem, quick, 0)) for _ in range(2))
    assert isinstance(one, Result) and isinstance(other, Result), one
    assert (one.X, one.y, one.extras) == (other.X, other.y, other.extras)
    assert {"pit", "covered"} <= set(one.extras)


def test_the_problem_names_the_acquisition_function() -> None:
    strategy = in_study(PROBLEMS["six_hump_camel_pi"], 0, AcquisitionStrategy)
    assert isinstance(strategy, AcquisitionStrategy)
    assert strategy.acquisition == "pi"
    with pytest.raises(TypeError, match="not a problem of the calibration study"):
        in_study(small_noisy_ackley(), 0, AcquisitionStrategy)


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    X = CAMEL.initial_design(n, 1)
    return X, CAMEL.build(0).truth(X)


def test_mixture_moments_of_bagged_models() -> None:
    X, Y = data(8)
    with manual_seed(0):
        chosen = torch.randint(8, (5, 8))
    model = BaggedModel(fit_gp(X[chosen], Y[chosen], CAMEL.bounds_tensor()))
    points = torch.rand(4, 1, 2, dtype=torch.double)
    for noise in (False, True):
        with torch.no_grad():
            predictive = model.posterior(points, observation_noise=noise)
            parts = [
                model.gps.posterior(x.expand(5, 1, 2), observation_noise=noise) for x in points
            ]
        for i, part in enumerate(parts):
            means, variances = part.mean.flatten(), part.variance.flatten()
            assert predictive.mean[i].item() == pytest.approx(means.mean().item())
            # E f^2 - (E f)^2 over the members.
            second = (variances + means.square()).mean() - means.mean().square()
            assert predictive.variance[i].item() == pytest.approx(second.item())


def test_a_batch_of_fits_equals_fits_one_by_one() -> None:
    X, Y = data(9)
    batch: Any = fit_gp(torch.stack([X, X]), torch.stack([Y, Y]), CAMEL.bounds_tensor())
    single: Any = fit_gp(X, Y, CAMEL.bounds_tensor())
    expected = single.covar_module.base_kernel.lengthscale.item()
    # Both stop at the optimiser's tolerance.
    found = batch.covar_module.base_kernel.lengthscale.flatten().tolist()
    assert found == pytest.approx([expected] * 2, rel=1e-2)


def test_bagging_draws_other_samples_with_another_random_state() -> None:
    X, Y = data(8)
    means = []
    for seed in (0, 1):
        with manual_seed(seed):
            model: Any = BaggingStrategy(CAMEL, 0).fit(X, Y)
        with torch.no_grad():
            means.append(model.posterior(X[:1] + 0.3).mean.item())
    assert means[0] != means[1]


def test_input_warping_learns_a_warp() -> None:
    X, Y = data(12)
    gp: Any = WarpedInputs()(X, Y, CAMEL.bounds_tensor(), 0, None)
    assert isinstance(gp.input_transform, ChainedInputTransform)
    warp: Any = gp.input_transform["warp"]
    assert (warp.concentration0 - 1.0).abs().max() > 1e-3
    later: Any = WarpedInputs(every=5)(*data(13), CAMEL.bounds_tensor(), 1, gp)
    assert later.input_transform["warp"] is warp


def test_adaptive_ucb_shrinks_the_lengthscale() -> None:
    X, Y = data(CAMEL.num_initial + 15)  # the sixteenth evaluation
    strategy = AdaptiveUCBStrategy(CAMEL, 0, growth=0.5)
    shrunk: Any = strategy.fit(X, Y)
    assert strategy.gp is not None
    kept = strategy.gp.covar_module.base_kernel.lengthscale.item()
    # g = 16^(0.5 / 2) = 2.
    assert shrunk.covar_module.base_kernel.lengthscale.item() == pytest.approx(kept / 2.0)


def test_adaptive_ucb_widens_the_bound(monkeypatch) -> None:
    X, Y = data(CAMEL.num_initial + 15)
    strategy = AdaptiveUCBStrategy(CAMEL, 0, growth=0.5)
    model = strategy.fit(X, Y)
    bounds: list[Any] = []
    monkeypatch.setattr(strategy, "maximise", lambda acquisition: bounds.append(acquisition))
    strategy.propose(model, X, Y)
    # g^d = 16^0.5 = 4 times the multiple of plain UCB.
    assert math.sqrt(bounds[0].beta.item()) == pytest.approx(4.0 * norm.ppf(0.9))


def test_pit_of_warped_outcomes_is_that_of_the_transformed_model() -> None:
    X, Y = data(10)
    strategy = OutcomeWarpingStrategy(CAMEL, 0)
    model: Any = strategy.fit(X, Y)
    assert strategy.warp is not None
    x, y = X[:1] + 0.1, Y[:1] - 0.2
    predictive = model.posterior(x, observation_noise=True)
    z = (strategy.warp(y) - predictive.mean) / predictive.variance.sqrt()
    extras = strategy.extras(model, x, y)
    assert extras["pit"] == pytest.approx(norm.cdf(z.item()))
    assert set(extras) == {"pit", "covered"}
    # So is whether the objective lies in its interval.
    stated = model.posterior(X)
    z = (strategy.warp(Y) - stated.mean).abs() / stated.variance.sqrt()
    covered = strategy.objective_covered(model, X, Y)
    assert covered is not None
    assert torch.equal(covered, z.flatten() < norm.ppf(0.9))

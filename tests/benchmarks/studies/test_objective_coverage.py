"""The study on coverage of the objective: its rules by hand, and its scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.studies import objective_coverage as study
from benchmarks.studies.objective_coverage import RULES, Data, Statement
from botorch_calib import CalibratedModel, LocalizedConformal


@pytest.fixture(scope="module")
def data() -> Data:
    """Data after 15 points of a path, with a noise variance ten times too small."""
    problem = study.problems()["drawn"][1]
    oracle = problem.build(0)
    X = torch.rand(15, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    Y = oracle.truth(X) + 0.3 * torch.randn(
        15, 1, dtype=torch.double, generator=torch.Generator().manual_seed(1)
    )
    gp = problem.surrogate(X, Y, problem.bounds_tensor(), 0, None)
    return Data(gp.eval(), 5, X, X + 0.01, oracle.truth)


def test_own_rules_are_those_of_the_package(data: Data) -> None:
    levels = torch.tensor([0.1, 0.9], dtype=torch.double)
    for excess in ("noise", "objective"):
        model = CalibratedModel.from_history(
            data.gp, LocalizedConformal(0.2), num_initial=5, excess=excess
        )
        ends = model.posterior(data.space.unsqueeze(-2)).quantile(levels)
        torch.testing.assert_close(
            torch.stack(RULES[excess](Statement(data, data.space))), ends.flatten(1)
        )
    ends = data.gp.posterior(data.space.unsqueeze(-2)).quantile(levels)
    torch.testing.assert_close(
        torch.stack(RULES["plain"](Statement(data, data.space))), ends.flatten(1)
    )


def test_fitted_noise_is_the_likeliest(data: Data) -> None:
    gp = study.noise_fitted(data.gp)
    K = gp.covar_module(gp.train_inputs[0]).to_dense()
    residual = gp.train_targets - gp.mean_module(gp.train_inputs[0])

    def log_likelihood(noise: float) -> float:
        covariance = K + noise * torch.eye(len(K))
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(K)).double(), covariance)
        return float(normal.log_prob(residual))

    noise = gp.likelihood.noise.item()
    assert log_likelihood(noise) > max(log_likelihood(0.8 * noise), log_likelihood(1.25 * noise))
    assert noise > 2 * data.gp.likelihood.noise.item()
    fitted = Statement(replace(data, gp=gp), data.space)
    torch.testing.assert_close(
        torch.stack(RULES["noise fitted"](Statement(data, data.space))),
        torch.stack(RULES["plain"](fitted)),
    )
    torch.testing.assert_close(fitted.noise.flatten()[0].item(), noise)


def test_judgement_by_hand(data: Data) -> None:
    f = data.truth(data.X).flatten()

    def rule(at: Statement) -> study.Interval:
        inside = torch.arange(15) % 3 == 0
        return torch.where(inside, f - 1, f + 1), torch.where(inside, f + 3, f + 3)

    covered, width, score = study.judged(rule, data, data.X)
    # 5 intervals of length 4 cover, and 10 of length 2 miss by 1 with a penalty of 10.
    assert (covered, width) == pytest.approx((1 / 3, 40 / 15))
    assert score == pytest.approx(40 / 15 + 10 * 10 / 15)

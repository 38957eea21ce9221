"""The study on the noise of joint samples: its samples are the package's, and what they show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import kstest

from benchmarks.studies import joint_samples as study
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors import CalibratedPosterior

X = torch.tensor([[0.3, 0.35], [0.32, 0.4], [0.9, 0.1]], dtype=torch.double)


@pytest.mark.parametrize("source", study.SOURCES)
def test_marginals_are_the_calibrated_ones_whatever_the_noise(source: str) -> None:
    gp = study.process(1.0)
    base: Any = gp.posterior(X)
    width = torch.full((3, 1), 3 * 1.2815515655446004, dtype=torch.double)
    predictive = PiecewisePredictive.conformal(0.2, width, tails="stretched", max_width=50.0)
    posterior = CalibratedPosterior(base, predictive, 1.0)
    values = study.samples(gp, X, 3.0, source) + base.mean.flatten()
    with torch.no_grad():
        levels = posterior.cdf(values[:4000].unsqueeze(-1)).squeeze(-1)
    for j in range(3):
        assert kstest(levels[:, j].numpy(), "uniform").pvalue > 1e-6


def test_only_a_posterior_path_keeps_correlations_and_promises_nothing() -> None:
    gp = study.process(1.0)
    errors = {s: study.correlation_errors(gp, X, 3.0, s).abs().max() for s in study.SOURCES}
    assert errors["posterior path"] < 0.02
    assert errors["independent"] > 0.1 and errors["one number"] > 0.1
    phantom = {s: study.phantom_improvement(gp, X[:1], 3.0, s) for s in study.SOURCES}
    assert phantom["independent"] > 0.1
    for source in study.SOURCES[1:]:
        assert phantom[source] < 1e-3


def test_report_has_a_row_for_each_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "NUM_SAMPLES", 100)
    rows = len(study.NOISES) * len(study.WIDTHS) * len(study.SOURCES)
    assert len(study.report().splitlines()) == 2 + rows

"""The curve, the mark and the shaded interval are those of the diagnosis."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP

from botorch_calib import noise_diagnosis
from botorch_calib.plotting import plot_noise_likelihood
from tests.plotting.figures import assert_beside_data, labels


def make_diagnosis(noise, stated, level=0.95):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, dtype=torch.double, generator=generator)
    Y = (6 * X).sin() + noise * torch.randn(40, 1, dtype=torch.double, generator=generator)
    gp = SingleTaskGP(X, Y, train_Yvar=torch.ones_like(Y))
    gp.likelihood.noise_covar.noise = torch.full((40,), stated**2, dtype=torch.double)
    gp.covar_module.lengthscale = 0.3
    return noise_diagnosis(gp, level)


def test_likelihood_and_interval():
    diagnosis = make_diagnosis(0.3, 0.05, level=0.9)
    ax = plot_noise_likelihood(diagnosis)
    curve, stated = ax.get_lines()
    np.testing.assert_allclose(curve.get_xdata(), diagnosis.deviations)
    np.testing.assert_allclose(curve.get_ydata(), diagnosis.log_likelihoods)
    assert set(stated.get_xdata()) == {diagnosis.stated}
    (span,) = ax.patches
    box = span.get_bbox()
    assert (box.x0, box.x1) == pytest.approx(diagnosis.interval)
    assert labels(ax) == ["90 % interval", "likelihood", "stated"]
    left, right = ax.get_xlim()
    assert ax.get_xscale() == "log"
    assert left < diagnosis.stated and diagnosis.interval[1] < right
    assert_beside_data(ax)


def test_noise_stated_as_zero_is_not_marked():
    ax = plot_noise_likelihood(make_diagnosis(0.3, 0.0))
    assert labels(ax) == ["95 % interval", "likelihood"]
    assert len(ax.get_lines()) == 1

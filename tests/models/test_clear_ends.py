"""Requests that a calibrated model cannot serve raise errors that name the remedy."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from botorch.acquisition.max_value_entropy_search import qMaxValueEntropy
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP
from torch.testing import assert_close

from botorch_calib import CalibratedModel, LocalizedConformal, calibration_report
from botorch_calib.calibration import pit
from botorch_calib.models import prequential_residuals
from tests.gps import make_data, make_gp, make_multitask


def model() -> CalibratedModel:
    return CalibratedModel.from_history(make_gp(), LocalizedConformal(0.2, 0.25))


def test_a_list_of_gps_is_no_list_of_models() -> None:
    X, _, _ = make_data()
    untyped: Any = ModelListGP
    with pytest.raises(UnsupportedError, match="CalibratedModelList "):
        untyped(model(), model()).posterior(X)


def test_entropy_search_takes_the_gaussian_process() -> None:
    X, _, _ = make_data()
    with pytest.raises(UnsupportedError, match="`model.gaussian_model`"):
        qMaxValueEntropy(model(), X)(X[:2].unsqueeze(-2))
    qMaxValueEntropy(model().gaussian_model, X)(X[:2].unsqueeze(-2))
    posterior = model().posterior(X)
    for name in ("distribution", "mvn"):
        with pytest.raises(UnsupportedError, match="gaussian_model"):
            getattr(posterior, name)
    with pytest.raises(UnsupportedError, match="Use `quantile` for the ends of intervals"):
        posterior.mvn.confidence_region()


def test_help_names_the_arguments_of_a_calibrated_model() -> None:
    arguments = inspect.signature(CalibratedModel).parameters
    assert list(arguments) == ["model", "calibrator", "denoise", "excess"]


def test_a_history_of_several_tasks_is_judged_by_that_of_the_output() -> None:
    gp = make_multitask()
    report = calibration_report(gp)
    residuals = prequential_residuals(gp)[::2]  # the tasks take turns
    assert_close(report.base.pits, pit(residuals))

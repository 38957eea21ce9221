"""A model says when its calibrator has seen too little."""

import warnings

import pytest
import torch

from botorch_calib import CalibratedModel, LocalizedConformal, QuantileRecalibrator
from botorch_calib.exceptions import CalibrationWarning
from tests.gps import make_gp

X = torch.rand(3, 2, dtype=torch.double)
MAKE = {
    "conformal": (lambda: LocalizedConformal(0.2), 5),
    "rare": (lambda: LocalizedConformal(0.05, 0.3), 20),
    "quantiles": (QuantileRecalibrator, 20),
}


@pytest.mark.parametrize(("make", "needed"), MAKE.values(), ids=MAKE)
def test_warns_once_below_the_number_needed(make, needed):
    calibrator = make()
    assert calibrator.num_needed == needed
    for seen, warns in ((0, True), (needed - 1, True), (needed, False)):
        calibrator.reset()
        generator = torch.Generator().manual_seed(0)
        points = torch.rand(seen, 2, dtype=torch.double, generator=generator)
        calibrator.update(points, torch.randn(seen, dtype=torch.double, generator=generator))
        model = CalibratedModel(make_gp(), calibrator)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.posterior(X)
            model.posterior(X)
            model.condition_on_observations(X, X[:, :1]).posterior(X)
        found = [w for w in caught if issubclass(w.category, CalibrationWarning)]
        assert len(found) == warns
        if warns:
            assert f"seen {seen} residuals" in str(found[0].message)

"""The contracts hold for BoTorch's classes and this package's, and catch broken ones.

Other contracts are next to the tests of the classes: in `tests.models`, `tests.acquisition`,
`tests.posteriors` and `tests.calibration`.
"""

from __future__ import annotations

import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.models import SingleTaskGP
from torch import Generator, Tensor

from botorch_calib.acquisition import (
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.calibration import LocalizedConformal
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.robust import TotalVariationBall, WassersteinBall
from tests.contracts import AcquisitionContract, ModelContract
from tests.gps import far_from_gaussian
from tests.random_numbers import uniform


def make_gp(dtype: torch.dtype = torch.double, sign: float = 1.0) -> SingleTaskGP:
    train_X = uniform(8, 2, generator=Generator().manual_seed(1)).to(dtype)
    train_Y = (4 * train_X).sin().sum(dim=-1, keepdim=True)
    train_Y = sign * (train_Y - train_Y.mean()) / train_Y.std()
    model = SingleTaskGP(train_X, train_Y, outcome_transform=None)
    model.likelihood.noise = torch.tensor([0.05], dtype=dtype)
    return model.eval()


def make_calibrated(dtype: torch.dtype = torch.double, sign: float = 1.0) -> CalibratedModel:
    calibrator = LocalizedConformal(0.2, lengthscale=0.5, step_size=0.2)
    return CalibratedModel.from_history(make_gp(dtype, sign), calibrator)


class TestBoTorchModel(ModelContract):
    def make_model(self, dtype):
        return make_gp(dtype)


class TestCalibratedModel(ModelContract):
    def make_model(self, dtype):
        return make_calibrated(dtype)


class TestCensoredDelayModel(ModelContract):
    def make_model(self, dtype):
        return make_delayed(dtype)[0]


class TestCensoredCalibratedModel(ModelContract):
    def make_model(self, dtype):
        pending = uniform(3, 2, generator=Generator().manual_seed(2)).to(dtype)
        return CensoredDelayModel(make_calibrated(dtype), pending, censor_value=-1.5)


class TestBoTorchAcquisition(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        return LogExpectedImprovement(make_gp(dtype), best_f=0.5, maximize=maximize)

    def make_negated_acquisition(self, dtype):
        return LogExpectedImprovement(make_gp(dtype, sign=-1.0), best_f=-0.5)


def make_delayed(
    dtype: torch.dtype = torch.double, sign: float = 1.0
) -> tuple[CensoredDelayModel, Tensor]:
    """A model with pending points, and the window for them."""
    pending = uniform(3, 2, generator=Generator().manual_seed(2)).to(dtype)
    return CensoredDelayModel(make_gp(dtype, sign), pending, censor_value=sign * -1.5), pending


class TestDelayedConfidenceBound(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True, sign=1.0):
        model, window = make_delayed(dtype, sign)
        return DelayedUpperConfidenceBound(model, 0.7, window, maximize=maximize)

    def make_negated_acquisition(self, dtype):
        return self.make_acquisition(dtype, sign=-1.0)


class TestDelayedThompsonSampling(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        model, window = make_delayed(dtype)
        return DelayedThompsonSampling(model, 0.7, window, feedback_bound=0.2, seed=3)


class TestCalibratedThompsonSampling(AcquisitionContract):
    def make_acquisition(self, dtype, maximize=True):
        delayed, window = make_delayed(dtype)
        model = CalibratedModel(delayed, far_from_gaussian().to(dtype))
        return DelayedThompsonSampling(model, 0.7, window, feedback_bound=0.2, seed=3)


def make_contexts(dtype: torch.dtype) -> Tensor:
    """A function of models with two inputs; the second input is the context."""
    return torch.tensor([[0.2], [0.5], [0.9]], dtype=dtype)


class TestWassersteinConfidenceBound(AcquisitionContract):
    dim = 1

    def make_acquisition(self, dtype, maximize=True, sign=1.0):
        gp, contexts = make_gp(dtype, sign), make_contexts(dtype)
        return WassersteinUpperConfidenceBound(gp, 2.25, 0.1, contexts, maximize=maximize)

    def make_negated_acquisition(self, dtype):
        return self.make_acquisition(dtype, sign=-1.0)


class TestRobustCalibratedConfidenceBound(AcquisitionContract):
    dim = 1

    def make_acquisition(self, dtype, maximize=True, sign=1.0):
        ball, contexts = WassersteinBall(0.1, "lipschitz"), make_contexts(dtype)
        model = make_calibrated(dtype, sign)
        return RobustUpperConfidenceBound(model, 2.25, ball, contexts, maximize=maximize)

    def make_negated_acquisition(self, dtype):
        return self.make_acquisition(dtype, sign=-1.0)


class TestRobustAcquisition(AcquisitionContract):
    dim = 1

    def make_acquisition(self, dtype, maximize=True):
        quantile = CalibratedUpperConfidenceBound(make_calibrated(dtype), level=0.8)
        return RobustAcquisition(quantile, TotalVariationBall(0.2), make_contexts(dtype))

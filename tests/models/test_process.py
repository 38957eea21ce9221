"""Processes: the units of their targets, their training points and their predictions."""

from collections.abc import Callable

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize
from botorch.models.transforms.outcome import OutcomeTransform, StratifiedStandardize

from botorch_calib.calibration import NoCalibration
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.models.outcome_transforms import (
    outcome_map_of,
    raw_train_targets,
    unit_of_targets,
)
from botorch_calib.models.predict import mean_and_deviation, predict
from botorch_calib.models.process import raw_train_inputs, training_points
from tests.gps import make_multitask

X = torch.rand(6, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y = (X.sum(dim=-1, keepdim=True) - X.sum(dim=-1).mean()) / X.sum(dim=-1).std()


def make_gp(Y=Y, outcome_transform=None, **kwargs) -> SingleTaskGP:
    return SingleTaskGP(X, Y, outcome_transform=outcome_transform, **kwargs).eval()


class Scale(OutcomeTransform):
    """Division by a factor, as a user may write it: it takes no inputs."""

    _is_linear = True

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, Y, Yvar=None, X=None):
        return Y / self.factor, None if Yvar is None else Yvar / self.factor**2

    def untransform(self, Y, Yvar=None):
        return Y * self.factor, None if Yvar is None else Yvar * self.factor**2


def stratified() -> StratifiedStandardize:
    return StratifiedStandardize(1, torch.tensor([0.0, 1.0], dtype=torch.double))


AFFINE: dict[str, tuple[Callable[[], OutcomeTransform | None], bool]] = {
    "none": (lambda: None, True),
    "standardized": (lambda: Standardize(1), True),
    "twice": (lambda: ChainedOutcomeTransform(a=Standardize(1), b=Standardize(1)), True),
    "a user's": (lambda: Scale(0.5), True),
    "strata": (stratified, False),
    "chain of strata": (lambda: ChainedOutcomeTransform(a=stratified(), b=Standardize(1)), False),
}


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
@pytest.mark.parametrize("name", AFFINE)
def test_the_unit_of_each_target(name: str) -> None:
    """The change of the outcome per unit of the target, even for outcomes far from zero."""
    build, has_one = AFFINE[name]
    inputs = torch.cat([X[:, :1], torch.tensor([[0.0, 1.0]] * 3, dtype=torch.double).view(6, 1)], 1)
    outcomes = 1e6 + torch.where(inputs[:, 1:] > 0, 30.0, 2.0) * Y
    gp = SingleTaskGP(inputs, outcomes, outcome_transform=build())
    for model in (gp.train(), gp.eval()):
        torch.testing.assert_close(raw_train_targets(model), outcomes)
        units = unit_of_targets(model).expand(6, 1).squeeze(-1)
        # Differences of targets in the same stratum, and the differences of outcomes
        for first, second in ((0, 2), (1, 5)):
            targets = model.train_targets[first] - model.train_targets[second]
            torch.testing.assert_close(units[first], units[second])
            difference = (outcomes[first] - outcomes[second]).squeeze()
            torch.testing.assert_close(units[first] * targets, difference)
        assert (unit_of_targets(model).numel() == 1) == has_one
        outcome_map = outcome_map_of(model, inputs)
        torch.testing.assert_close(outcome_map.outcome(model.train_targets.unsqueeze(-1)), outcomes)


def test_a_nonlinear_transform_has_no_unit() -> None:
    with pytest.raises(UnsupportedError, match="Log, predictions are not Gaussian"):
        unit_of_targets(make_gp(Y.exp(), outcome_transform=Log()))


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_a_plain_process_states_its_own_posterior(dtype):
    """A Gaussian posterior by the methods of a calibrated one, whose digits reach far out."""
    gp = SingleTaskGP(X.to(dtype), 1e-7 * Y.to(dtype), outcome_transform=Standardize(1)).eval()
    at = torch.rand(3, 1, 2, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for model in (gp, CensoredDelayModel(gp)):
        posterior, (mean, deviation) = predict(model, at), mean_and_deviation(model, at)
        assert deviation.max() < 2e-7  # not GPyTorch's least variance, in any units
        torch.testing.assert_close(posterior.mean, mean)
        torch.testing.assert_close(posterior.variance, deviation.square())
        normal = torch.distributions.Normal(mean.double(), deviation.double())
        for score in (-6.0, 0.3, 6.0):
            value = normal.mean + score * normal.stddev
            expected = normal.cdf(value).to(dtype)
            torch.testing.assert_close(posterior.cdf(value), expected, rtol=1e-4, atol=0)
        quantile = normal.icdf(torch.tensor(0.9, dtype=torch.double)).to(dtype)
        torch.testing.assert_close(posterior.quantile(0.9), quantile)


def test_training_points_of_a_model() -> None:
    """Raw, once for all members, and with or without the task column, which may be omitted."""
    one = make_gp(input_transform=Normalize(2))
    saas = SaasFullyBayesianSingleTaskGP(X, Y)
    samples = {name: torch.ones(3, dtype=X.dtype) for name in ("mean", "outputscale", "noise")}
    saas.load_mcmc_samples({**samples, "lengthscale": torch.ones(3, 1, 2, dtype=X.dtype)})
    for model in (one, saas.eval(), CalibratedModel(one, NoCalibration())):
        (known,) = training_points(model)
        torch.testing.assert_close(known, X)
    tasks = make_multitask()
    whole, own = training_points(tasks)
    torch.testing.assert_close(whole, raw_train_inputs(tasks))
    torch.testing.assert_close(own, whole[whole[:, 2] == 0.0][:, :2])
    assert training_points(torch.nn.Identity()) == []

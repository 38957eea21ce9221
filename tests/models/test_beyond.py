"""Outcomes known only to be beyond a bound: stand-ins for models, draws for calibrators."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Log
from scipy.stats import kstest
from torch import Tensor

from botorch_calib import CalibratedModel, CensoredDelayModel
from botorch_calib.calibration import (
    Calibrator,
    LocalizedConformal,
    NoCalibration,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.models import stand_ins
from botorch_calib.models.predict import predict
from tests.gps import NOISE, Y_SCALE, make_data, make_gp

SIDES = torch.tensor([[1.0], [0.0], [-1.0], [0.0], [1.0]], dtype=torch.double)


@pytest.mark.parametrize("transforms", [False, True])
def test_a_stand_in_is_a_deviation_of_the_noise_beyond_the_bound(transforms: bool) -> None:
    gp: Any = make_gp(transforms=transforms)
    X, Y, _ = make_data(5, transforms, seed=8)
    scale = gp.outcome_transform.stdvs.item() if transforms else 1.0
    expected = Y + SIDES * math.sqrt(NOISE) * scale
    assert 0.2 * Y_SCALE * transforms < scale
    torch.testing.assert_close(stand_ins(gp, X, Y, SIDES), expected)
    calibrated = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
    assert torch.equal(stand_ins(calibrated, X, Y, SIDES), stand_ins(gp, X, Y, SIDES))
    above = SIDES > 0.0
    assert torch.equal(stand_ins(gp, X, Y, above), stand_ins(gp, X, Y, above.long()))
    assert stand_ins(gp, X, Y, torch.zeros_like(Y)) is Y
    narrow = stand_ins(make_gp(transforms=transforms, dtype=torch.float), X, Y, SIDES)
    assert narrow.dtype == Y.dtype
    torch.testing.assert_close(narrow, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(narrow[SIDES == 0.0], Y[SIDES == 0.0])


def test_a_stand_in_under_a_transform_has_its_values() -> None:
    """Below a bound it is positive, where outcomes are."""
    X, Y, _ = make_data()
    gp = SingleTaskGP(X, Y.exp(), outcome_transform=Log()).eval()
    gp.likelihood.noise = 4.0
    found = stand_ins(gp, X[:5], Y[:5].exp(), SIDES)
    torch.testing.assert_close(found, (Y[:5] + 2.0 * SIDES).exp())


def test_stand_ins_of_an_ensemble_and_of_a_given_noise() -> None:
    X, Y, Yvar = make_data()
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval()
    ensemble.likelihood.noise_covar.noise = torch.tensor([[0.01], [0.04], [0.09]]).double()
    torch.testing.assert_close(stand_ins(ensemble, X[:5], Y[:5], SIDES), Y[:5] + 0.2 * SIDES)
    given = stand_ins(make_gp(fixed_noise=True), X[:5], Y[:5], SIDES)
    torch.testing.assert_close(given, Y[:5] + Yvar.mean().sqrt() * SIDES)


def test_the_process_learns_from_stand_ins() -> None:
    gp, (X, Y, _) = make_gp(), make_data(5, seed=8)
    filled = stand_ins(gp, X, Y, SIDES)
    for model in (
        CalibratedModel(gp, NoCalibration()),
        CensoredDelayModel(gp, censor_value=0.0),
    ):
        expected = deepcopy(model)
        expected.observe(X, filled)
        model.observe(X, Y, beyond=SIDES)
        assert torch.equal(model.model.train_targets, expected.model.train_targets)
        assert torch.equal(model.posterior(X).mean, expected.posterior(X).mean)


class Recorded:
    """Scores that a calibrator is told, and their transforms by what it stated before."""

    def __init__(self, calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: list[float] = []
        self.scores: list[float] = []
        update = calibrator.update

        def recording(X: Tensor, z: Tensor) -> Any:
            stated = update(X, z)
            self.scores += z.tolist()
            self.values += stated.cdf(z.unsqueeze(-1)).flatten().tolist()
            return stated

        monkeypatch.setattr(calibrator, "update", recording)


CALIBRATORS = [NoCalibration(), LocalizedConformal(0.2), QuantileRecalibrator()]


@pytest.mark.parametrize("calibrator", CALIBRATORS[1:])
def test_draws_keep_what_is_stated_uniform(
    calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever bounds come: outcomes are from the stated distribution, which is not the model's."""
    calibrator, generator = deepcopy(calibrator), torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    X = torch.rand(250, 2, dtype=torch.double, generator=generator)
    calibrator.update(X[150:], 3.0 * normal(100))  # it widens
    model, recorded = CalibratedModel(make_gp(), calibrator), Recorded(calibrator, monkeypatch)
    num_bounds = 0
    for t, x in enumerate(X[:150].split(1)):
        stated = predict(model, x.unsqueeze(-2), objective=False)
        y, bound = (stated.at_score(scale * normal(1, 1, 1)).reshape(1, 1) for scale in (1.0, 0.7))
        side = 1.0 if t % 3 else -1.0
        beyond = side * (side * y > side * bound).to(y)
        model.observe(x, torch.where(beyond != 0, bound, y), condition=False, beyond=beyond)
        num_bounds += int(beyond.abs().sum())
    u = torch.tensor(recorded.values, dtype=torch.double)
    assert num_bounds > 50 and len(u) == 150
    assert kstest(u, "uniform").pvalue > 0.05
    assert abs(torch.corrcoef(torch.stack([u[1:], u[:-1]]))[0, 1]) < 0.16


def test_draws_are_repeated_by_a_replay_and_differ_otherwise() -> None:
    X, Y, _ = make_data(5, seed=8)
    one, other = (CalibratedModel(make_gp(), OnlineConformal(0.2)) for _ in range(2))
    one.observe(X, Y, beyond=SIDES)
    for rows in (slice(0, 2), slice(2, 5)):
        other.observe(X[rows], Y[rows], condition=False, beyond=SIDES[rows])
    told = zip(one.calibrator.buffers(), other.calibrator.buffers(), strict=True)
    assert all(torch.equal(*pair) for pair in told)
    exact = CalibratedModel(make_gp(), OnlineConformal(0.2))
    plain = deepcopy(exact)
    exact.observe(X, Y, beyond=torch.zeros(5, 1))
    plain.observe(X, Y)
    told = zip(exact.calibrator.buffers(), plain.calibrator.buffers(), strict=True)
    assert all(torch.equal(*pair) for pair in told)


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_the_same_bound_again_and_bounds_far_out(
    calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions are independent, and what has no chance is told as it is."""
    model = CalibratedModel(make_gp(), deepcopy(calibrator))
    told = Recorded(model.calibrator, monkeypatch).scores
    X, bound = torch.full((4, 2), 0.5, dtype=torch.double), torch.zeros(4, 1, dtype=torch.double)
    model.observe(X, bound, condition=False, beyond=torch.ones(4, 1))
    learns = not isinstance(calibrator, NoCalibration)
    assert len({*told}) == (4 if learns else 1)
    for side in (1.0, -1.0):
        model.observe(
            X[:1], bound[:1] + 1e3 * side, condition=False, beyond=side * torch.ones(1, 1)
        )
        assert math.isfinite(told[-1]) and side * told[-1] > 100.0


def test_bad_arguments_are_named() -> None:
    gp, (X, Y, _) = make_gp(), make_data(3)
    model = CalibratedModel(gp, OnlineConformal(0.2))
    for beyond, match in (
        (torch.zeros(3), r"`beyond` must have the shape \(3, 1\) of `Y`, got \(3,\)"),
        (torch.full((3, 1), 0.5), "`beyond` must hold 1 where an outcome is above"),
        (torch.full((3, 1), math.nan), "`beyond` must hold 1 where"),
        ([[0], [0], [1]], "`beyond` must be a tensor"),
    ):
        wrong: Any = beyond
        with pytest.raises((InputDataError, BotorchTensorDimensionError), match=match):
            model.observe(X, Y, beyond=wrong)
        with pytest.raises((InputDataError, BotorchTensorDimensionError), match=match):
            stand_ins(gp, X, Y, wrong)
    assert model.calibrator.num_updates == 0

"""Outcomes known only to be beyond a bound: training values for models, draws for calibrators."""

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

from botorch_calib import CalibratedModel, CensoredDelayModel, LocalizedConformal
from botorch_calib.calibration import (
    Calibrator,
    NoCalibration,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.models import stand_ins
from botorch_calib.models.predict import predict
from tests.gps import NOISE, make_data, make_gp

SIDES = torch.tensor([[1.0], [0.0], [-1.0], [0.0], [1.0]], dtype=torch.double)


@pytest.mark.parametrize("transforms", [False, True])
def test_a_stand_in_is_a_deviation_of_the_noise_beyond_the_bound(transforms: bool) -> None:
    gp: Any = make_gp(transforms=transforms)
    X, Y, _ = make_data(5, transforms, seed=8)
    scale = gp.outcome_transform.stdvs.item() if transforms else 1.0
    expected = Y + SIDES * math.sqrt(NOISE) * scale
    for model in (gp, CalibratedModel(gp, NoCalibration())):
        torch.testing.assert_close(stand_ins(model, X, Y, SIDES), expected)
    assert torch.equal(stand_ins(gp, X, Y, SIDES > 0), stand_ins(gp, X, Y, (SIDES > 0).long()))
    narrow = stand_ins(make_gp(transforms=transforms, dtype=torch.float), X, Y, SIDES)
    torch.testing.assert_close(narrow, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(narrow[SIDES == 0.0], Y[SIDES == 0.0])


def test_stand_ins_of_other_models() -> None:
    """Under a logarithm, where those below a bound are positive; of members; of given noise."""
    X, Y, Yvar = make_data()
    gp = SingleTaskGP(X, Y.exp(), outcome_transform=Log()).eval()
    gp.likelihood.noise = 4.0
    found = stand_ins(gp, X[:5], Y[:5].exp(), SIDES)
    torch.testing.assert_close(found, (Y[:5] + 2.0 * SIDES).exp())
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval()
    ensemble.likelihood.noise_covar.noise = torch.tensor([[0.01], [0.04], [0.09]]).double()
    torch.testing.assert_close(stand_ins(ensemble, X[:5], Y[:5], SIDES), Y[:5] + 0.2 * SIDES)
    given = stand_ins(make_gp(fixed_noise=True), X[:5], Y[:5], SIDES)
    torch.testing.assert_close(given, Y[:5] + Yvar.mean().sqrt() * SIDES)


def test_the_process_learns_from_stand_ins() -> None:
    gp, (X, Y, _) = make_gp(), make_data(5, seed=8)
    for model in (CalibratedModel(gp, NoCalibration()), CensoredDelayModel(gp, X[:0], 0.0)):
        expected = deepcopy(model)
        expected.observe(X, stand_ins(gp, X, Y, SIDES))
        model.observe(X, Y, beyond=SIDES)
        assert torch.equal(model.posterior(X).mean, expected.posterior(X).mean)


def recorded(calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Scores that a calibrator learns, and their probabilities by its earlier distribution."""
    told: list[tuple[float, float]] = []
    update = calibrator.update

    def recording(X: Tensor, z: Tensor) -> Any:
        stated = update(X, z)
        u = stated.cdf(z.unsqueeze(-1)).flatten()
        told.extend(zip(z.tolist(), u.tolist(), strict=True))
        return stated

    monkeypatch.setattr(calibrator, "update", recording)
    return told


@pytest.mark.filterwarnings("ignore:Residuals exceed 50 predictive standard deviations")
@pytest.mark.parametrize(
    "calibrator",
    [LocalizedConformal(0.2), pytest.param(QuantileRecalibrator(), marks=pytest.mark.slow)],
)
def test_draws_keep_what_is_stated_uniform(
    calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any bounds, for outcomes of the calibrator's distribution instead of the model's."""
    calibrator, generator = deepcopy(calibrator), torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.double, generator=generator)

    X = torch.rand(500, 2, dtype=torch.double, generator=generator)
    calibrator.update(X[400:], 3.0 * normal(100))  # it widens
    model, told = CalibratedModel(make_gp(), calibrator), recorded(calibrator, monkeypatch)
    num_bounds = 0
    for t, x in enumerate(X[:400].split(1)):
        stated = predict(model, x.unsqueeze(-2), objective=False)
        y, bound = (stated.at_score(scale * normal(1, 1, 1)).reshape(1, 1) for scale in (1.0, 0.7))
        side = 1.0 if t % 3 else -1.0
        beyond = side * (side * y > side * bound).to(y)
        model.observe(x, torch.where(beyond != 0, bound, y), condition=False, beyond=beyond)
        num_bounds += int(beyond.abs().sum())
    u = torch.tensor(told)[:, 1]
    assert num_bounds > 130 and len(u) == 400
    # Draws differ from processor to processor: one test in a thousand may be beyond.
    assert kstest(u, "uniform").pvalue > 0.001
    assert abs(torch.corrcoef(torch.stack([u[1:], u[:-1]]))[0, 1]) < 3.3 / math.sqrt(400)
    # The same bound again has other draws, and a bound of probability 0 or 1 is learned unchanged.
    again = torch.ones(4, 1, dtype=torch.double)
    model.observe(x.expand(4, 2), 0.0 * again, condition=False, beyond=again)
    assert len({*told[-4:]}) == 4
    for far in (1e3, -1e3):
        model.observe(x, far * again[:1], condition=False, beyond=again[:1] * far / 1e3)
        assert math.isfinite(told[-1][0]) and told[-1][0] * far > 1e5


def test_a_replay_repeats_the_draws() -> None:
    X, Y, _ = make_data(5, seed=8)
    one, other = (CalibratedModel(make_gp(), OnlineConformal(0.2)) for _ in range(2))
    one.observe(X, Y, condition=False, beyond=SIDES)
    for rows in (slice(0, 2), slice(2, 5)):
        other.observe(X[rows], Y[rows], condition=False, beyond=SIDES[rows])
    buffers = zip(one.calibrator.buffers(), other.calibrator.buffers(), strict=True)
    assert all(torch.equal(*pair) for pair in buffers)


def test_bad_arguments_are_named() -> None:
    gp, (X, Y, _) = make_gp(), make_data(3)
    model = CalibratedModel(gp, LocalizedConformal(0.2))
    beyond: Any
    for beyond, match in (
        (torch.zeros(3), r"`beyond` must have the shape \(3, 1\) of `Y`, got \(3,\)"),
        (torch.full((3, 1), 0.5), "`beyond` must be 1 for outcomes above"),
        (torch.full((3, 1), math.nan), "`beyond` must be 1 for"),
        ([[0], [0], [1]], "`beyond` must be a tensor"),
    ):
        with pytest.raises((InputDataError, BotorchTensorDimensionError), match=match):
            model.observe(X, Y, beyond=beyond)
        with pytest.raises((InputDataError, BotorchTensorDimensionError), match=match):
            stand_ins(gp, X, Y, beyond)
    assert model.calibrator.num_updates == 0

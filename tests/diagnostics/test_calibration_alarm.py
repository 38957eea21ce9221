"""`CalibrationAlarm`: its wealth by the definition, and what it finds."""

from __future__ import annotations

import json
import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.transforms.outcome import Bilog, Log, OutcomeTransform, Standardize
from botorch.posteriors import TorchPosterior
from scipy.stats import kstest
from scipy.stats import t as student_t
from torch import Tensor
from torch.distributions import StudentT

from botorch_calib import CalibratedModel, QuantileRecalibrator
from botorch_calib.diagnostics import CalibrationAlarm
from botorch_calib.diagnostics.calibration_alarm import replayed_alarm
from botorch_calib.exceptions import CalibrationWarning
from tests.gps import make_gp

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 1.0]])


def events() -> list[tuple[str, float]]:
    tails = [("below", p) for p in (0.05, 0.1, 0.25, 0.5)]
    tails += [("above", p) for p in (0.05, 0.1, 0.25)]
    return tails + [("both", p) for p in (0.1, 0.2, 0.5)]


def met(event: tuple[str, float], u: float) -> bool:
    side, p = event
    return {
        "below": u < p,
        "above": u > 1 - p,
        "both": u < p / 2 or u > 1 - p / 2,
    }[side]


def wealth_of(pits: list[float], points: list[list[float]]) -> float:
    """From the definition: over events, odds, regions and starts."""
    middle = BOUNDS.mean(dim=0).tolist()
    # Stakes, the column that is looked at, and whether above its middle; the first is everywhere.
    regions = [(0.5, 0, None), *((0.125, j, up) for j in range(2) for up in (False, True))]
    num = len(pits)
    total = 0.0
    for event in events():
        p = event[1]
        for k in (0.25, 0.5, 2.0, 4.0):
            r = k * p / (1 - p) / (1 + k * p / (1 - p))
            for stake, j, up in regions:
                won = 1 / (num + 1)  # those that have not started
                for start in range(1, num + 1):
                    product = 1 / (start * (start + 1))
                    for u, x in zip(pits[start - 1 :], points[start - 1 :], strict=True):
                        if up is None or (x[j] > middle[j]) == up:
                            product *= r / p if met(event, u) else (1 - r) / (1 - p)
                    won += product
                total += stake / (4 * len(events())) * won
    return total


def test_the_wealth_is_that_of_the_definition() -> None:
    torch.manual_seed(0)
    u, X = torch.rand(12).double(), BOUNDS[0] + torch.rand(12, 2) * (BOUNDS[1] - BOUNDS[0])
    alarm = CalibrationAlarm(bounds=BOUNDS)
    for i in range(12):
        alarm.observe(u[i : i + 1], X[i : i + 1])
        assert alarm.wealth == pytest.approx(wealth_of(u[: i + 1].tolist(), X[: i + 1].tolist()))
    assert len(alarm.history) == 12


def test_each_bet_is_fair() -> None:
    """A uniform transform leaves the wealth at 1 on average: by exact quadrature over a grid."""
    u = (torch.arange(4000).double() + 0.5) / 4000
    for X in (None, torch.full((4000, 2), 0.7)):
        alarm = CalibrationAlarm(bounds=None if X is None else BOUNDS)
        for _ in range(5):
            alarm.observe(u, X)  # the mean of the factors of all of them
        assert alarm.history == pytest.approx([1.0] * 5, abs=2e-3)


def run(u: Tensor, X: Tensor | None = None) -> CalibrationAlarm:
    return replayed_alarm(u, X, None if X is None else BOUNDS)


def test_it_names_level_direction_and_region() -> None:
    torch.manual_seed(0)
    z, X = torch.randn(150).double(), BOUNDS[0] + torch.rand(150, 2) * (BOUNDS[1] - BOUNDS[0])
    assert not run(torch.special.ndtr(z), X).raised
    assert "No calibration alarm after 150 rounds" in str(run(torch.special.ndtr(z), X))
    narrow = run(torch.special.ndtr(2 * z), X)
    assert narrow.finding is not None and "outside the central" in narrow.finding.event
    assert narrow.finding.met > 1.5 * narrow.finding.stated
    assert narrow.finding.region == "everywhere"
    low = run(torch.special.ndtr(z + 1))
    assert low.finding is not None and "above" in low.finding.event
    wide = run(torch.special.ndtr(0.4 * z))
    assert wide.finding is not None and wide.finding.met < wide.finding.stated
    here = X[:, 1] > 0.0
    local = run(torch.special.ndtr(torch.where(here, 3 * z, z)), X)
    assert local.finding is not None
    assert local.finding.region == "where input 1 is above 0"
    assert local.raised_at == 1 + next(t for t, w in enumerate(local.history) if w >= 20)
    assert f"Calibration alarm in round {local.raised_at}: outcomes" in str(local)
    assert "where input 1" in str(local)


def test_a_late_change_is_noticed() -> None:
    torch.manual_seed(1)
    z = torch.randn(400).double()
    z[300:] *= 3.0
    alarm = run(torch.special.ndtr(z))
    first = next(t for t, wealth in enumerate(alarm.history) if wealth >= 20)
    assert 300 <= first < 350 and alarm.raised


def test_the_wealth_of_a_very_long_run_stays_a_number() -> None:
    """Bets that win ever more exceed double precision, and the greatest is still known."""
    alarm = run(torch.tensor([0.01, 0.5] * 2000))  # below the 5 % quantile half of the time
    assert all(map(math.isfinite, alarm.history))
    assert alarm.wealth == math.exp(700.0) and json.loads(json.dumps(alarm.to_dict()))
    # Odds times 4 of the 5 % tail, the bets of all rounds: their logarithms by the definition.
    r = 4 * 0.05 / 0.95 / (1 + 4 * 0.05 / 0.95)
    gain = 0.5 * math.log(r / 0.05) + 0.5 * math.log((1 - r) / 0.95)
    assert alarm.suspicion.event == "outcomes below the 0.05-quantile"
    first_start = 4000 * gain - math.log(2.0)
    assert first_start < float(alarm._bets.max()) < first_start + math.log(2.0)
    assert alarm.suspicion.met == 0.5 and math.isfinite(alarm.suspicion.wealth)


def test_models_are_watched_by_their_predictions() -> None:
    X = torch.rand(6, 2).double()
    gp = make_gp()
    noisy = gp.posterior(X.unsqueeze(1), observation_noise=True)
    deviation = noisy.variance.sqrt().flatten()
    for shift in (0.0, 1.5):
        Y = noisy.mean.flatten() + shift * deviation
        plain, own = CalibrationAlarm(), CalibrationAlarm()
        plain.watch(gp, X, Y.unsqueeze(-1))
        own.observe(torch.special.ndtr(torch.full((6,), shift)))
        assert plain.wealth == pytest.approx(own.wealth, rel=1e-9)
    fresh = CalibratedModel(gp, QuantileRecalibrator([0.9]), denoise=False)
    with pytest.warns(CalibrationWarning, match="has seen 0 residuals"):
        (calibrated := CalibrationAlarm()).watch(fresh, X, Y.unsqueeze(-1))
    assert calibrated.wealth == pytest.approx(plain.wealth, rel=1e-9)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.double, 1e-7), (torch.float, 1e-4)])
def test_small_units_of_the_outcome_raise_no_alarm(dtype: torch.dtype, unit: float) -> None:
    """GPyTorch's least variance, 1e-10 or 1e-6, is in units of the outcome."""
    X = torch.linspace(0.0, 1.0, 12, dtype=dtype).unsqueeze(-1)
    Y = (6.0 * X).sin() + 0.3 * (40.0 * X).cos()
    alarms = CalibrationAlarm(), CalibrationAlarm()
    for alarm, scale in zip(alarms, (1.0, unit), strict=True):
        gp = SingleTaskGP(X[::2], scale * Y[::2], outcome_transform=Standardize(1))
        for x, y in zip(X[1::2], scale * Y[1::2], strict=True):
            alarm.watch(gp, x.unsqueeze(0), y.unsqueeze(0))
    assert alarms[1].history == pytest.approx(alarms[0].history, rel=1e-3)


def test_a_posterior_of_another_law_is_not_taken_to_be_normal() -> None:
    law = StudentT(3.0, torch.zeros(6, 1, 1).double(), torch.ones(6, 1, 1).double())
    model = SimpleNamespace(posterior=lambda X, observation_noise: TorchPosterior(law))
    Y = torch.linspace(-4.0, 9.0, 6).double().unsqueeze(-1)
    (alarm := CalibrationAlarm()).watch(model, torch.rand(6, 1), Y)
    (own := CalibrationAlarm()).observe(torch.from_numpy(student_t.cdf(Y, 3.0)))
    assert alarm.wealth == pytest.approx(own.wealth, rel=1e-9)


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
@pytest.mark.parametrize("transform", [Log(), Bilog()], ids=["log", "bilog"])
def test_a_transformed_posterior_is_not_taken_to_be_normal(transform: OutcomeTransform) -> None:
    X, Y = torch.rand(8, 1).double(), torch.linspace(0.1, 9.0, 8).double().unsqueeze(-1)
    gp: Any = SingleTaskGP(X, Y, outcome_transform=transform)
    gp.likelihood.noise = 1.0
    (alarm := CalibrationAlarm()).watch(gp, X, Y)
    latent: Any = SingleTaskGP(X, transform(Y)[0], outcome_transform=None)
    latent.load_state_dict(gp.state_dict())
    (own := CalibrationAlarm()).watch(latent, X, transform(Y)[0])
    assert alarm.wealth == pytest.approx(own.wealth, rel=1e-9)


class Counts:
    """A model, and its posterior, of Poisson counts whose rate is the only input."""

    def posterior(self, X: Tensor, observation_noise: bool) -> Any:
        self.mean = X
        return self

    def cdf(self, Y: Tensor) -> Tensor:
        at_most = torch.special.gammaincc(Y.floor().clamp_min(0.0) + 1.0, self.mean)
        return torch.where(Y < 0.0, 0.0, at_most)


def counts(num: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rate = 2.0 + 8.0 * torch.rand(num, 1, dtype=torch.double, generator=generator)
    return rate, torch.poisson(rate, generator=generator)


def test_outcomes_on_a_grid_are_drawn_within_their_probability() -> None:
    X, Y = counts(4000, 0)
    model = Counts().posterior(X, True)
    at_most, least = model.cdf(Y).flatten(), model.cdf(Y - 1.0).flatten()
    torch.manual_seed(1)
    (alarm := CalibrationAlarm()).watch(Counts(), X, Y, grid=1.0)
    torch.manual_seed(1)
    u = least + torch.rand(4000, dtype=torch.double) * (at_most - least)
    (own := CalibrationAlarm()).observe(u)
    assert alarm.wealth == pytest.approx(own.wealth, rel=1e-12)
    assert kstest(u, "uniform").pvalue > 0.01 > 1e-9 > kstest(at_most, "uniform").pvalue
    for below in (at_most + 1e-3, least[:5], least - 1.0):
        with pytest.raises(InputDataError, match="below"):
            alarm.observe(at_most, below=below)


def test_tied_outcomes_are_noticed_once() -> None:
    X, Y = counts(12, 0)
    alarm, again = CalibrationAlarm(), Y.mean().expand(8, 1)
    alarm.watch(Counts(), X[:1].expand(8, 1), again)  # one point evaluated again and again
    with pytest.warns(CalibrationWarning, match="grid=1.0") as caught:
        for x, y in zip(X, Y, strict=True):
            alarm.watch(Counts(), x.unsqueeze(0), y.unsqueeze(0))
    assert len(caught) == 1 and caught[0].filename == __file__
    CalibrationAlarm().watch(Counts(), X, Y, grid=1.0)


@pytest.mark.slow
def test_false_alarms_of_counts() -> None:
    """Of 200 runs of 100 rounds by a true model: with the grid at most 5 % are false alarms."""
    raised = {None: 0, 1.0: 0}
    for seed, grid in product(range(200), raised):
        torch.manual_seed(seed)
        alarm = CalibrationAlarm()
        alarm._has_warned = True
        for x, y in zip(*counts(100, seed), strict=True):
            alarm.watch(Counts(), x.unsqueeze(0), y.unsqueeze(0), grid)
        raised[grid] += alarm.raised
    # Three standard errors of 5 %
    assert raised[1.0] <= 200 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)) < 0.15 * 200
    assert raised[None] > 0.15 * 200


def test_bad_arguments_are_named() -> None:
    alarm = CalibrationAlarm(bounds=BOUNDS)
    assert alarm.wealth == 1.0 and not alarm.observe(torch.zeros(0), torch.zeros(0, 2))
    for pits in (torch.tensor([1.5]), torch.tensor([-0.1]), torch.tensor([math.nan])):
        with pytest.raises(InputDataError, match="pits"):
            alarm.observe(pits, torch.zeros(1, 2))
    for X in (None, torch.zeros(2, 2), torch.zeros(1, 3)):
        with pytest.raises(BotorchTensorDimensionError, match="`X`"):
            alarm.observe(torch.tensor([0.5]), X)
    with pytest.raises(BotorchTensorDimensionError, match="`Y`"):
        alarm.watch(make_gp(), torch.zeros(2, 2).double(), torch.zeros(2).double())
    X = torch.rand(5, 2, dtype=torch.double)
    Y = torch.tensor([[-1.0, -0.5, 0.0, 0.5, 1.0]]).double().mT / 0.625**0.5
    for several in (SingleTaskGP(X, Y.repeat(1, 2)), SaasFullyBayesianSingleTaskGP(X, Y)):
        if isinstance(several, SaasFullyBayesianSingleTaskGP):
            one = torch.ones(5, dtype=torch.double)  # as many members as outcomes
            samples = {"mean": 0 * one, "outputscale": one, "noise": one}
            several.load_mcmc_samples({**samples, "lengthscale": torch.ones(5, 1, 2).double()})
        with pytest.raises(UnsupportedError, match="one outcome"):
            alarm.watch(several, X, Y)
    with pytest.raises(InputDataError, match="false_alarm"):
        CalibrationAlarm(0.0)

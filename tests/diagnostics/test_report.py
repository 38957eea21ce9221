"""Reports against refits one by one and calibrators updated one by one."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Power, Standardize
from botorch.models.transforms.outcome import StratifiedStandardize
from scipy.stats import binomtest, norm

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    LocalizedConformal,
    OnlineConformal,
    calibration_report,
)
from botorch_calib.diagnostics import (
    CalibrationAlarm,
    noise_diagnosis,
    report_from_moments,
    report_from_pits,
)
from botorch_calib.diagnostics.report_scores import ForecastScores, median_cells
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import CensoredDelayModel
from tests.gps import DOUBLE, make_data, make_gp, make_model, make_variational, predicted

N = 12
LEVELS = [0.25, 0.5, 0.75]


def check_normal(scores: ForecastScores, rows: list[tuple[float, float, float]]) -> None:
    """The scores are those of normal distributions with these means and deviations of ``y``."""
    width = norm.ppf(0.85)
    z = torch.tensor([(y - mean) / sd for mean, sd, y in rows], **DOUBLE)
    covered = z.abs() <= width
    pits = torch.tensor(norm.cdf(z.numpy()))
    torch.testing.assert_close(scores.pits, pits, rtol=0.0, atol=1e-7)
    assert scores.covered.tolist() == covered.tolist()
    assert scores.coverage == pytest.approx(covered.double().mean().item())
    torch.testing.assert_close(
        scores.frequencies, torch.stack([(pits <= p).double().mean() for p in LEVELS])
    )
    sd = torch.tensor([row[1] for row in rows], **DOUBLE)
    assert scores.mean_deviation == pytest.approx(sd.mean().item(), rel=1e-6)
    assert scores.mean_width == pytest.approx(2 * width * sd.mean().item(), rel=1e-6)
    misses = sd * (z.abs() - width).clamp(min=0.0)
    expected = (2 * width * sd + 2 / 0.3 * misses).mean().item()
    assert scores.mean_interval_score == pytest.approx(expected, rel=1e-6)
    density = torch.tensor(norm.pdf(z.numpy()))
    scores_z = z * (2 * pits - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert scores.mean_crps == pytest.approx((sd * scores_z).mean().item(), rel=1e-6)


# ------------------------------------------------------------ a Gaussian process alone


@pytest.mark.parametrize(
    ("fixed_noise", "transforms", "kind", "train_mode"),
    [
        (False, False, "prequential", False),
        (True, False, "loo", True),
        (False, True, "loo", False),
        (True, True, "prequential", True),
    ],
)
def test_report_of_a_gp_equals_refits(
    fixed_noise: bool, transforms: bool, kind: Any, train_mode: bool
) -> None:
    gp = make_gp(fixed_noise, transforms)
    Y = make_data(transforms=transforms)[1]
    others: dict[str, Callable[[int], list[int]]] = {
        "prequential": lambda i: list(range(i)),
        "loo": lambda i: [j for j in range(N) if j != i],
    }
    rows = []
    for i in range(3, N):
        posterior, noise = predicted(gp, i, others[kind](i))
        deviation = (posterior.variance + noise).sqrt().item()
        rows.append((posterior.mean.item(), deviation, Y[i].item()))
    gp.train(train_mode)
    report = calibration_report(gp, alpha=0.3, levels=LEVELS, num_initial=3, residuals=kind)
    assert gp.training is train_mode
    assert report.source == kind and report.num_observations == N - 3
    assert report.calibrated is None and list(report.forecasts) == ["Gaussian process"]
    check_normal(report.base, rows)


# ------------------------------------------------------------ calibrated models


@pytest.mark.parametrize("kind", ["prequential", "loo"])
def test_each_observation_is_judged_by_the_distribution_before_it(kind: Any) -> None:
    gp = make_gp(transforms=True)
    template = LocalizedConformal(0.3, lengthscale=0.5, step_size=0.2)
    model = CalibratedModel.from_history(gp, template)
    state = copy.deepcopy(model.calibrator.state_dict())
    report = calibration_report(model, alpha=0.3, num_initial=2, residuals=kind)
    for name, value in model.calibrator.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0.0, atol=0.0)

    plain = calibration_report(gp, alpha=0.3, num_initial=2, residuals=kind).base
    assert report.calibrated is not None
    torch.testing.assert_close(report.base.pits, plain.pits)
    pits, covered, widths = [], [], []
    calibrator = template.fresh()
    for i, p in enumerate(plain.pits, start=2):
        X, z = gp.train_inputs[0][i : i + 1], torch.special.ndtri(p)
        width = calibrator.half_width(X).squeeze()
        pits.append(calibrator.predictive(X).cdf(z.reshape(1, 1)).squeeze())
        covered.append(bool(z.abs() <= width))
        widths.append(2 * width)
        calibrator.update(X, z.reshape(1))
    torch.testing.assert_close(report.calibrated.pits, torch.stack(pits))
    assert report.calibrated.covered.tolist() == covered
    running = [sum(covered[: t + 1]) / (t + 1) for t in range(len(covered))]
    assert report.calibrated.running_coverage.tolist() == pytest.approx(running)
    assert len({round(float(w), 6) for w in widths}) > 5, (
        "the case would not tell distributions apart"
    )


def test_units_that_differ_from_task_to_task() -> None:
    """A factor per task, which the forecasts of its observations are multiplied by."""
    X, Y, _ = make_data(N)
    X = torch.cat([X[:, :1], (torch.arange(N) % 2).to(X).unsqueeze(-1)], dim=-1)
    Y = torch.where(X[:, 1:] > 0, 100.0 + 30.0 * Y, 2.0 * Y)
    strata = StratifiedStandardize(1, torch.tensor([0.0, 1.0], **DOUBLE))
    gp: Any = MultiTaskGP(X, Y, 1, output_tasks=[1], outcome_transform=strata).eval()
    report = calibration_report(gp, alpha=0.4, num_initial=3)
    assert report.num_observations == 3
    # Each of the last three of its task, predicted from all before it, which keep their units.
    targets, widths = gp.train_targets, []
    for place, index in enumerate((N - 5, N - 3, N - 1)):
        gp.set_train_data(X[:index], targets[:index], strict=False)
        posterior = gp.posterior(X[index : index + 1], observation_noise=True)
        deviation = posterior.variance.sqrt().item()
        z = (Y[index] - posterior.mean.squeeze(-1)).item() / deviation
        assert report.base.pits[place].item() == pytest.approx(norm.cdf(z), abs=1e-6)
        widths.append(2 * norm.ppf(0.8) * deviation)
    assert report.base.mean_width == pytest.approx(sum(widths) / 3, rel=1e-6)


def test_held_out_report_is_that_of_the_observation_distribution() -> None:
    model = make_model(transforms=True)
    X, Y, _ = make_data(9, transforms=True, seed=8)
    posterior = model.posterior(X, observation_noise=True)
    low, high = posterior.quantile(torch.tensor([0.1, 0.9], **DOUBLE))
    scores = calibration_report(model, X, Y).calibrated
    assert scores is not None
    torch.testing.assert_close(scores.pits, posterior.cdf(Y).flatten())
    assert scores.covered.tolist() == ((low <= Y) & (Y <= high)).flatten().tolist()
    assert scores.mean_width == pytest.approx((high - low).mean().item())
    assert scores.mean_deviation == pytest.approx(posterior.variance.sqrt().mean().item())


# ------------------------------------------------------------ regions


@pytest.mark.parametrize("num_cells", [3, 7, 100])
def test_regions_partition_the_data(num_cells: int) -> None:
    X = torch.randn(41, 3, **DOUBLE, generator=torch.Generator().manual_seed(0))
    X[:, 1] *= 1e6  # units do not matter
    cells = median_cells(X, num_cells)
    assert len(cells) == min(num_cells, 41)
    assert sorted(torch.cat([cell.indices for cell in cells]).tolist()) == list(range(41))
    volumes = []
    for cell in cells:
        inside = ((X >= cell.lower) & (X <= cell.upper)).all(dim=-1)
        assert inside.nonzero().flatten().tolist() == cell.indices.tolist()
        volumes.append((cell.upper - cell.lower).prod())
    whole = (X.amax(dim=0) - X.amin(dim=0)).prod()
    torch.testing.assert_close(torch.stack(volumes).sum(), whole)
    counts = [len(cell.indices) for cell in cells]
    assert max(counts) <= 2 * min(counts) + 1
    scaled = median_cells(X * X.new_tensor([1.0, 1e-9, 5.0]), num_cells)
    assert [c.indices.tolist() for c in scaled] == [c.indices.tolist() for c in cells]


def test_regions_keep_repeated_points_together() -> None:
    X = torch.tensor([[0.0], [1.0], [1.0], [1.0], [1.0], [2.0]], **DOUBLE)
    cells = median_cells(X, 10)
    assert sorted(cell.indices.tolist() for cell in cells) == [[0], [1, 2, 3, 4], [5]]
    assert len(median_cells(torch.zeros(5, 2), 3)) == 1
    assert len(median_cells(torch.zeros(1, 2), 3)) == 1


def test_coverage_by_region() -> None:
    report = calibration_report(make_model(transforms=True), num_regions=3)
    X = make_data(transforms=True)[0]
    assert report.calibrated is not None
    for scores in (report.calibrated, report.base):
        assert len(scores.regions) == 3
        assert sum(region.count for region in scores.regions) == N
        for region in scores.regions:
            inside = ((X >= region.lower) & (X <= region.upper)).all(dim=-1)
            hits = int(scores.covered[inside].sum())
            assert region.count == int(inside.sum())
            assert region.coverage == pytest.approx(hits / region.count)
            exact = binomtest(hits, region.count).proportion_ci(0.95, method="exact")
            assert region.interval == pytest.approx(tuple(exact), abs=1e-10)


# ------------------------------------------------------------ output


def test_levels_in_single_precision_are_exported_as_written() -> None:
    single: Any = np.float32(0.1)
    report = calibration_report(make_gp(), alpha=single)
    assert json.loads(json.dumps(report.to_dict()))["alpha"] == 0.1
    diagnosis = noise_diagnosis(make_gp(), level=single)
    assert json.loads(json.dumps(diagnosis.to_dict()))["level"] == 0.1
    pits = torch.rand(20).double()
    assert report_from_pits(pits, alpha=single).alpha == 0.1
    assert report_from_moments(pits, pits + 1.0, pits, alpha=single).alpha == 0.1


def test_export_is_plain() -> None:
    report = calibration_report(make_model(), levels=LEVELS)
    exported = report.to_dict()
    assert json.loads(json.dumps(exported)) == exported
    assert report.calibrated is not None
    assert exported["calibrated"]["mean_crps"] == report.calibrated.mean_crps
    assert exported["base"]["pits"] == report.base.pits.tolist()
    assert len(exported["base"]["regions"]) == 4
    assert exported["levels"] == LEVELS
    assert calibration_report(make_gp()).to_dict()["calibrated"] is None


# ------------------------------------------------------------ warnings and errors


def test_too_few_observations_for_the_level_are_pointed_out() -> None:
    gp = make_gp()
    with pytest.warns(CalibrationWarning, match="11 observations.*at least 20"):
        calibration_report(gp, alpha=0.05, num_initial=1)
    calibration_report(gp, alpha=1 / N)  # just enough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"levels": [0.5, 0.2]}, "levels"),
        ({"num_initial": N}, "num_initial"),
        ({"residuals": "training"}, "residuals"),
        (
            {"X": torch.zeros(2, 2), "Y": torch.zeros(2, 1), "residuals": "loo"},
            "`residuals='loo'` is for training data",
        ),
        ({"Y": torch.zeros(2, 1, **DOUBLE)}, "both"),
        ({"X": torch.zeros(2, 2, **DOUBLE), "Y": torch.zeros(3, 1, **DOUBLE)}, "`Y`.* 2 x 1.*3, 1"),
        ({"X": torch.zeros(0, 2, **DOUBLE), "Y": torch.zeros(0, 1, **DOUBLE)}, "empty"),
        ({"X": torch.zeros(1, 2, **DOUBLE), "Y": torch.full((1, 1), math.nan, **DOUBLE)}, "`Y`"),
    ],
)
def test_bad_input_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputDataError, BotorchTensorDimensionError), match=message):
        calibration_report(make_gp(), **options)


def batched() -> SingleTaskGP:
    X, Y, _ = make_data()
    return SingleTaskGP(X.expand(2, N, 2), Y.expand(2, N, 1))


def decreasing_outcome() -> SingleTaskGP:
    X, Y, _ = make_data()
    decreasing = ChainedOutcomeTransform(power=Power(-1.0), standardize=Standardize(1))
    return SingleTaskGP(X, Y.exp(), outcome_transform=decreasing)


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "batched": batched,
    "outcome transform that decreases": decreasing_outcome,
    "two outputs": lambda: ModelListGP(make_gp(), make_gp()),
}


def test_held_out_inputs_of_another_width() -> None:
    X, Y = torch.zeros(6, 3, **DOUBLE), torch.zeros(6, 1, **DOUBLE)
    delayed = CensoredDelayModel(make_gp(), torch.rand(2, 2, **DOUBLE), -1.0)
    calibrated = CalibratedModel.from_history(make_gp(transforms=True), OnlineConformal(0.2))
    for model in (make_gp(), calibrated, CalibratedModel(delayed, OnlineConformal(0.2))):
        with pytest.raises(BotorchTensorDimensionError, match="`X` must have 2 columns.*got 3"):
            calibration_report(model, X, Y)


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("held_out", [False, True])
def test_unsupported_models_are_named(name: str, held_out: bool) -> None:
    model = UNSUPPORTED[name]()
    data = make_data()[:2] if held_out else ()
    with pytest.raises(UnsupportedError, match="SingleTaskGP|ModelListGP|Log"):
        calibration_report(model, *data)


@pytest.mark.parametrize("held_out", [False, True])
def test_a_list_of_models_has_a_report_for_each(held_out: bool) -> None:
    calibrated = CalibratedModel(make_gp(), OnlineConformal(0.2))
    data = make_data()[:2] if held_out else ()
    with pytest.raises(UnsupportedError, match="one report for each outcome, of one of its `mod"):
        calibration_report(CalibratedModelList(calibrated, calibrated), *data)


def test_a_variational_model_needs_held_out_data() -> None:
    X, Y, _ = make_data(9, seed=8)
    assert calibration_report(make_variational(), X, Y).num_observations == 9
    with pytest.raises(UnsupportedError, match="Variational"):
        calibration_report(make_variational())


# ------------------------------------------------------------ alarms


def test_a_history_is_replayed_to_an_alarm_of_each_forecaster() -> None:
    """As an alarm that is told the PITs of the report one by one; an indication, it says."""
    report = calibration_report(make_model(num=30))
    X = make_gp(num=30).train_inputs[0]
    bounds = torch.stack([X.amin(dim=0), X.amax(dim=0)])
    assert list(report.alarms) == ["calibrated", "Gaussian process"]
    for name, scores in report.forecasts.items():
        expected = CalibrationAlarm(bounds=bounds)
        for u, x in zip(scores.pits, X, strict=True):
            expected.observe(u.reshape(1), x.unsqueeze(0))
        assert report.alarms[name].history == expected.history
        assert f"{name}: {expected}" in " ".join(str(report).split())
    assert "is an indication" in str(report) and "is bounded" not in str(report)
    assert report.to_dict()["alarms"]["calibrated"]["wealth"] == report.alarms["calibrated"].history


def test_there_is_no_alarm_where_outcomes_did_not_come_in_turn() -> None:
    X, Y, _ = make_data()
    for report in (
        calibration_report(make_gp(), residuals="loo"),
        calibration_report(make_gp(), X, Y),
    ):
        assert report.alarms == {} and "alarm" not in str(report)


def test_a_carried_alarm_stands_in_the_report() -> None:
    alarm = CalibrationAlarm()
    alarm.observe(torch.tensor([0.3]))
    report = calibration_report(make_gp(), alarm=alarm)
    assert report.alarms["carried"] is alarm and "carried: No calibration alarm" in str(report)
    assert "is an indication" in str(report) and "is bounded" in str(report)


def test_alarms_of_predictions_made_elsewhere() -> None:
    """Wrong in one half of the box from round 40 on: when, in which direction and where."""
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(100, dtype=torch.double, generator=generator)
    X = torch.rand(100, 2, dtype=torch.double, generator=generator)
    wrong = (X[:, 1] > 0.5) & (torch.arange(100) >= 40)
    u = torch.where(wrong, 0.9 + 0.1 * u, u)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    report = report_from_pits(u, X=X, bounds=box)
    (alarm,) = report.alarms.values()
    assert alarm.raised_at is not None and 40 < alarm.raised_at < 80
    assert alarm.finding is not None and "above the 0.9-quantile" in alarm.finding.event
    assert alarm.finding.region == "where input 1 is above 0.5"
    exported = report.to_dict()["alarms"]["stated"]
    assert exported["raised_at"] == alarm.raised_at and exported["finding"]["stated"] == 0.1
    assert json.loads(json.dumps(exported)) == exported
    assert "is bounded" in str(report) and "is an indication" not in str(report)
    assert report_from_pits(u, X=X).alarms["stated"].bounds is None
    with pytest.raises(BotorchTensorDimensionError, match="as there are `bounds`"):
        report_from_pits(u, bounds=box)
    mean, deviation = torch.zeros(100), torch.ones(100)
    same = report_from_moments(mean, deviation, torch.special.ndtri(u), X=X, bounds=box)
    assert same.alarms["stated"].raised_at == alarm.raised_at

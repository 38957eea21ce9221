"""Coverage of known objectives, against models conditioned one by one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from scipy.stats import norm
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CalibratedPosterior,
    CensoredDelayModel,
    LocalizedConformal,
    OnlineConformal,
    calibration_report,
)
from botorch_calib.diagnostics.objective_scores import ObjectiveScores
from tests.gps import (
    DOUBLE,
    far_from_gaussian,
    make_data,
    make_gp,
    make_model,
    make_multitask,
    predicted,
)

# Outcomes stay in the units in which the hyperparameters are known.
pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")

N, ALPHA = 12, 0.3
WIDTH = norm.ppf(1 - ALPHA / 2)


def truth_of(Y: Tensor) -> Tensor:
    """Values near the observations, on both sides of them."""
    offsets = torch.randn(len(Y), 1, **DOUBLE, generator=torch.Generator().manual_seed(4))
    return Y + 0.3 * Y.std() * offsets


def check(scores: ObjectiveScores | None, pits: Tensor, widths: Tensor) -> None:
    assert scores is not None
    torch.testing.assert_close(scores.pits, pits, rtol=1e-6, atol=1e-6)
    covered = (ALPHA / 2 <= pits) & (pits <= 1 - ALPHA / 2)
    assert scores.covered.tolist() == covered.tolist()
    assert scores.coverage == pytest.approx(covered.double().mean().item())
    assert scores.mean_width == pytest.approx(widths.mean().item(), rel=1e-6)


def check_normal(scores: ObjectiveScores | None, mean: Tensor, sd: Tensor, truth: Tensor) -> None:
    check(scores, torch.special.ndtr((truth - mean) / sd).flatten(), 2 * WIDTH * sd)


def others(kind: str, index: int) -> list[int]:
    return list(range(index)) if kind == "prequential" else [j for j in range(N) if j != index]


@pytest.mark.parametrize(
    ("fixed_noise", "transforms", "kind", "train_mode"),
    [
        (False, False, "prequential", False),
        (True, False, "loo", True),
        (False, True, "loo", False),
        (True, True, "prequential", True),
    ],
)
def test_gaussian_process(fixed_noise: bool, transforms: bool, kind: Any, train_mode: bool) -> None:
    gp = make_gp(fixed_noise, transforms)
    X, Y, _ = make_data(transforms=transforms)
    truth = truth_of(Y)
    before = [predicted(gp, i, others(kind, i))[0] for i in range(3, N)]
    with torch.no_grad():
        now = gp.posterior(X[3:])
    gp.train(train_mode)
    base = calibration_report(gp, alpha=ALPHA, num_initial=3, residuals=kind, truth=truth).base
    mean, variance = (
        torch.cat([getattr(p, name) for p in before]) for name in ("mean", "variance")
    )
    check_normal(base.objective, mean, variance.sqrt(), truth[3:])
    check_normal(base.objective_now, now.mean, now.variance.sqrt(), truth[3:])


@pytest.mark.parametrize(
    ("fixed_noise", "kind", "excess"),
    [
        (False, "prequential", "noise"),
        (True, "loo", "noise"),
        (False, "loo", "objective"),
        (True, "prequential", "objective"),
    ],
)
def test_calibrated_model(fixed_noise: bool, kind: Any, excess: str) -> None:
    """Each point by the calibrator as it stood, then by the one that has seen everything."""
    gp = make_gp(fixed_noise, transforms=True)
    X, Y, _ = make_data(transforms=True)
    truth, template = truth_of(Y), LocalizedConformal(ALPHA, lengthscale=0.5, step_size=0.2)
    model = CalibratedModel(gp, far_from_gaussian(ALPHA), excess=excess)
    model.calibrator = template.fresh()
    calibrator, pits, widths = template.fresh(), [], []
    for i in range(N):
        posterior, noise = predicted(gp, i, others(kind, i))
        inputs = gp.train_inputs[0][i : i + 1]
        predictive = calibrator.predictive(inputs)
        stated = CalibratedPosterior(posterior, predictive, noise, excess=excess)
        pits.append(stated.cdf(truth[i : i + 1]).flatten())
        low, high = stated.quantile(torch.tensor([ALPHA / 2, 1 - ALPHA / 2], **DOUBLE))
        widths.append((high - low).flatten())
        deviation = (posterior.variance + noise).sqrt()
        calibrator.update(inputs, ((Y[i] - posterior.mean) / deviation).flatten())
    model.calibrator.update(gp.train_inputs[0], torch.linspace(-3, 3, N, **DOUBLE))
    for denoise in (True, False):
        model.denoise = denoise
        report = calibration_report(model, alpha=ALPHA, residuals=kind, truth=truth)
        assert report.calibrated is not None
        check(report.calibrated.objective, torch.cat(pits), torch.cat(widths))
        now = CalibratedModel(gp, model.calibrator, excess=excess).posterior(X.unsqueeze(-2))
        low, high = now.quantile(torch.tensor([ALPHA / 2, 1 - ALPHA / 2], **DOUBLE))
        pit = now.cdf(truth.unsqueeze(-2)).flatten()
        check(report.calibrated.objective_now, pit, high - low)
    plain = calibration_report(gp, alpha=ALPHA, residuals=kind, truth=truth).base
    for name in ("objective", "objective_now"):
        ours, theirs = getattr(report.base, name), getattr(plain, name)
        torch.testing.assert_close(ours.pits, theirs.pits)
        assert ours.mean_width == pytest.approx(theirs.mean_width)


@pytest.mark.parametrize("denoise", [True, False])
def test_held_out_points(denoise: bool) -> None:
    model = make_model(transforms=True)
    X, Y, _ = make_data(9, transforms=True, seed=8)
    truth, posterior = truth_of(Y), model.posterior(X.unsqueeze(-2))
    model.denoise = denoise
    report = calibration_report(model, X, Y, alpha=ALPHA, truth=truth)
    assert report.calibrated is not None and report.calibrated.objective_now is None
    low, high = posterior.quantile(torch.tensor([ALPHA / 2, 1 - ALPHA / 2], **DOUBLE))
    pits = posterior.cdf(truth.unsqueeze(-2)).flatten()
    check(report.calibrated.objective, pits, high - low)
    assert isinstance(posterior, CalibratedPosterior)
    base = posterior.base_posterior
    sd = base.variance.sqrt().detach()
    check_normal(report.base.objective, base.mean.detach(), sd, truth.unsqueeze(-2))


def test_an_ensemble_is_judged_by_its_mixture() -> None:
    X, Y, _ = make_data()
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3).eval()
    at, observed, _ = make_data(9, seed=8)
    truth, posterior = truth_of(observed), ensemble.posterior(at.unsqueeze(-2))
    sd = posterior.variance.sqrt().detach()
    z = (truth.view(-1, 1, 1, 1) - posterior.mean.detach()) / sd
    scores = calibration_report(ensemble, at, observed, alpha=ALPHA, truth=truth).base.objective
    assert scores is not None and scores.covered.shape == (9,)
    pits = torch.special.ndtr(z).mean(dim=1).flatten()
    torch.testing.assert_close(scores.pits, pits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("held_out", [False, True])
def test_truth_may_be_a_function_of_raw_inputs(held_out: bool) -> None:
    model = make_model(transforms=True)
    data = make_data(9, transforms=True, seed=8)[:2] if held_out else ()
    X = data[0] if held_out else make_data(transforms=True)[0]

    def f(X: Tensor) -> Tensor:
        return 30 + 5 * X.sin().sum(dim=-1, keepdim=True)

    reports = [calibration_report(model, *data, truth=truth) for truth in (f, f(X))]
    assert reports[0].to_dict() == reports[1].to_dict()
    assert str(reports[0]) == str(reports[1])


@pytest.mark.parametrize("excess", ["noise", "objective"])
def test_pending_points_do_not_count(excess: str) -> None:
    truth, pending = truth_of(make_data()[1]), make_data(3, seed=1)[0]
    gp, calibrator = make_gp(), far_from_gaussian()
    alone = CalibratedModel(gp, calibrator, excess=excess)
    expected = calibration_report(alone, truth=truth)
    for model in (
        CensoredDelayModel(alone, pending, -3.0),
        CalibratedModel(CensoredDelayModel(gp, pending, -3.0), calibrator, excess=excess),
    ):
        assert calibration_report(model, truth=truth).to_dict() == expected.to_dict()
    plain = calibration_report(CensoredDelayModel(gp, pending, -3.0), truth=truth)
    assert plain.to_dict()["base"] == expected.to_dict()["base"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from the multi-task kernel
def test_multi_task_model() -> None:
    gp = make_multitask()
    Y = make_data()[1]
    scores = calibration_report(gp, truth=truth_of(Y)).base
    assert scores.objective is not None and scores.objective_now is not None
    assert scores.objective.pits.shape == scores.objective_now.pits.shape == (N // 2,)


def test_single_precision() -> None:
    Y = make_data()[1]
    single, double = (
        calibration_report(make_model(dtype), truth=truth_of(Y).to(dtype)).calibrated
        for dtype in (torch.float, torch.double)
    )
    assert single is not None and double is not None
    for name in ("objective", "objective_now"):
        ours, theirs = getattr(single, name), getattr(double, name)
        torch.testing.assert_close(ours.pits.double(), theirs.pits, rtol=0.0, atol=2e-3)
        assert ours.mean_width == pytest.approx(theirs.mean_width, rel=2e-3)


# ------------------------------------------------------------ what it finds


def coverages(seed: int, variance: float, calibrated: bool) -> list[float]:
    """Coverage of the outcome, of the objective then and now, by each forecaster.

    Outcomes have a variance of 0.25, stated as another.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(60, 2, **DOUBLE, generator=generator)
    K = (-0.5 * (torch.cdist(X, X) / 0.2).square()).exp() + 1e-8 * torch.eye(60, **DOUBLE)
    f = torch.linalg.cholesky(K) @ torch.randn(60, 1, **DOUBLE, generator=generator)
    Y = f + 0.5 * torch.randn(60, 1, **DOUBLE, generator=generator)
    gp = SingleTaskGP(X, Y, train_Yvar=torch.full_like(Y, variance), outcome_transform=None)
    gp.covar_module.lengthscale = 0.2
    gp.mean_module.initialize(constant=0.0)
    model: Any = gp
    if calibrated:
        model = CalibratedModel.from_history(gp, OnlineConformal(0.2, step_size=0.1))
    row = []
    for scores in calibration_report(model, truth=f).forecasts.values():
        assert scores.objective and scores.objective_now
        row += [scores.coverage, scores.objective.coverage, scores.objective_now.coverage]
    return row


def test_true_statements_are_found_true() -> None:
    rows = torch.tensor([coverages(seed, 0.25, calibrated=False) for seed in range(25)])
    tolerance = 3 * rows.std(dim=0) / math.sqrt(len(rows))
    assert (tolerance < 0.06).all()
    assert ((rows.mean(dim=0) - 0.8).abs() < tolerance).all()


def test_outcomes_may_be_covered_where_the_objective_is_not() -> None:
    """With understated noise, calibration repairs what is stated of outcomes, the rest in part."""
    rows = torch.tensor([coverages(seed, 0.025, calibrated=True) for seed in range(10)])
    calibrated, plain = rows.mean(dim=0).split(3)
    assert plain.max() < 0.6
    assert calibrated[0] > 0.7
    # Of the objective at visited points it is found short by three standard errors and more.
    assert plain[2] + 0.1 < calibrated[2] < 0.72


# ------------------------------------------------------------ output and errors


def test_report_says_what_is_proved() -> None:
    truth = truth_of(make_data()[1])
    model = make_model()
    report = calibration_report(model, truth=truth)
    text = str(report)
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert "no bound on its coverage is proved" in text.replace("\n", " ")
    assert report.calibrated is not None
    for title, name in (
        ("Objective, as it was predicted", "objective"),
        ("Objective, as the model is now", "objective_now"),
    ):
        start = lines.index(title)
        for scores, column in ((report.calibrated, 26), (report.base, 46)):
            part = getattr(scores, name)
            assert lines[start + 1][column:].startswith(f"{part.coverage:.2f}")
            assert lines[start + 2][column:].startswith(f"{part.mean_width:.4g}")
    exported = report.to_dict()
    assert json.loads(json.dumps(exported)) == exported
    assert report.calibrated.objective is not None
    assert exported["calibrated"]["objective"]["coverage"] == report.calibrated.objective.coverage
    plain = calibration_report(model)
    assert plain.base.objective is None and plain.to_dict()["base"]["objective"] is None
    assert "Objective" not in str(plain) and "proved" not in str(plain)


@pytest.mark.parametrize(
    "truth",
    [torch.zeros(N, **DOUBLE), [0.0] * N, lambda X: X, lambda X: float(X.sum())],
)
def test_truth_of_another_shape_is_rejected(truth: Any) -> None:
    with pytest.raises(BotorchTensorDimensionError, match=f"`truth`.*{N} x 1"):
        calibration_report(make_gp(), truth=truth)


def test_truth_must_be_finite() -> None:
    with pytest.raises(InputDataError, match="`truth`"):
        calibration_report(make_gp(), truth=lambda X: X[:, :1] / 0.0)

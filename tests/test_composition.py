"""The parts of the package compose: calibrators, delays, robustness, and BoTorch's own functions.

Other tests compare each part with oracles. Here combinations have to satisfy common rules: a
calibrator that corrects nothing gives BoTorch's numbers, samples agree with closed forms, a list of
one model with the model, and an ambiguity set of radius 0 with the expectation; pending points
change the value, copies do not.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qLogExpectedImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.models.model import ModelList
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    GaussianScore,
    KLBall,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    QuantileRecalibrator,
    TotalVariationBall,
    WassersteinBall,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import CalibratedExpectedShortfall, RobustAcquisition
from botorch_calib.calibration import Calibrator
from botorch_calib.robust import AmbiguitySet
from tests.botorch_tutorials import value_and_gradient
from tests.gps import DOUBLE, GaussianLaw, make_data, make_gp

DATA, _, _ = make_data()
X = torch.tensor([[0.11, 0.22], [0.53, 0.41], [0.87, 0.93]], **DOUBLE).unsqueeze(-2)
PENDING = torch.tensor([[0.3, 0.35], [0.75, 0.85]], **DOUBLE)
FURTHER = torch.tensor([[0.5, 0.45]], **DOUBLE)
BEST, CENSORED = 0.3, -3.0


CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    "localized": lambda: LocalizedConformal(0.2),
    "localized as published": lambda: LocalizedConformal(
        0.2, lengthscale=0.3, score=GaussianScore(), tails="gaussian"
    ),
    "global": lambda: OnlineConformal(0.2),
    "19 levels": QuantileRecalibrator,
    "exact": lambda: QuantileRecalibrator([0.1, 0.5, 0.9], method="exact", score=GaussianScore()),
}


def with_pending(model: Any, imputation: str) -> CensoredDelayModel:
    return CensoredDelayModel(model, PENDING, CENSORED, imputation)


def replayed(model: Any, calibrator: Calibrator, **kwargs: Any) -> CalibratedModel:
    return CalibratedModel.from_history(model, calibrator, **kwargs)


STRUCTURES: dict[str, Callable[[Calibrator], Any]] = {
    "calibrated": lambda c: replayed(make_gp(), c),
    "given noise": lambda c: replayed(make_gp(fixed_noise=True), c),
    "observation": lambda c: replayed(make_gp(), c, denoise=False),
    "objective's excess": lambda c: replayed(make_gp(), c, excess="objective"),
    "censored around": lambda c: with_pending(replayed(make_gp(), c), "censor"),
    "hallucinated inside": lambda c: replayed(with_pending(make_gp(), "hallucinate"), c),
}


def sampler(num: int = 16) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([num]), seed=0)


# Each calibrator, and each structure around a calibrator.
COMBINED = [
    pytest.param(structure, calibrator, id=f"{name}, {kind}")
    for name, structure in STRUCTURES.items()
    for kind, calibrator in CALIBRATORS.items()
    if name == "calibrated" or kind == "19 levels"
]
any_model = pytest.mark.parametrize(("structure", "calibrator"), COMBINED)
# Every structure, and a calibrator with a local part.
each_structure = pytest.mark.parametrize(
    ("structure", "calibrator"), [COMBINED[0], COMBINED[3], *COMBINED[6:]]
)
CLOSED: dict[str, Callable[..., Any]] = {
    "log EI": lambda m, **k: LogCalibratedExpectedImprovement(m, BEST, **k),
    "PI": lambda m, **k: CalibratedProbabilityOfImprovement(m, BEST, **k),
    "quantile": lambda m, **k: CalibratedUpperConfidenceBound(m, 0.8, **k),
    "CVaR": lambda m, **k: CalibratedExpectedShortfall(m, 0.8, **k),
}
GAUSSIAN: dict[str, Callable[..., Any]] = {
    "mean": lambda m, **k: PosteriorMean(m, **k),
    "UCB": lambda m, **k: UpperConfidenceBound(m, 2.0, **k),
    "moment log EI": lambda m, **k: LogExpectedImprovement(m, BEST, **k),
    "delayed UCB": lambda m, **k: DelayedUpperConfidenceBound(m, 1.5, X_window=PENDING, **k),
}
SAMPLED: dict[str, Callable[..., Any]] = {
    "qLogEI": lambda m, **k: qLogExpectedImprovement(m, BEST, sampler=sampler(), **k),
    "qUCB": lambda m, **k: qUpperConfidenceBound(m, 0.5, sampler=sampler(), **k),
    "qLogNEI": lambda m, **k: qLogCalibratedNoisyExpectedImprovement(
        m, DATA[:6], sampler=sampler(), prune_baseline=False, **k
    ),
}
ALL = {**CLOSED, **GAUSSIAN, **SAMPLED}


@each_structure
def test_any_acquisition_function_of_any_model(structure: Any, calibrator: Any) -> None:
    model = structure(calibrator())
    step = 1e-5 * torch.tensor([0.6, -0.8], **DOUBLE)
    for name, build in ALL.items():
        acqf = build(model)
        values, gradient = value_and_gradient(acqf, X)
        assert values.isfinite().all(), name
        with torch.no_grad():
            slope = (acqf(X + step) - acqf(X - step)) / 2e-5
        along = (gradient @ (step / 1e-5)).squeeze(-1)
        assert_close(along, slope, rtol=1e-3, atol=1e-3 * float(slope.abs().max()), msg=name)
        copied = pickle.loads(pickle.dumps(acqf))(X)
        assert_close(copied.detach(), values, msg=name)


@each_structure
def test_pending_points_of_any_model(structure: Any, calibrator: Any) -> None:
    model = structure(calibrator())
    for name in ("log EI", "CVaR", "qLogNEI"):
        build = ALL[name]
        acqf = build(model)
        before = acqf(X).detach()
        acqf.set_X_pending(FURTHER)
        values = acqf(X).detach()
        assert values.isfinite().all() and not torch.allclose(values, before, atol=1e-12), name
        assert_close(build(model, X_pending=FURTHER)(X).detach(), values, msg=name)
        acqf.set_X_pending(None)
        assert_close(acqf(X).detach(), before, msg=name)


@any_model
def test_samples_agree_with_closed_forms(structure: Any, calibrator: Any) -> None:
    """Up to a quasi-random error of about 1 %, if improvement is likely enough."""
    model = structure(calibrator())
    mean, spread = (v.squeeze(-1).squeeze(-1) for v in moments(model))
    best = float(mean.mean())
    assert_close(qSimpleRegret(model, sampler=sampler(1024))(X), mean, atol=0.05, rtol=0.0)
    likely = mean > best - spread
    samples = sampler(1024)(model.posterior(X)).squeeze(-1).squeeze(-1)
    sampled = (samples - best).clamp_min(0.0).mean(dim=0)[likely]
    exact = CalibratedExpectedImprovement(model, best)(X)[likely]
    assert_close(sampled, exact, rtol=0.1, atol=0.0)


def moments(model: Any) -> tuple[Tensor, Tensor]:
    posterior = model.posterior(X)
    return posterior.mean.detach(), posterior.variance.detach().sqrt()


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_list_of_one_model_is_that_model(structure: Any) -> None:
    model = structure(LocalizedConformal(0.2))
    build: dict[str, Any] = {**CLOSED, "delayed UCB": GAUSSIAN["delayed UCB"]}
    for name, each in build.items():
        assert_close(each(ModelList(model))(X), each(model)(X), msg=name)
    if structure is not STRUCTURES["observation"]:
        draw = DelayedThompsonSampling(model, seed=1)(X)
        assert_close(DelayedThompsonSampling(ModelList(model), seed=1)(X), draw)
    posterior: Any = model.posterior(X)
    listed: Any = ModelList(model).posterior(X)
    both: Any = ModelList(model, make_gp()).subset_output([0]).posterior(X)
    assert_close(listed.mean, posterior.mean)
    assert_close(both.mean, posterior.mean)


@pytest.mark.parametrize("build", [*GAUSSIAN.values(), SAMPLED["qLogEI"], SAMPLED["qUCB"]])
def test_a_calibrator_that_corrects_nothing(build: Any) -> None:
    """It gives BoTorch's values and gradients for the process, with the same base samples."""
    gp = with_pending(make_gp(), "censor")
    acqf, plain = build(CalibratedModel(gp, GaussianLaw())), build(gp)
    if hasattr(acqf, "sampler"):
        acqf(X), plain(X)
        plain.sampler.register_buffer("base_samples", acqf.sampler.base_samples[..., 0].clone())
    for found, expected in zip(
        value_and_gradient(acqf, X), value_and_gradient(plain, X), strict=True
    ):
        assert_close(found, expected, rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------ robustness

SETS: dict[str, Callable[[float], AmbiguitySet]] = {
    "Wasserstein": WassersteinBall,
    "Lipschitz": lambda radius: WassersteinBall(radius, method="lipschitz"),
    "total variation": TotalVariationBall,
    "chi-squared": ChiSquaredBall,
    "Kullback-Leibler": KLBall,
    "CVaR": lambda radius: ConditionalValueAtRisk(1.0 - radius),
}
CONTEXTS = torch.tensor([[0.1], [0.35], [0.6], [0.9]], **DOUBLE)
DECISIONS = X[..., :1]


VALUED = [("calibrated", "log EI"), ("hallucinated inside", "UCB"), ("censored around", "qUCB")]


@pytest.mark.parametrize(
    ("make_set", "structure", "name"),
    [(make_set, *VALUED[i % 3]) for i, make_set in enumerate(SETS.values())],
)
def test_any_function_over_any_ambiguity_set(make_set: Any, structure: str, name: str) -> None:
    acqf = ALL[name](STRUCTURES[structure](QuantileRecalibrator()))
    centre = ContextDistribution.discrete(CONTEXTS, torch.tensor([0.1, 0.2, 0.3, 0.4], **DOUBLE))
    pairs = torch.cat([DECISIONS.expand(3, 4, 1), CONTEXTS.expand(3, 4, 1)], dim=-1)
    values = acqf(pairs.reshape(-1, 1, 2)).detach().view(3, 4)
    expectation = values @ centre.weights
    size = float(values.abs().max())
    none, some, more = (
        RobustAcquisition(acqf, make_set(radius), centre) for radius in (0.0, 0.15, 0.4)
    )
    assert_close(none(DECISIONS), expectation, rtol=1e-5, atol=1e-6 * size)
    worst, gradient = value_and_gradient(some, DECISIONS)
    assert gradient.isfinite().all() and (worst < expectation).all()
    assert (more(DECISIONS) < worst + 1e-6 * size).all()
    if make_set is not SETS["Lipschitz"]:
        assert (worst >= values.amin(dim=-1) - 1e-6 * size).all()
        one = ContextDistribution.empirical(CONTEXTS[:1])
        assert_close(RobustAcquisition(acqf, make_set(0.15), one)(DECISIONS), values[:, 0])

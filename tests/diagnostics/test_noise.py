"""The likelihood of the noise against multivariate normal densities, and what is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.stats import chi2
from torch import Tensor
from torch.distributions import MultivariateNormal

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    OnlineConformal,
    calibration_report,
    noise_diagnosis,
)
from botorch_calib.diagnostics import NoiseDiagnosis
from botorch_calib.diagnostics.noise import WhitenedTargets, supported_multipliers
from tests.gps import (
    CONSTANT,
    DOUBLE,
    LENGTHSCALES,
    NOISE,
    make_data,
    make_gp,
    make_model,
    make_multitask,
    make_variational,
)

# Outcomes stay in the units in which the hyperparameters are known.
pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")

N = 12


def kernel(X: Tensor) -> Tensor:
    gaps = (X[:, None] - X[None]) / torch.tensor(LENGTHSCALES, **DOUBLE)
    return (-0.5 * gaps.square().sum(dim=-1)).exp()


def density(K: Tensor, noise: Tensor, y: Tensor) -> Callable[[float], float]:
    """Logarithm of the marginal likelihood under ``m`` times the noise, by a dense covariance."""

    def log_density(m: float) -> float:
        normal = MultivariateNormal(torch.full_like(y, CONSTANT), K + m * noise.diag())
        return float(normal.log_prob(y))

    return log_density


def make_given(X: Tensor, Y: Tensor, noise: Tensor) -> Any:
    """A GP with exactly this noise, which GPyTorch would not let be zero."""
    gp: Any = SingleTaskGP(X, Y, train_Yvar=torch.ones_like(Y), outcome_transform=None)
    gp.likelihood.noise_covar.noise = noise
    gp.covar_module.lengthscale = torch.tensor(LENGTHSCALES, **DOUBLE)[: X.shape[-1]]
    gp.mean_module.initialize(constant=CONSTANT)
    return gp.eval()


def check(
    diagnosis: NoiseDiagnosis,
    log_density: Callable[[float], float],
    unit: float,
    level: float = 0.95,
    atol: float = 1e-7,
) -> None:
    """The diagnosis is that of a likelihood of multipliers, with ``unit`` the noise at 1."""
    points = torch.linspace(0, len(diagnosis.deviations) - 1, 30).long()
    multipliers = (diagnosis.deviations[points] / unit).square().tolist()
    # With smaller ones the dense covariance is too ill-conditioned to be an oracle.
    top = log_density((diagnosis.supported / unit) ** 2)
    for m, value in zip(multipliers, diagnosis.log_likelihoods[points].tolist(), strict=True):
        if m > 1e-5:
            assert log_density(m) - top == pytest.approx(value, rel=1e-7, abs=atol)
    drop = chi2.ppf(level, 1) / 2
    for end, outwards in zip(diagnosis.interval, (1 / 1.01, 1.01), strict=True):
        if end > 0.0:
            m = (end / unit) ** 2
            assert log_density(m) == pytest.approx(top - drop, abs=atol)
            assert log_density(m * outwards) < top - drop
    if diagnosis.supported > 0.0:
        for factor in (0.98, 0.99, 1.01, 1.02):
            assert log_density((factor * diagnosis.supported / unit) ** 2) < top
    assert diagnosis.interval[0] <= diagnosis.supported <= diagnosis.interval[1]
    if diagnosis.multiplier is not None and diagnosis.multiplier_interval is not None:
        ratios = [(x / unit) ** 2 for x in (diagnosis.supported, *diagnosis.interval)]
        expected = (diagnosis.multiplier, *diagnosis.multiplier_interval)
        assert expected == pytest.approx(tuple(ratios))


# ------------------------------------------------------------ against the dense density


@pytest.mark.parametrize(
    ("fixed_noise", "transforms", "train_mode", "level"),
    [
        (False, False, False, 0.95),
        (True, False, True, 0.5),
        (False, True, True, 0.5),
        (True, True, False, 0.95),
    ],
)
def test_likelihood_is_that_of_a_multivariate_normal(
    fixed_noise: bool, transforms: bool, train_mode: bool, level: float
) -> None:
    gp: Any = make_gp(fixed_noise, transforms)
    X, Y, Yvar = make_data(transforms=transforms)
    noise = Yvar if fixed_noise else torch.full_like(Y, NOISE)
    scale = 1.0
    if transforms:
        X, scale = gp.input_transform(X), float(Y.std())
        noise = Yvar / scale**2 if fixed_noise else noise
        Y = (Y - Y.mean()) / scale
    gp.train(train_mode)
    diagnosis = noise_diagnosis(gp, level)
    assert gp.training is train_mode
    unit = scale * float(noise.mean().sqrt())
    assert diagnosis.stated == pytest.approx(unit)
    assert diagnosis.prior_deviation == pytest.approx(scale)
    assert diagnosis.given is fixed_noise and diagnosis.num_observations == N
    check(diagnosis, density(kernel(X), noise.squeeze(-1), Y.squeeze(-1)), unit, level)


@pytest.mark.parametrize(("num", "gap"), [(1, 0.1), (1, 3.0), (2, 3.0), (3, 0.1)])
def test_hardly_any_observations(num: int, gap: float) -> None:
    X, noise = make_data(num)[0], torch.full((num,), 0.1, **DOUBLE)
    Y = CONSTANT + gap * torch.tensor([1.0, -1.0, 0.5], **DOUBLE)[:num].unsqueeze(-1)
    diagnosis = noise_diagnosis(make_given(X, Y, noise))
    check(diagnosis, density(kernel(X), noise, Y.squeeze(-1)), math.sqrt(0.1))
    if num == 1:  # the variance 1 + 0.1 m is to be the square of the gap
        assert diagnosis.supported == pytest.approx(math.sqrt(max(gap**2 - 1, 0)), abs=1e-6)


def test_observations_without_noise_keep_none() -> None:
    X, Y, Yvar = make_data()
    noise = Yvar.squeeze(-1).clone()
    noise[[0, 4, 5]] = 0.0
    diagnosis = noise_diagnosis(make_given(X, Y, noise))
    check(diagnosis, density(kernel(X), noise, Y.squeeze(-1)), float(noise.mean().sqrt()))


def test_noise_stated_as_zero_has_no_multiplier() -> None:
    X, Y, _ = make_data()
    Y = Y + 0.5 * torch.randn(N, 1, **DOUBLE, generator=torch.Generator().manual_seed(0))
    diagnosis = noise_diagnosis(make_given(X, Y, torch.zeros(N, **DOUBLE)))
    assert diagnosis.stated == 0.0
    assert diagnosis.multiplier is None and diagnosis.multiplier_interval is None
    check(diagnosis, density(kernel(X), torch.ones(N, **DOUBLE), Y.squeeze(-1)), 1.0)
    assert diagnosis.interval[0] > 0.0 and not diagnosis.agrees
    assert "stated 0, the data support" in diagnosis.summary
    assert diagnosis.advice is not None and "no multiple helps" in diagnosis.advice
    assert "nan" not in str(diagnosis)


@pytest.mark.filterwarnings("ignore:Very small noise values")
@pytest.mark.parametrize(("dtype", "variance"), [(torch.float, 1e-9), (torch.double, 0.0)])
def test_noise_that_gpytorch_raises_to_its_least_is_not_to_be_multiplied(dtype, variance) -> None:
    X, Y, _ = make_data()
    Y = 10.0 * Y + 5.0 * torch.randn(N, 1, **DOUBLE, generator=torch.Generator().manual_seed(0))
    X, Y = X.to(dtype), Y.to(dtype)

    def diagnose(variance: float) -> NoiseDiagnosis:
        Yvar = torch.full_like(Y, variance)
        return noise_diagnosis(
            SingleTaskGP(X, Y, train_Yvar=Yvar, outcome_transform=Standardize(1))
        )

    diagnosis = diagnose(variance)
    assert diagnosis.is_floor and diagnosis.to_dict()["is_floor"]
    assert diagnosis.stated > 0.0 and not diagnosis.agrees
    assert diagnosis.advice is not None and "no multiple helps" in diagnosis.advice
    assert f"about {diagnosis.supported**2:.0f}" in diagnosis.advice
    larger = diagnose(0.5)
    assert not larger.is_floor and larger.advice is not None
    assert "Multiply `train_Yvar`" in larger.advice


def test_repeated_inputs() -> None:
    X, Y, noise = make_data(4)[0].repeat(3, 1), make_data()[1], torch.full((N,), 0.01, **DOUBLE)
    diagnosis = noise_diagnosis(make_given(X, Y, noise))
    check(diagnosis, density(kernel(X), noise, Y.squeeze(-1)), 0.1)
    # Outcomes that repeat exactly, too, are likeliest without any noise: beyond all bounds.
    exact = noise_diagnosis(make_given(X, make_data(4)[1].repeat(3, 1), noise))
    assert exact.supported == 0.0 and exact.interval[0] == 0.0
    assert exact.interval[1] < 1e-5 and math.isfinite(exact.interval[1])
    assert exact.advice is not None and "without any noise" in exact.advice
    assert torch.isfinite(exact.log_likelihoods).all()


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-3])
def test_many_points_close_together(spread: float) -> None:
    """As by the dense covariance."""
    generator = torch.Generator().manual_seed(0)
    X = make_data(10)[0].repeat(20, 1)
    X = X + spread * torch.randn(200, 2, generator=generator, **DOUBLE)
    Y = (6 * X).sin().sum(dim=-1, keepdim=True)
    Y = Y + 0.2 * torch.randn(200, 1, generator=generator, **DOUBLE)
    noise = torch.full((200,), 0.01, **DOUBLE)
    diagnosis = noise_diagnosis(make_given(X, Y, noise))
    check(diagnosis, density(kernel(X), noise, Y.squeeze(-1)), 0.1)


@pytest.mark.parametrize("lengthscale", [1e-3, 30.0, 1e4])
def test_kernels_of_any_condition(lengthscale: float) -> None:
    X, Y, _ = make_data(40)
    noise = torch.full((40,), 0.04, **DOUBLE)
    gp = make_given(X, Y, noise)
    gp.covar_module.lengthscale = lengthscale
    diagnosis = noise_diagnosis(gp)
    K = (-0.5 * (torch.cdist(X, X) / lengthscale).square()).exp()
    check(diagnosis, density(K, noise, Y.squeeze(-1)), 0.2, atol=1e-5)


@pytest.mark.parametrize(
    ("squares", "modes"),
    [
        ([0.5] * 6 + [1e7] * 3, 2),  # the lower one is the greater
        ([0.5] * 3 + [1e8] * 6, 2),  # the upper one is
        ([1e-2] * 4 + [30.0] * 4 + [1e8] * 4, 3),
        ([0.0] * 9, 0),
    ],
)
def test_several_maxima(squares: list[float], modes: int) -> None:
    """Of the greatest, and of all that the test does not reject, against a finer grid."""
    s2 = torch.tensor(squares, **DOUBLE)
    eigenvalues = torch.where(s2 < 1.0, 1e-4, torch.where(s2 < 100.0, 3.0, 1e5)).to(s2)
    data = WhitenedTargets(eigenvalues, s2)
    support = supported_multipliers(data, 0.95)
    fine = torch.linspace(-60.0, 60.0, 150_001, **DOUBLE)
    values = torch.cat([data.log_likelihood(part) for part in fine.split(50_000)])
    inner, fine_inner = values[1:-1], fine[1:-1]
    assert int(((inner > values[:-2]) & (inner > values[2:]) & (fine_inner > -12)).sum()) == modes
    inside = fine[values >= values.max() - chi2.ppf(0.95, 1) / 2]
    assert math.log(support.high) == pytest.approx(float(inside[-1]), abs=1e-3)
    if modes == 0:
        assert support.best == 0.0 and support.low == 0.0
        return
    assert math.log(support.best) == pytest.approx(float(fine[values.argmax()]), abs=1e-3)
    assert float(data.log_likelihood(torch.tensor([support.best], **DOUBLE).log())) >= float(
        values.max()
    )
    if inside[0] > -60.0:
        assert math.log(support.low) == pytest.approx(float(inside[0]), abs=1e-3)
    else:
        assert support.low == 0.0


# ------------------------------------------------------------ what it finds


def drawn(gp: Any, multiplier: float, generator: torch.Generator) -> Tensor:
    """Targets drawn from a GP whose noise is another multiple of what it states."""
    K = kernel(gp.train_inputs[0])
    f = torch.linalg.cholesky(K + 1e-10 * torch.eye(len(K), **DOUBLE)) @ torch.randn(
        len(K), **DOUBLE, generator=generator
    )
    noise = (multiplier * gp.likelihood.noise).sqrt()
    return CONSTANT + f + noise * torch.randn(len(K), **DOUBLE, generator=generator)


def test_interval_covers_the_true_multiplier() -> None:
    multiplier, generator, repeats = 9.0, torch.Generator().manual_seed(5), 80
    X, Y, Yvar = make_data(40)
    gp = make_given(X, Y, Yvar.squeeze(-1))
    covered = {0.8: 0, 0.95: 0}
    for _ in range(repeats):
        gp.set_train_data(targets=drawn(gp, multiplier, generator), strict=False)
        for level in covered:
            interval = noise_diagnosis(gp, level).multiplier_interval
            assert interval is not None
            covered[level] += interval[0] <= multiplier <= interval[1]
    for level, count in covered.items():
        # Three standard errors, and one hundredth for what is asymptotic in the test.
        tolerance = 3 * math.sqrt(level * (1 - level) / repeats) + 0.01
        assert count / repeats == pytest.approx(level, abs=tolerance)


def test_noise_understated_tenfold_is_found_in_a_fitted_model() -> None:
    torch.manual_seed(0)
    X = torch.rand(40, 1, **DOUBLE)
    Y = 100 + 50 * ((6 * X).sin() + 0.3 * torch.randn(40, 1, **DOUBLE))
    Yvar = torch.full_like(Y, 1.5**2)
    gp = SingleTaskGP(
        X, Y, train_Yvar=Yvar, input_transform=Normalize(1), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    diagnosis = noise_diagnosis(gp)
    assert diagnosis.stated == pytest.approx(1.5) and diagnosis.given
    assert diagnosis.interval[0] > 5 * 1.5
    assert diagnosis.interval[0] < 15.0 < diagnosis.interval[1]
    assert diagnosis.multiplier is not None
    assert f"Multiply `train_Yvar` by {diagnosis.multiplier:.0f}" in str(diagnosis)
    # Followed, and fitted again, the advice leaves nothing to say.
    Yvar = diagnosis.multiplier * Yvar
    gp = SingleTaskGP(
        X, Y, train_Yvar=Yvar, input_transform=Normalize(1), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    assert noise_diagnosis(gp).advice is None


def noise_of(num: int, varies: bool) -> Tensor:
    """Standard deviations: 0.1, or from 0.03 to 0.3."""
    return 10 ** torch.linspace(-1.5, -0.5, num, **DOUBLE) if varies else torch.full((num,), 0.1)


@pytest.mark.parametrize(("varies", "unit"), [(True, 1.0), (False, 1.0), (True, 100.0)])
def test_standard_deviations_given_as_variances_are_asked_about(varies: bool, unit: float) -> None:
    X, noise = make_data(60)[0], noise_of(60, varies).double()
    gp = make_given(X, X[:, :1], noise.square())
    Y = 3.0 + unit * drawn(gp, 1.0, torch.Generator().manual_seed(2)).unsqueeze(-1)
    found, deviations = [], unit * noise.unsqueeze(-1)
    for variances in (deviations**2, deviations, 0.09 * deviations**2, 9.0 * deviations**2):
        gp = SingleTaskGP(X, Y, train_Yvar=variances)
        gp.covar_module.lengthscale = torch.tensor(LENGTHSCALES, **DOUBLE)
        found.append(noise_diagnosis(gp))
    right, as_variances, *others = found
    assert right.agrees and not right.are_deviations and right.advice is None
    assert as_variances.are_deviations and "deviations given as variances?" in str(as_variances)
    # A multiple explains these: if all noises are the same, one may happen to look like the square.
    assert not varies or not any(each.are_deviations for each in others)


def test_right_variances_are_not_taken_for_deviations() -> None:
    """In at most 5 % of 200 data sets, nor where the data are likeliest without noise."""
    X, generator, count = make_data(20)[0], torch.Generator().manual_seed(7), 0
    gps = [make_given(X, X[:, :1], noise_of(20, varies).double() ** 2) for varies in (False, True)]
    for i in range(201):
        gp = gps[i % 2]
        gp.set_train_data(targets=drawn(gp, 1.0 if i < 200 else 1e-12, generator), strict=False)
        diagnosis = noise_diagnosis(gp)
        count += diagnosis.are_deviations
    assert count <= 10 and not diagnosis.agrees and not diagnosis.are_deviations


# ------------------------------------------------------------ models


def test_wrapped_models_are_judged_by_their_observed_data() -> None:
    expected = noise_diagnosis(make_gp(transforms=True)).to_dict()
    gp, pending = make_gp(transforms=True), make_data(3, transforms=True, seed=1)[0]
    delayed = CensoredDelayModel(gp, pending, 0.0)
    for model in (
        make_model(transforms=True),
        delayed,
        CalibratedModel(delayed, OnlineConformal(0.2)),
        CensoredDelayModel(make_model(transforms=True), pending, 0.0),
    ):
        assert noise_diagnosis(model).to_dict() == expected


def test_model_is_left_as_it_is() -> None:
    gp = make_gp(transforms=True)
    gp.posterior(torch.zeros(1, 2, **DOUBLE))
    caches, state = gp.prediction_strategy, {k: v.clone() for k, v in gp.state_dict().items()}
    noise_diagnosis(gp)
    assert gp.prediction_strategy is caches and not gp.training
    assert all(torch.equal(value, state[name]) for name, value in gp.state_dict().items())


def log_outcome() -> SingleTaskGP:
    X, Y, _ = make_data()
    return SingleTaskGP(X, Y.exp(), outcome_transform=Log())


def batched() -> SingleTaskGP:
    X, Y, _ = make_data()
    return SingleTaskGP(X.expand(2, N, 2), Y.expand(2, N, 1))


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "not an exact GP": make_variational,
    "take one of its `models`": lambda: ModelListGP(make_gp(), make_gp()),
    "batch of models: fit a single model": batched,
    "`model` must be a BoTorch model.*got Tensor": lambda: torch.zeros(3),
    "Log": log_outcome,
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_models_are_named(reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        noise_diagnosis(UNSUPPORTED[reason]())


@pytest.mark.parametrize(("fixed_noise", "task"), [(False, 0), (True, 1)])
def test_one_of_several_tasks(fixed_noise: bool, task: int) -> None:
    """By the likelihood of a multiple of its noise, that of the other task being as it is."""
    gp: Any = make_multitask(fixed_noise)
    found = noise_diagnosis(gp, task=task)
    gp.eval()
    inputs, y = gp.train_inputs[0], gp.train_targets
    own = inputs[:, -1] == task
    prior = gp.forward(inputs)
    K = prior.covariance_matrix.detach()
    variances = gp.likelihood.noise.detach()
    if not fixed_noise:  # one of each task
        variances = variances[inputs[:, -1].long()]
    assert found.num_observations == int(own.sum()) and found.given == fixed_noise
    scale = gp.outcome_transform.stdvs.flatten()[0]
    assert found.stated == pytest.approx(float(scale * variances[own].mean().sqrt()))

    factors = (found.deviations.unsqueeze(-1) / found.stated) ** 2
    noises = torch.where(own, factors, 1.0) * variances
    log_density = MultivariateNormal(prior.mean.detach(), K + noises.diag_embed()).log_prob(y)
    expected = log_density - log_density.max()
    torch.testing.assert_close(found.log_likelihoods, expected, rtol=1e-6, atol=1e-6)


def without_data() -> SingleTaskGP:
    gp: Any = make_gp()
    gp.set_train_data(torch.empty(0, 2, **DOUBLE), torch.empty(0, **DOUBLE), strict=False)
    return gp


@pytest.mark.parametrize(
    ("make", "arguments", "match"),
    [
        (make_multitask, {}, "must be a task of the model"),
        (make_gp, {"task": 0}, "None otherwise"),
        (make_multitask, {"task": 2}, "no observations of `task` 2"),
        (make_gp, {"level": math.nan}, "`level`"),
        (without_data, {}, "no training data"),
    ],
)
def test_bad_arguments(make: Callable[[], Any], arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InputDataError, match=match):
        noise_diagnosis(make(), **arguments)


# ------------------------------------------------------------ text


def example(stated: float, supported: float, low: float, high: float, **kwargs: Any):
    ratios = None
    if stated > 0.0:
        ratios = ((low / stated) ** 2, (high / stated) ** 2)
    return NoiseDiagnosis(
        stated=stated,
        supported=supported,
        interval=(low, high),
        multiplier=None if ratios is None else (supported / stated) ** 2,
        multiplier_interval=ratios,
        level=0.95,
        **{"given": True, "num_observations": 30, "prior_deviation": 1.0, **kwargs},
        deviations=torch.ones(1),
        log_likelihoods=torch.zeros(1),
    )


@pytest.mark.parametrize(
    ("numbers", "given", "found"),
    [
        ((0.1, 0.31, 0.22, 0.45), True, "larger than given. Multiply `train_Yvar` by 9.6,"),
        ((0.1, 0.05, 0.02, 0.09), True, "smaller than given. Multiply `train_Yvar` by 0.25"),
        ((0.1, 0.31, 0.22, 0.45), False, "larger than in the model, although it was fitted"),
        ((0.1, 0.05, 0.02, 0.09), False, "smaller than in the model, although it was fitted"),
        ((0.1, 0.0, 0.0, 0.05), True, "likeliest without any noise"),
        ((0.1, 0.0, 0.0, 0.05), False, "smaller than in the model"),
        ((0.1, 0.1, 0.0, 0.5), True, "hardly determine"),
        ((0.1, 0.1, 0.0, 0.5), False, None),
        ((0.1, 0.1, 0.05, 0.2), True, None),
        ((0.0, 0.2, 0.1, 0.3), True, "variances of about 0.040"),
        ((0.0, 0.0, 0.0, 0.3), True, "hardly determine"),
    ],
)
def test_advice(numbers: tuple[float, ...], given: bool, found: str | None) -> None:
    diagnosis = example(*numbers, given=given)
    assert diagnosis.agrees is (numbers[2] <= numbers[0] <= numbers[3])
    if found is None:
        assert diagnosis.advice is None
    else:
        assert diagnosis.advice is not None and found in diagnosis.advice
        assert ("held fixed" in diagnosis.advice) is not diagnosis.agrees


def test_noise_that_only_steadies_the_computation_calls_for_nothing() -> None:
    """Of data without noise, for which it has to be somewhat positive."""
    X, Y, _ = make_data(40)
    given = make_given(X, Y, torch.full((40,), 1e-4, **DOUBLE))
    given.covar_module.lengthscale = 0.3
    fitted = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(fitted.likelihood, fitted))
    for gp in (given, fitted):
        diagnosis = noise_diagnosis(gp)
        assert not diagnosis.agrees and diagnosis.interval[1] < diagnosis.stated
        assert diagnosis.advice is None
    assert example(0.03, 0.001, 0.0005, 0.002).advice is not None
    assert example(0.03, 0.001, 0.0005, 0.002, prior_deviation=2.0).advice is None
    assert example(0.001, 0.01, 0.005, 0.02).advice is not None


# ------------------------------------------------------------ in the report


def test_report_holds_the_diagnosis() -> None:
    model = make_model(transforms=True)
    expected = noise_diagnosis(model)
    X, Y, _ = make_data(9, transforms=True, seed=8)
    for report in (calibration_report(model), calibration_report(model, X, Y)):
        assert report.noise is not None
        assert report.noise.to_dict() == expected.to_dict()
        assert str(expected) in str(report)
        exported = report.to_dict()
        assert json.loads(json.dumps(exported))["noise"] == exported["noise"]
        assert exported["noise"]["supported"] == expected.supported


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from the multi-task kernel
def test_report_does_without_it_where_there_is_none() -> None:
    X, Y, _ = make_data(9, seed=8)
    for report in (
        calibration_report(make_variational(), X, Y),
        calibration_report(make_multitask()),
    ):
        assert report.noise is None and report.to_dict()["noise"] is None
        assert "Observation noise" not in str(report)

"""Models of transformed outcomes against mapped models of the targets; domains, chains, errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import ModelList, MultiTaskGP, SingleTaskGP
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Power, Standardize
from botorch.models.transforms.outcome import OutcomeTransform, StratifiedStandardize
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    QuantileRecalibrator,
    calibration_report,
)
from botorch_calib.models.outcome_transforms import InverseTransform
from botorch_calib.models.residuals import prequential_residuals
from botorch_calib.posteriors.outcome_maps import Affine
from tests import random_numbers
from tests.gps import GaussianLaw, far_from_gaussian, make_data

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return random_numbers.uniform(*shape, generator=torch.Generator().manual_seed(seed))


class Own(OutcomeTransform):
    """A user's transform, given by its forward function and the inverse."""

    def __init__(
        self, forward: Callable[[Tensor], Tensor], inverse: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.there, self.back = forward, inverse

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> Any:
        return self.there(Y), None if Yvar is None else Yvar * float("nan")

    def untransform(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> Any:
        return self.back(Y), Yvar


class Case(NamedTuple):
    """A transform, a map from standard numbers to its domain, the forward map, and the inverse.

    Beyond the domain of a power, the inverse is constant, or the inverse of an odd function.
    """

    transform: Callable[[], OutcomeTransform]
    outcome: Callable[[Tensor], Tensor]
    target: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor]


Y_DATA = make_data()[1]
CHAINED = 0.5 * Y_DATA + 3.0
CASES = {
    "log": Case(Log, torch.exp, lambda Y: Y, torch.exp),
    "root": Case(
        lambda: Power(0.5), lambda Y: (Y + 4) ** 2, lambda Y: Y + 4, lambda t: t.clamp(min=0) ** 2
    ),
    "cube": Case(
        lambda: Power(3.0), lambda Y: Y, lambda Y: Y**3, lambda t: t.sign() * t.abs() ** (1 / 3)
    ),
    "bilog": Case(
        Bilog,
        lambda Y: 5 * Y,
        lambda Y: Y.sign() * (5 * Y.abs() + 1).log(),
        lambda t: t.sign() * t.abs().expm1(),
    ),
    "chain": Case(
        lambda: ChainedOutcomeTransform(log=Log(), standardize=Standardize(1)),
        lambda Y: (0.5 * Y + 3.0).exp(),
        lambda Y: (Y - Y_DATA.mean()) / Y_DATA.std(),
        lambda t: (CHAINED.mean() + CHAINED.std() * t).exp(),
    ),
    "own": Case(
        lambda: Own(lambda Y: torch.asinh(Y / 2), lambda Y: 2 * torch.sinh(Y)),
        lambda Y: 3 * Y,
        lambda Y: torch.asinh(1.5 * Y),
        lambda t: 2 * t.sinh(),
    ),
}


def make_gp(X: Tensor, Y: Tensor, transform: OutcomeTransform | None = None) -> SingleTaskGP:
    gp = SingleTaskGP(X, Y, outcome_transform=transform)
    gp.covar_module.lengthscale = torch.tensor([0.4, 0.7], dtype=X.dtype)
    gp.likelihood.noise = torch.tensor([0.05], dtype=X.dtype)
    return gp.eval()


def pair(name: str) -> tuple[SingleTaskGP, SingleTaskGP]:
    """A model of transformed outcomes, and one of the targets."""
    X, Y, _ = make_data()
    case = CASES[name]
    return make_gp(X, case.outcome(Y), case.transform()), make_gp(X, case.target(Y), None)


@pytest.mark.parametrize("name", CASES)
def test_the_calibrated_model_of_the_targets_mapped(name: str) -> None:
    (gp, inner), inverse = pair(name), CASES[name].inverse
    assert_close(prequential_residuals(gp), prequential_residuals(inner))
    calibrator = QuantileRecalibrator([0.2, 0.5, 0.8], step_size=0.1)
    model, expected = (CalibratedModel.from_history(each, calibrator) for each in (gp, inner))
    X = uniform(4, 3, 2)
    for noise in (False, True):
        posterior, targets = (
            each.posterior(X, observation_noise=noise) for each in (model, expected)
        )
        levels = torch.tensor([0.01, 0.5, 0.97], dtype=torch.double)
        assert_close(posterior.quantile(levels), inverse(targets.quantile(levels)))
        base = torch.randn(6, *posterior.base_sample_shape, dtype=torch.double)
        samples = targets.rsample_from_base_samples(Size([6]), base)
        assert_close(posterior.rsample_from_base_samples(Size([6]), base), inverse(samples))


@pytest.mark.parametrize("name", CASES)
def test_observations_are_scored_among_the_targets(name: str) -> None:
    gp, inner = pair(name)
    new, Y = uniform(3, 2, seed=1), torch.tensor([[0.3], [-1.2], [0.8]]).double()
    case = CASES[name]
    model, expected = (CalibratedModel(each, far_from_gaussian()) for each in (gp, inner))
    model.observe(new, case.outcome(Y))
    expected.observe(new, case.target(Y))
    assert_close(model.calibrator.state_dict(), expected.calibrator.state_dict())
    X = uniform(4, 1, 2)
    mapped = case.inverse(expected.posterior(X).quantile(0.7))
    assert_close(model.posterior(X).quantile(0.7), mapped)


def test_without_correction_it_is_botorchs_log_normal_posterior() -> None:
    gp, _ = pair("chain")
    model, X = CalibratedModel(gp, GaussianLaw()), uniform(5, 2, 2)
    posterior, plain = model.posterior(X), gp.posterior(X)
    assert_close(posterior.mean, plain.mean, rtol=1e-6, atol=0.0)
    assert_close(posterior.variance, plain.variance, rtol=1e-5, atol=0.0)
    noisy, expected = (each.posterior(X, observation_noise=True).mean for each in (model, gp))
    assert_close(noisy, expected, rtol=1e-6, atol=0.0)


def test_given_noise_is_that_of_the_targets() -> None:
    X, Y, Yvar = make_data()
    gp = SingleTaskGP(X, Y.exp(), Yvar * (2 * Y).exp(), outcome_transform=Log()).eval()
    inner = SingleTaskGP(X, Y, Yvar, outcome_transform=None).eval()
    inner.load_state_dict(gp.state_dict(), strict=False)
    model, expected = (CalibratedModel(each, far_from_gaussian()) for each in (gp, inner))
    model.observe(X[:2] + 0.01, Y[:2].exp(), Yvar[:2] * (2 * Y[:2]).exp())
    expected.observe(X[:2] + 0.01, Y[:2], Yvar[:2])
    assert_close(model.calibrator.state_dict(), expected.calibrator.state_dict())
    new = uniform(3, 1, 2)
    assert_close(model.posterior(new).quantile(0.4), expected.posterior(new).quantile(0.4).exp())


def test_several_tasks_each_in_its_own_units() -> None:
    """The targets of a chain with strata depend on the task of the input."""
    X, Y, _ = make_data()
    task = (torch.arange(len(X)) % 2).double().unsqueeze(-1)
    inputs, outcomes = torch.cat([X, task], dim=-1), (Y + 3 * task).exp()
    strata = StratifiedStandardize(2, torch.tensor([0.0, 1.0], dtype=torch.double))
    chain = ChainedOutcomeTransform(log=Log(), strata=strata)
    gp = MultiTaskGP(inputs, outcomes, 2, output_tasks=[1], outcome_transform=chain).eval()
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2))
    new = uniform(4, 1, 2)
    # BoTorch's chain needs the task column, which may be omitted elsewhere.
    with_task = torch.cat([new, torch.ones(4, 1, 1, dtype=torch.double)], dim=-1)
    plain = gp.posterior(with_task, observation_noise=True)
    samples = model.posterior(new).rsample(Size([4]))
    assert samples.shape == (4, 4, 1, 1) and (samples > 0).all()
    identity = CalibratedModel(gp, GaussianLaw()).posterior(new, observation_noise=True)
    assert_close(identity.mean, plain.mean, rtol=1e-5, atol=0.0)
    model.observe(new.squeeze(-2), samples[0].squeeze(-1).detach())
    assert model.calibrator.num_updates == len(X) // 2 + 4


def test_given_noise_of_several_tasks_is_that_of_the_targets() -> None:
    X, Y, Yvar = make_data()
    inputs = torch.cat([X, (torch.arange(len(X)) % 2).double().unsqueeze(-1)], dim=-1)

    def strata() -> StratifiedStandardize:
        return StratifiedStandardize(2, torch.tensor([0.0, 1.0], dtype=torch.double))

    chain, kind = (
        ChainedOutcomeTransform(log=Log(), strata=strata()),
        dict[str, Any](output_tasks=[1]),
    )
    given = Yvar * (2 * Y).exp()
    gp = MultiTaskGP(inputs, Y.exp(), 2, given, outcome_transform=chain, **kind)
    inner = MultiTaskGP(inputs, Y, 2, Yvar, outcome_transform=strata(), **kind)
    state = {k: v for k, v in gp.state_dict().items() if not k.startswith("outcome_transform")}
    inner.load_state_dict(state, strict=False)
    model, expected = (CalibratedModel(each, OnlineConformal(0.2)) for each in (gp, inner))
    model.observe(X[1:3] + 0.01, Y[1:3].exp(), given[1:3])
    expected.observe(X[1:3] + 0.01, Y[1:3], Yvar[1:3])
    assert_close(model.calibrator.state_dict(), expected.calibrator.state_dict())


@pytest.mark.parametrize(("name", "best"), [("log", 0.3), ("bilog", -6.0)])
def test_acquisition_functions(name: str, best: float) -> None:
    gp, _ = pair(name)
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2))
    X, pending = uniform(5, 1, 2), uniform(2, 2, seed=4)
    sampler = SobolQMCNormalSampler(Size([2**14]), seed=3)
    sampled = qLogExpectedImprovement(model, best, sampler=sampler)(X)
    exact = LogCalibratedExpectedImprovement(model, best)(X)
    assert_close(exact, sampled, rtol=0.0, atol=0.05)
    bound = CalibratedUpperConfidenceBound(model, 0.9, observation_noise=True)(X)
    stated = model.posterior(X, observation_noise=True)
    assert_close(
        stated.probability_of_improvement(bound.view(5, 1, 1)).view(-1), exact.new_full((5,), 0.1)
    )
    lower = CalibratedUpperConfidenceBound(model, 0.9, maximize=False)(X)
    assert_close(-lower, model.posterior(X).quantile(0.1).view(-1))
    waiting = LogCalibratedExpectedImprovement(model, best, X_pending=pending)(X)
    assert waiting.isfinite().all() and not torch.allclose(waiting, exact)
    both = ModelList(model, CalibratedModel(make_gp(make_data()[0], Y_DATA), far_from_gaussian()))
    assert both.posterior(X).rsample(Size([3])).shape == (3, 5, 1, 2)


def test_pending_points() -> None:
    gp, inner = pair("log")
    X, pending = uniform(4, 1, 2), uniform(2, 2, seed=2)
    posteriors = [
        CalibratedModel(CensoredDelayModel(base, pending, value), far_from_gaussian()).posterior(X)
        for base, value in ((gp, 0.2), (inner, torch.tensor(0.2).log().item()))
    ]
    assert_close(
        posteriors[0].quantile(0.6), posteriors[1].quantile(0.6).exp(), rtol=1e-5, atol=0.0
    )


@pytest.mark.parametrize("power", [0.5, 2.0, 1.5, 1 / 3, 3.0])
def test_powers_increase_on_all_numbers(power: float) -> None:
    """Also where a Gaussian target is negative, for which BoTorch states NaN or the wrong sign."""
    gp = make_gp(uniform(6, 2), 1.0 + uniform(6, 1), Power(power))
    inverse = InverseTransform(gp)
    targets = torch.linspace(-2.0, 3.0, 51).double().unsqueeze(-1)
    outcomes = inverse.outcome(targets)
    assert (outcomes.diff(dim=0) >= 0.0).all() and outcomes.isfinite().all()
    known = targets > 0.0 if power not in (1 / 3, 3.0) else targets.abs() >= 0.0
    assert_close(inverse.latent(outcomes)[known], targets[known])
    if power not in (1 / 3, 3.0):
        assert (inverse.latent(-torch.ones(1, 1).double()) == -torch.inf).all()
        targets.requires_grad_()
        (slopes,) = torch.autograd.grad(inverse.outcome(targets).sum(), targets)
        assert slopes.isfinite().all() and (slopes[targets < -1e-9] == 0.0).all()


def own(forward: Callable[[Tensor], Tensor], inverse: Callable[[Tensor], Tensor]) -> SingleTaskGP:
    X, Y, _ = make_data()
    return make_gp(X, (Y + 4.0), Own(forward, inverse))


REFUSED: dict[str, tuple[Callable[[], SingleTaskGP], str]] = {
    "decreasing power": (
        lambda: make_gp(make_data()[0], Y_DATA.exp(), Power(-1.0)),
        "decreasing outcome transform Power.*negate the observations",
    ),
    "decreasing in a chain": (
        lambda: make_gp(
            make_data()[0],
            Y_DATA.exp(),
            ChainedOutcomeTransform(log=Log(), own=Own(torch.neg, torch.neg)),
        ),
        "decreasing outcome transform Log and Own",
    ),
    "not monotone": (
        lambda: own(torch.sin, lambda t: 4.0 + (3 * t).sin()),
        "does not increase.*apply Own to the observations beforehand",
    ),
    "not defined beyond the data": (
        lambda: own(torch.sqrt, lambda t: t.abs() ** 2),
        r"does not increase.*\(for example constant outside its domain\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_transforms_that_do_not_increase(name: str) -> None:
    """Refused where the model is given, not at its first posterior."""
    make, match = REFUSED[name]
    plain, pending = CalibratedModel(pair("log")[1], OnlineConformal(0.2)), uniform(2, 2)
    for build in (
        lambda: CalibratedModel(make(), OnlineConformal(0.2)),
        lambda: CalibratedModel.from_history(make(), OnlineConformal(0.2)),
        lambda: CalibratedModel(CensoredDelayModel(make(), pending, 0.5), OnlineConformal(0.2)),
        lambda: plain.with_model(make()),
    ):
        with pytest.raises(UnsupportedError, match=f"SingleTaskGP.*{match}"):
            build()


@pytest.mark.parametrize(("name", "value"), [("log", 0.0), ("chain", -1.0), ("root", -0.1)])
def test_observations_outside_the_domain(name: str, value: float) -> None:
    gp, _ = pair(name)
    model = CalibratedModel(gp, far_from_gaussian())
    seen, X = model.calibrator.num_updates, uniform(2, 2)
    Y = torch.tensor([[0.5], [value]]).double()
    for call in (
        model.observe,
        partial(model.observe, condition=False),
        model.condition_on_observations,
        CalibratedModelList(model).observe,
        CalibratedModelList(gp).observe,
        CensoredDelayModel(gp).observe,
    ):
        with pytest.raises(
            InputDataError, match=f"`Y` has the value {value:g}, outside the domain"
        ):
            call(X, Y)
    assert model.calibrator.num_updates == seen and model.model is gp
    for base in (gp, model):
        with pytest.raises(
            InputDataError, match=f"`censor_value` has the value {value:g}, outside"
        ):
            CensoredDelayModel(base, X, value)


@pytest.mark.parametrize("way", ["condition_on_observations", "with_observations", "observe"])
def test_conditioning_in_training_mode(way: str) -> None:
    """A `Standardize` within a chain must not learn its moments from new outcomes."""
    new, Y = uniform(2, 2, seed=1), torch.tensor([[0.5], [30.0]]).double()

    def medians(training: bool) -> Tensor:
        gp, _ = pair("chain")
        model = CalibratedModelList(CalibratedModel(gp, far_from_gaussian())).train(training)
        if way == "observe":
            model.observe(new, Y)
        else:
            model = getattr(model.models[0], way)(new, Y)
        return model.posterior(uniform(4, 2)).quantile(0.5)

    assert_close(medians(training=True), medians(training=False))


def test_a_report_in_training_mode() -> None:
    gp, _ = pair("chain")
    model = CalibratedModel.from_history(gp, far_from_gaussian())
    median = model.posterior(uniform(4, 2)).quantile(0.5)
    report = calibration_report(model, num_initial=5)
    again = calibration_report(model.train(), num_initial=5)
    assert_close(again.base.pits, report.base.pits)
    assert_close(model.posterior(uniform(4, 2)).quantile(0.5), median)


def test_probabilities_of_the_ends_of_a_clamp() -> None:
    """An inverse that is constant beyond its domain gives both ends positive probability."""
    gp = own(lambda Y: Y.clamp(3.0, 5.0), lambda t: t.clamp(3.0, 5.0))
    posterior = CalibratedModel(gp, far_from_gaussian()).posterior(uniform(4, 1, 2))
    with torch.no_grad():
        samples = posterior.rsample(Size([40_000]))
        for value in (2.0, 3.0, 3.5, 4.5, 5.0, 6.0):
            share = (samples <= value).double().mean(dim=0)
            assert_close(posterior.cdf(value), share, atol=0.01, rtol=0.0)  # 4 deviations
            assert_close(posterior.probability_of_improvement(value), 1 - posterior.cdf(value))
    assert (posterior.cdf(5.0) == 1.0).all() and (posterior.cdf(2.9) == 0.0).all()


@pytest.mark.parametrize("name", ["clamp", "square root", "square", "bilog", "chain"])
def test_improvement_beside_a_kink(name: str) -> None:
    """Against a sum over a fine grid of targets, where all of the improvement is at the kink."""
    transforms: dict[str, Callable[[], OutcomeTransform]] = {
        "clamp": lambda: Own(lambda Y: Y.clamp(2.9, 5.0), lambda t: t.clamp(2.9, 5.0)),
        "square root": lambda: Power(2.0),
        "square": lambda: Power(0.5),
        "bilog": Bilog,
        "chain": lambda: ChainedOutcomeTransform(bilog=Bilog(), standardize=Standardize(1)),
    }
    X, Y, *_ = make_data()
    Y = Y.abs() + 3.0 if name == "clamp" else Y.abs() + 0.05
    gp = make_gp(X, Y, transforms[name]())
    posterior: Any = CalibratedModel.from_history(gp, OnlineConformal(0.2)).posterior(X[:, None])
    inverse, zero = InverseTransform(gp), Y.new_zeros(1, 1)
    rtol = 1e-3 if name == "square root" else 3e-5  # whose slope is infinite at its end
    kink = inverse.target(Y.new_full((1, 1), 2.9 if name == "clamp" else 0.0))
    kinks: Any = inverse.kinks(zero)
    assert (kinks == kink).any()
    inner = posterior._with(outcome_map=Affine())
    far = 10.0 * inner.variance.sqrt().amax() + (inner.mean - kink).abs().amax()
    # Twice as fine at the kink each time: a sum over cells errs by their squared width.
    steps = torch.linspace(0.0, 1.0, 4001, dtype=torch.double) ** 3
    t = torch.cat([kink - far * steps.flip(0)[:-1].view(-1, 1), kink + far * steps.view(-1, 1)])
    middle, width = 0.5 * (t[1:] + t[:-1]), t.diff(dim=0)
    density = inner.density(middle.view(-1, 1, 1, 1)) * width.view(-1, 1, 1, 1)
    outcome = inverse.outcome(middle).view(-1, 1, 1, 1)
    turned = posterior.affine(-1.0)
    # Beside the lower end of a clamp or a root, improvement of minimisation is all at the kink.
    for gap in (1e-3, 0.03, 0.3):
        best = float(inverse.outcome(kink)) + gap
        for stated, gain in ((posterior, outcome - best), (turned, best - outcome)):
            expected = (density * gain.clamp(min=0.0)).sum(dim=0)
            found = stated.expected_improvement(best if stated is posterior else -best)
            seen = expected > 1e-12
            assert_close(found[seen], expected[seen], rtol=rtol, atol=0)


@pytest.mark.parametrize("held_out", [False, True])
def test_report(held_out: bool) -> None:
    """Probabilities are as for the targets, and widths are between mapped quantiles."""
    gp, inner = pair("chain")
    X, Y = uniform(15, 2, seed=6), CASES["chain"].outcome(2 * uniform(15, 1, seed=7) - 1)
    targets = gp.outcome_transform(Y)[0]
    reports = []
    for base, observed in ((gp, Y), (inner, targets)):
        model, data = CalibratedModel.from_history(base, OnlineConformal(0.2)), (X, observed)
        reports.append(calibration_report(model, *(data if held_out else ())))
    report, expected = reports
    for who in ("calibrated", "base"):
        found, right = getattr(report, who), getattr(expected, who)
        assert_close(found.pits, right.pits, rtol=1e-6, atol=1e-7)
        assert torch.equal(found.covered, right.covered)
        assert found.coverage == right.coverage
    if held_out:
        posterior = CalibratedModel.from_history(gp, OnlineConformal(0.2)).posterior(
            X.unsqueeze(-2), observation_noise=True
        )
        width = (posterior.quantile(0.9) - posterior.quantile(0.1)).detach()
        assert report.calibrated is not None
        assert report.calibrated.mean_width == pytest.approx(float(width.mean()))
        draws = posterior.rsample(Size([20000])).detach().squeeze()
        apart = 0.5 * (draws - draws.flip(0)).abs().mean(dim=0)
        crps = (draws - Y.squeeze(-1)).abs().mean(dim=0) - apart
        assert report.calibrated.mean_crps == pytest.approx(float(crps.mean()), rel=0.02)

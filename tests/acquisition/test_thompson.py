"""Thompson sampling under delayed feedback: the draws' distribution, and that they stay fixed."""

import copy
import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import (
    ExpectationPosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelList, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import PeriodicKernel
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.acquisition import DelayedThompsonSampling
from botorch_calib.acquisition.delayed import confidence_width
from botorch_calib.calibration import Calibrator, OnlineConformal, QuantileRecalibrator
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.optim.random_seeds import derived_seed, random_stream
from tests.gps import (
    DOUBLE,
    far_from_gaussian,
    make_data,
    make_gp,
    make_multitask,
    make_variational,
)

# The multiplier of sigma, whose square is ``beta``.
BETA, BOUND = 0.7, 0.4
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
NUM_DRAWS = 400

continuous = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "choices"])


def pending_points(num: int = 3, transforms: bool = False) -> Tensor:
    return make_data(num, transforms, seed=8)[0]


def new_points(num: int = 4, transforms: bool = False) -> Tensor:
    return make_data(num, transforms, seed=21)[0]


def make_censored(
    imputation: str = "censor", dtype: torch.dtype = torch.double, **kwargs: Any
) -> CensoredDelayModel:
    transforms = kwargs.get("transforms", False)
    pending = pending_points(transforms=transforms).to(dtype)
    low = 12.0 if transforms else -1.5
    return CensoredDelayModel(make_gp(dtype=dtype, **kwargs), pending, low, imputation)


def make_thompson(model: Any, **kwargs: Any) -> DelayedThompsonSampling:
    return DelayedThompsonSampling(model, **{"beta": BETA**2, "feedback_bound": BOUND, **kwargs})


def values(acqf: DelayedThompsonSampling, X: Tensor) -> Tensor:
    """Values at ``n x d`` points."""
    value: Tensor = acqf(X.unsqueeze(-2))
    return value.detach()


# ------------------------------------------------------------------ the distribution of the draws


@pytest.mark.parametrize(
    "discrete, imputation, transforms",
    [
        pytest.param(*(False, "censor", True), marks=pytest.mark.slow),
        (True, "hallucinate", False),
    ],
    ids=["continuous, censored, with fixed noise and transforms", "choices, hallucinated"],
)
def test_law(discrete, imputation, transforms):
    """Draws of many seeds have the mean ``mu`` and the covariance ``nu^2 Sigma`` of eq. 3.

    Whitened by both, they are independent standard normal. With ``N = 400`` draws the mean of one
    component has a standard error of ``N^-1/2``, a covariance of two ``N^-1/2``, and a variance
    ``(2/N)^1/2``; 4.5 of these for each of the 14 numbers, in 2 cases, fail by chance with a
    probability below 0.1 %, and the seeds are fixed. Random features do not bias these moments,
    as they are drawn anew for every seed.
    """
    model = make_censored(imputation, fixed_noise=transforms, transforms=transforms)
    window, X = pending_points(transforms=transforms), new_points(transforms=transforms)
    # So that both terms of nu count, whatever the scale of the outcome.
    bound = BOUND / model.posterior(window).variance.sqrt().sum().item()
    choices = X.flip(0) if discrete else None
    draws = torch.stack(
        [
            values(
                make_thompson(
                    model, X_window=window, feedback_bound=bound, choices=choices, seed=seed
                ),
                X,
            )
            for seed in range(NUM_DRAWS)
        ]
    )
    posterior = model.posterior(X)
    root = torch.linalg.cholesky(posterior.distribution.covariance_matrix).detach()
    deviations = (draws - posterior.mean.squeeze(-1).detach()) / (BETA + BOUND)
    white = torch.linalg.solve_triangular(root, deviations.mT, upper=False)
    assert white.mean(dim=-1).abs().max() < 4.5 * NUM_DRAWS**-0.5
    covariance = white @ white.mT / NUM_DRAWS
    error = (covariance - torch.eye(4)).abs()
    assert error.diagonal().max() < 4.5 * (2 / NUM_DRAWS) ** 0.5
    assert error.triu(1).max() < 4.5 * NUM_DRAWS**-0.5


def test_choices_close_to_each_other():
    """A covariance matrix that rounding leaves indefinite: 300 points of a smooth process."""
    X = torch.stack([torch.linspace(0, 1, 300, **DOUBLE), torch.full((300,), 0.5, **DOUBLE)], -1)
    for dtype in (torch.double, torch.float32):
        model = make_censored(dtype=dtype)
        acqf = make_thompson(model, choices=X.to(dtype), seed=1)
        draw = values(acqf, X.to(dtype))
        assert draw.dtype == dtype and draw.isfinite().all()
        # The process has a lengthscale of 0.4: neighbours differ little.
        assert draw.diff().abs().max() < 0.05 and draw.std() > 1e-2
        posterior = model.posterior(X.to(dtype))
        scaled = (draw - posterior.mean.squeeze(-1)) / (
            acqf.nu * posterior.variance.sqrt().squeeze(-1)
        )
        assert scaled.abs().max() < 5.0


def test_special_cases():
    """Without a window and with ``beta = 1``, draws are from the posterior: asy-TS, GP-BTS."""
    X = new_points()
    for discrete in (False, True):
        choices = X if discrete else None
        ignoring = DelayedThompsonSampling(make_censored("none"), choices=choices, seed=2)
        plain = DelayedThompsonSampling(make_gp(), choices=choices, seed=2)
        assert ignoring.nu == 1.0 and plain.nu == 1.0
        assert_close(values(ignoring, X), values(plain, X))
        hallucinating = make_censored("hallucinate")
        batch = DelayedThompsonSampling(hallucinating, choices=choices, seed=2)
        conditioned = hallucinating.gaussian_model
        by_hand = DelayedThompsonSampling(conditioned, choices=choices, seed=2)
        assert_close(values(batch, X), values(by_hand, X))


# ------------------------------------------------------------------ calibrated models

ORDERS = ("alone", "pending")
orders = pytest.mark.parametrize("order", ORDERS)


def make_calibrated(
    order: str = "pending",
    imputation: str = "censor",
    dtype: torch.dtype = torch.double,
    calibrator: Calibrator | None = None,
    **kwargs: Any,
) -> Any:
    """Calibrated ``alone``, or with ``pending`` points."""
    transforms, excess = kwargs.get("transforms", False), kwargs.pop("excess", "noise")
    calibrator = (far_from_gaussian() if calibrator is None else calibrator).to(dtype)
    calibrated = CalibratedModel(make_gp(dtype=dtype, **kwargs), calibrator, excess=excess)
    if order == "alone":
        return calibrated
    pending = pending_points(transforms=transforms).to(dtype)
    return CensoredDelayModel(calibrated, pending, 12.0 if transforms else -1.5, imputation)


def skewed() -> QuantileRecalibrator:
    """A calibrator that has learned a skewed distribution with a nonzero mean."""
    calibrator = QuantileRecalibrator([0.1, 0.3, 0.5, 0.7, 0.9], step_size=0.3)
    calibrator.update(torch.zeros(25, 2, **DOUBLE), torch.linspace(-0.3, 1.6, 25, **DOUBLE) ** 2)
    return calibrator


@pytest.mark.slow  # the paths themselves: tests/models/test_sample_paths.py
@pytest.mark.parametrize(
    "order, imputation, options",
    [
        ("alone", "none", {"calibrator": skewed()}),
        ("pending", "censor", {"transforms": True, "fixed_noise": True}),
        ("pending", "censor", {"calibrator": skewed(), "excess": "objective"}),
        ("pending", "hallucinate", {"transforms": True, "calibrator": skewed()}),
        ("pending", "censor", {"dtype": torch.float32, "calibrator": skewed()}),
    ],
    ids=["alone", "censored", "excess of the objective", "hallucinated", "float32"],
)
def test_law_of_calibrated_draws(order, imputation, options):
    """Draws of many seeds have the distribution of the posterior, ``nu`` times as wide.

    After division by ``nu``, a Kolmogorov-Smirnov test at level 1e-5 compares draws with the
    posterior's distribution functions. Their products may differ by 4.5 standard errors from
    products of joint samples of the posterior. In 5 cases of 6 points and 21 products a correct
    sampler would fail with a probability below 0.2 %; seeds are fixed. Two points were observed,
    one is pending, and two of the other three are close to each other.
    """
    model = make_calibrated(order, imputation, **options)
    transforms, dtype = options.get("transforms", False), options.get("dtype", torch.double)
    window = pending_points(transforms=transforms).to(dtype)
    X = torch.cat(
        [make_data(2, transforms)[0], window[:1].double(), new_points(2, transforms)], dim=0
    )
    X = torch.cat([X, X[-1:] + 0.05 * (10.0 if transforms else 1.0)]).to(dtype)
    bound = BOUND / model.posterior(window).variance.sqrt().sum().item()
    draws = torch.stack(
        [
            values(make_thompson(model, X_window=window, feedback_bound=bound, seed=seed), X)
            for seed in range(NUM_DRAWS)
        ]
    )
    assert draws.dtype == dtype
    posterior = model.posterior(X)
    mean = posterior.mean.detach().squeeze(-1)
    deviations = (draws - mean) / (BETA + BOUND)

    def distances(cdf: Any) -> Tensor:
        levels = cdf((mean + deviations).unsqueeze(-1)).squeeze(-1).sort(dim=0).values
        grid = (torch.arange(NUM_DRAWS).to(levels) + 0.5) / NUM_DRAWS
        return (levels - grid.unsqueeze(-1)).abs().amax(dim=0).detach()

    limit = 2.47 / NUM_DRAWS**0.5
    assert (distances(posterior.cdf) < limit).all()
    # The test rejects the process's distribution, and the posterior given observed data only.
    base = posterior.corrected(None)
    normal = torch.distributions.Normal(base.mean.detach(), base.variance.detach().sqrt())
    assert (distances(normal.cdf) > limit).any()
    if order != "alone":
        observed = make_calibrated("alone", **options).posterior(X)
        assert (distances(observed.cdf) > limit).any()
    with random_stream(0):
        samples = posterior.rsample(torch.Size([20_000])).detach().squeeze(-1) - mean
    products = samples.unsqueeze(-1) * samples.unsqueeze(-2)
    found = deviations.mT @ deviations / NUM_DRAWS
    error = (found - products.mean(dim=0)).abs() / (products.std(dim=0) / NUM_DRAWS**0.5)
    assert error.max() < 4.5


# Draws from the process, over the box and over choices, and from calibrated models.
KINDS: dict[str, Any] = {
    "continuous": make_censored,
    "choices": make_censored,
    **{order: partial(make_calibrated, order) for order in ORDERS},
}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(("kind", "transforms"), [*zip(KINDS, [False, True] * 2, strict=True)])
def test_one_draw_is_widened_by_nu(kind, transforms):
    """``mu + nu (f - mu)``: draws of one seed differ by their distance from the mean alone."""
    model, window = KINDS[kind](transforms=transforms), pending_points(transforms=transforms)
    X = new_points(9, transforms)
    choices = X if kind == "choices" else None
    mean = model.posterior(X).mean.squeeze(-1).detach()
    draw = values(DelayedThompsonSampling(model, seed=5, choices=choices), X)
    acqf = make_thompson(model, X_window=window, choices=choices, seed=5)
    nu = BOUND * model.posterior(window).variance.sqrt().sum().detach() + BETA
    assert_close(acqf.nu, nu)
    assert_close(values(acqf, X), mean + nu * (draw - mean), rtol=1e-7, atol=1e-8)
    minimizing = make_thompson(model, X_window=window, choices=choices, seed=5, maximize=False)
    assert_close(values(minimizing, X), -values(acqf, X))
    none = DelayedThompsonSampling(model, beta=0.0, choices=choices)
    assert_close(values(none, X), mean, rtol=1e-7, atol=1e-8)


@orders
def test_a_calibrated_draw_is_a_differentiable_function(order):
    """Equal rows have equal values in any company and shape, and gradients are right."""
    acqf = make_thompson(
        make_calibrated(order, calibrator=skewed()), X_window=pending_points(), seed=2
    )
    X = torch.cat([new_points(), pending_points(1)])
    draw = values(acqf, X)
    repeated = values(acqf, torch.cat([X[:2], X, X.flip(0)]))
    assert_close(repeated, torch.cat([draw[:2], draw, draw.flip(0)]), rtol=0, atol=1e-9)
    assert torch.autograd.gradcheck(
        acqf, X.unsqueeze(-2).clone().requires_grad_(), rtol=1e-4, atol=1e-5
    )


@kinds
def test_a_draw_depends_on_the_arguments_alone(kind):
    """Later observations do not change a draw, and a draw does not change the random state."""
    model, X = KINDS[kind](), new_points()
    make = partial(make_thompson, model, choices=X if kind == "choices" else None)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    acqf = make(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    first = values(acqf, X)
    torch.manual_seed(99)
    assert torch.equal(values(make(seed=4), X), first)
    assert (values(make(seed=5), X) - first).abs().min() > 1e-6
    for twin in (copy.deepcopy(acqf), pickle.loads(pickle.dumps(acqf))):
        assert_close(values(twin, X), first, rtol=0, atol=1e-9)  # its process is factored anew
    before = model.posterior(X).mean
    model.observe(X[:2], torch.full((2, 1), 2.0, **DOUBLE))
    assert (model.posterior(X).mean - before).abs().max() > 0.1
    assert torch.equal(values(acqf, X), first)
    assert (values(make(seed=4), X) - first).abs().max() > 0.1


@orders
def test_draws_of_a_calibrator_that_has_seen_little(order):
    """The first draw warns once; its evaluations and later draws do not."""
    model = make_calibrated(order, calibrator=OnlineConformal(0.2))
    with pytest.warns(CalibrationWarning, match="has seen 0 residuals"):
        acqf = DelayedThompsonSampling(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values(acqf, new_points())
        DelayedThompsonSampling(model, seed=1)
        if order != "alone":
            acqf.set_X_pending(pending_points(5)[3:])


def test_random_streams():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with random_stream(7):
        first = torch.rand(3)
    with pytest.raises(ZeroDivisionError), random_stream(7):
        assert torch.equal(torch.rand(3), first)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), state)
    seeds = {derived_seed(*numbers) for numbers in np.ndindex(5, 5, 5)}
    assert len(seeds) == 125 and derived_seed(3, 1) == derived_seed(3, 1)


# ------------------------------------------------------------------ pending points


@pytest.mark.parametrize("kind", ["continuous", "choices", "pending"])
def test_pending_points_lead_to_another_draw(kind):
    X, more = new_points(), pending_points(5)[3:]
    make = partial(make_thompson, choices=X if kind == "choices" else None, seed=4)
    acqf = make(KINDS[kind](), X_window=pending_points())
    before, nu = values(acqf, X), acqf.nu
    acqf.set_X_pending(more)
    model = (make_calibrated() if kind in ORDERS else make_censored()).with_pending(more)
    assert_close(acqf.nu, confidence_width(model, BETA**2, pending_points(5), BOUND))
    # The draw is from the posterior given all pending points, with a derived seed.
    same_seed = make(model, X_window=pending_points(5))
    derived = make(model, X_window=pending_points(5), seed=derived_seed(4, 2))
    assert_close(values(acqf, X), values(derived, X))
    assert (values(acqf, X) - values(same_seed, X)).abs().min() > 1e-6
    given = make(KINDS[kind](), X_window=pending_points(), X_pending=more)
    assert torch.equal(values(given, X), values(acqf, X))
    acqf.set_X_pending(None)
    assert torch.equal(values(acqf, X), before) and torch.equal(acqf.nu, nu)


def test_a_failed_draw_changes_nothing(monkeypatch):
    X = new_points()
    acqf = make_thompson(make_censored(), X_window=pending_points())
    before, nu = values(acqf, X), acqf.nu

    def fail(*args):
        raise UnsupportedError("no features")

    monkeypatch.setattr("botorch_calib.acquisition.thompson.draw_path", fail)
    with pytest.raises(UnsupportedError, match="no features"):
        acqf.set_X_pending(X)
    assert acqf.X_pending is None and acqf.nu is nu and torch.equal(values(acqf, X), before)


# ------------------------------------------------------------------ optimisation


def test_optimisation_over_the_box():
    acqf = make_thompson(make_censored(), X_window=pending_points())
    with manual_seed(0):
        point, value = optimize_acqf(acqf, BOUNDS, q=1, num_restarts=4, raw_samples=64)
        fixed, _ = optimize_acqf(
            acqf, BOUNDS, q=1, num_restarts=1, raw_samples=8, fixed_features={1: 0.25}
        )
        batch, _ = optimize_acqf(acqf, BOUNDS, q=3, num_restarts=2, raw_samples=16, sequential=True)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, **DOUBLE)] * 2)
    assert value >= values(acqf, grid).max() - 1e-6
    assert_close(values(acqf, point)[0], value.detach())
    assert fixed[0, 1] == 0.25
    assert torch.pdist(batch).min() > 1e-3 and acqf.X_pending is None


def test_optimisation_over_choices():
    choices = new_points(50)
    acqf = make_thompson(make_censored(), X_window=pending_points(), choices=choices)
    point, value = optimize_acqf_discrete(acqf, q=1, choices=choices)
    table = values(acqf, choices)
    assert value == table.max() and torch.equal(point, choices[[int(table.argmax())]])
    batch, _ = optimize_acqf_discrete(acqf, q=4, choices=choices)
    assert len(batch.unique(dim=0)) == 4 and torch.equal(batch[:1], point)
    assert torch.equal(values(acqf, choices), table)


# ------------------------------------------------------------------ arguments


@continuous
def test_direction_and_transform(discrete):
    X = new_points()
    choices = X if discrete else None

    def make(**kwargs: Any) -> Tensor:
        return values(make_thompson(make_censored(), choices=choices, seed=3, **kwargs), X)

    draw = make()
    assert_close(make(maximize=False), -draw)
    for weight in (-2.0, 0.5):
        transform = ScalarizedPosteriorTransform(torch.tensor([weight], **DOUBLE), offset=1.5)
        assert_close(make(posterior_transform=transform), 1.5 + weight * draw)
        assert_close(make(posterior_transform=transform, maximize=False), -1.5 - weight * draw)
    with pytest.raises(UnsupportedError, match="posterior_transform"):
        make(posterior_transform=ExpectationPosteriorTransform(n_w=2))


def test_any_model_over_choices():
    """Whatever can be sampled jointly can be drawn from at given points."""
    X = new_points()
    for model in (make_calibrated(), make_variational()):
        state = torch.get_rng_state()
        draws = torch.stack(
            [values(make_thompson(model, choices=X, seed=seed), X) for seed in range(150)]
        )
        assert torch.equal(torch.get_rng_state(), state)
        posterior = model.posterior(X)
        mean = posterior.mean.squeeze(-1)
        sigma = BETA * posterior.variance.squeeze(-1).sqrt()
        # 4.5 standard errors of the mean of 150 draws, at four points.
        assert ((draws.mean(dim=0) - mean).abs() < 4.5 * sigma / 150**0.5).all()
        # 4.5 standard errors are 0.26 for a normal distribution; calibrated tails are heavier.
        assert_close(draws.std(dim=0), sigma.detach(), rtol=0.35, atol=0)


def test_calibrated_draws_are_joint():
    """Draws of a calibrated model over choices have the correlation of its process."""
    X = new_points(1).repeat(2, 1) + torch.tensor([[0.0], [1e-3]], **DOUBLE)
    model = CalibratedModel(make_gp(), far_from_gaussian())
    draws = torch.stack(
        [values(make_thompson(model, choices=X, seed=seed), X) for seed in range(50)]
    )
    assert torch.corrcoef(draws.mT)[0, 1] > 0.95


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_models_without_pathwise_draws():
    X, Y, _ = make_data()
    batch = SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1), outcome_transform=None)
    ensemble = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=2)
    periodic = SingleTaskGP(X, Y, covar_module=PeriodicKernel(), outcome_transform=None)
    for choices in (None, new_points()):
        for model in (batch, ensemble, ModelList(make_gp(), make_gp())):
            with pytest.raises(UnsupportedError):
                make_thompson(model.eval(), choices=choices)
    single = [make_multitask(), make_variational(), periodic]
    observations = [CalibratedModel(make_gp(), far_from_gaussian(), denoise=False)]
    calibrated = [
        CalibratedModel(model, far_from_gaussian(task=0.0 if model is single[0] else None))
        for model in single
    ]
    for model in (*single, CensoredDelayModel(periodic), *observations, *calibrated):
        with pytest.raises(UnsupportedError, match="choices"):
            make_thompson(model)
        assert make_thompson(model, choices=new_points()).choices.shape == (4, 2)
    for model in (*observations, calibrated[-1]):
        with pytest.raises(UnsupportedError, match="choices"):
            make_thompson(CensoredDelayModel(model, pending_points(), -1.5))


def test_bad_arguments():
    for name, value, error in (
        ("beta", -1.0, InputDataError),
        ("feedback_bound", torch.nan, InputDataError),
        ("seed", -1, InputDataError),
        ("choices", new_points()[:0], InputDataError),
        ("choices", torch.full((2, 2), torch.nan, **DOUBLE), InputDataError),
        ("choices", torch.zeros(3, 5, **DOUBLE), BotorchTensorDimensionError),
        ("choices", torch.zeros(2, **DOUBLE), BotorchTensorDimensionError),
        ("X_window", torch.zeros(3, 5, **DOUBLE), BotorchTensorDimensionError),
    ):
        with pytest.raises(error, match=f"`{name}`"):
            DelayedThompsonSampling(make_censored(), **{name: value})


def test_other_points_are_refused():
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 4, **DOUBLE)] * 2)[:-1]
    acqf = make_thompson(make_censored(), choices=grid)
    missing = torch.ones(1, 2, **DOUBLE)  # both values occur, but not together
    for point in (missing, grid[:1] + 1e-9, 2 * missing, -missing, torch.nan * missing):
        with pytest.raises(InputDataError, match="optimize_acqf_discrete"):
            acqf(torch.cat([grid[:2], point]).unsqueeze(-2))
    with pytest.raises(BotorchTensorDimensionError, match="`X` must have shape ... x 2"):
        acqf(torch.zeros(1, 1, 3, **DOUBLE))

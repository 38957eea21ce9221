"""GP-UCB under delayed feedback against the paper's formulas, computed from kernel matrices."""

from typing import Any

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelList, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.optim import optimize_acqf
from botorch.utils.sampling import manual_seed
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.acquisition import DelayedUpperConfidenceBound
from botorch_calib.acquisition.delayed import confidence_width
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from tests.gps import (
    DOUBLE,
    NOISE,
    dense_posterior,
    far_from_gaussian,
    make_data,
    make_gp,
    make_model,
    make_multitask,
)

# The multiplier of sigma, whose square is ``beta``.
BETA, BOUND = 0.75, 1.3
CENSOR = -1.5
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)

transformed = pytest.mark.parametrize("transforms", [False, True], ids=["plain", "transforms"])
each_model = pytest.mark.parametrize(
    ("transforms", "fixed_noise"), [(False, False), (True, True)], ids=["plain", "transforms"]
)


def pending_points(num: int = 3, transforms: bool = False) -> Tensor:
    return make_data(num, transforms, seed=8)[0]


def new_points(num: int = 6, transforms: bool = False) -> Tensor:
    return make_data(num, transforms, seed=21)[0].unsqueeze(-2)


def censor_value(transforms: bool) -> float:
    return 12.0 if transforms else CENSOR


def make_censored(
    num: int = 3, dtype: torch.dtype = torch.double, imputation: str = "censor", **kwargs: Any
) -> CensoredDelayModel:
    transforms = kwargs.get("transforms", False)
    pending = pending_points(num, transforms).to(dtype)
    gp = make_gp(dtype=dtype, **kwargs)
    return CensoredDelayModel(gp, pending, censor_value(transforms), imputation)


def make_delayed(model: Any, **kwargs: Any) -> DelayedUpperConfidenceBound:
    arguments = {"beta": BETA**2, "feedback_bound": BOUND, **kwargs}
    return DelayedUpperConfidenceBound(model, **arguments)


def noise_of(transforms: bool, fixed_noise: bool) -> Tensor:
    """Raw noise variances of the data; further rows have the mean of these."""
    _, Y, Yvar = make_data(transforms=transforms)
    if fixed_noise:
        return Yvar.squeeze(-1)
    return NOISE * (Y.var() if transforms else 1.0) * torch.ones(len(Y), **DOUBLE)


def dense(
    X_more: Tensor,
    y_more: float | Tensor,
    X_new: Tensor,
    transforms: bool = False,
    fixed_noise: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and deviation of `make_gp` given its data and further rows, by dense algebra."""
    (X, Y, _), noise = make_data(transforms=transforms), noise_of(transforms, fixed_noise)
    low, width, shift, scale = torch.tensor([0.0, 1.0, 0.0, 1.0], **DOUBLE)
    if transforms:
        low, width, shift, scale = X.amin(0), X.amax(0) - X.amin(0), Y.mean(), Y.std()
    num = len(X_more)
    more = torch.as_tensor(y_more, **DOUBLE).expand(num)
    mean, variance = dense_posterior(
        (torch.cat([X, X_more]) - low) / width,
        (torch.cat([Y.squeeze(-1), more]) - shift) / scale,
        torch.cat([noise, noise.mean().expand(num)]) / scale**2,
        (X_new.reshape(-1, 2) - low) / width,
    )
    return shift + scale * mean, scale * variance.sqrt()


# ------------------------------------------------------------------ the paper's formulas


@each_model
@pytest.mark.parametrize("maximize", [True, False])
def test_equation_2(transforms, fixed_noise, maximize):
    """``nu`` and the value equal results from kernel matrices of all queries."""
    model = make_censored(transforms=transforms, fixed_noise=fixed_noise)
    pending, X = pending_points(transforms=transforms), new_points(transforms=transforms)
    window = torch.cat([pending, make_data(transforms=transforms)[0][:4]])
    acqf = make_delayed(model, X_window=window, maximize=maximize)
    given = pending, censor_value(transforms)
    nu = BOUND * dense(*given, window, transforms, fixed_noise)[1].sum() + BETA
    assert acqf.nu.shape == () and acqf.nu.item() == pytest.approx(nu.item(), rel=1e-8)
    mean, sigma = dense(*given, X, transforms, fixed_noise)
    assert_close(acqf(X), (mean if maximize else -mean) + nu * sigma, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("iteration", [1, 2, 6, 12])
def test_the_sum_starts_at_the_first_query(iteration):
    """Erratum: the published sum starts at ``t - m``, before the first query if ``t <= m``.

    Queries are numbered from 1 as in the paper; values arrive after two iterations.
    """
    wait, delay = 5, 2
    queries = make_data(12, seed=30)[0]
    ledger = FeedbackLedger(2, censor_value=CENSOR, max_wait=wait)
    for s in range(1, iteration):
        trial_id = ledger.submit(queries[s - 1])
        ledger.observe(trial_id, 0.1 * s, time=s - 1 + delay)
    assert ledger.now() == iteration - 1
    values = [0.1 * s if s + delay <= iteration else CENSOR for s in range(1, iteration)]
    censored = torch.tensor(values, **DOUBLE)
    model = make_gp()
    if iteration > 1:
        model.posterior(queries)
        model = model.condition_on_observations(queries[: iteration - 1], censored.unsqueeze(-1))
    for window, first in (("all", max(1, iteration - wait)), ("pending", iteration - delay + 1)):
        nu = BETA
        for s in range(max(1, first), iteration):
            nu += BOUND * dense(queries[: iteration - 1], censored, queries[[s - 1]])[1].item()
        acqf = DelayedUpperConfidenceBound.from_ledger(
            model, ledger, window=window, beta=BETA**2, feedback_bound=BOUND
        )
        assert acqf.nu.item() == pytest.approx(nu, rel=1e-8)
    without = DelayedUpperConfidenceBound.from_ledger(model, ledger, window=None, beta=BETA**2)
    assert without.nu.item() == BETA and without.X_window is None


def test_a_ledger_is_read_at_a_time():
    ledger = FeedbackLedger(2, censor_value=CENSOR)
    for x in make_data(6, seed=30)[0]:
        ledger.submit(x)
    for now in (2, 4):
        acqf = DelayedUpperConfidenceBound.from_ledger(make_gp(), ledger, "all", now=now)
        assert torch.equal(acqf.X_window, make_data(6, seed=30)[0][:now])
    with pytest.raises(InputDataError, match="`window`"):
        DelayedUpperConfidenceBound.from_ledger(make_gp(), ledger, "everything")


@each_model
def test_the_bias_of_censoring_is_covered(transforms, fixed_noise):
    """Equation 5 of the proof with the noise variance: ``feedback_bound = B_y / noise``.

    The smaller multiplier, with the root of the sum of covariances, covers it too. The bound holds
    for any values within ``B_y`` of the censoring value. One pending query attains it at its own
    point, so no smaller factor is valid.
    """
    pending, X = pending_points(4, transforms), new_points(50, transforms)
    low = censor_value(transforms)
    spread = 30.0 if transforms else 3.0
    model = make_censored(4, transforms=transforms, fixed_noise=fixed_noise)
    factor = spread / noise_of(transforms, fixed_noise).mean().item()
    width = confidence_width(model, 0.0, pending, factor)
    joint = model.posterior(pending).distribution.covariance_matrix.detach()
    smaller = factor * joint.abs().sum().sqrt().item()
    assert smaller < 0.9 * width.item()
    sigma = model.posterior(X).variance.squeeze(-1).squeeze(-1).sqrt().detach()
    generator = torch.Generator().manual_seed(0)
    mean, _ = dense(pending, low, X, transforms, fixed_noise)
    for _ in range(20):
        values = low + spread / 2 * torch.randint(3, (4,), generator=generator)
        truth, _ = dense(pending, values, X, transforms, fixed_noise)
        assert ((mean - truth).abs() <= smaller * sigma * (1 + 1e-9)).all()
    one = pending[:1]
    alone = CensoredDelayModel(make_gp(fixed_noise, transforms), one, low)
    bias = [
        dense(one, value, one, transforms, fixed_noise)[0].item() for value in (low, low + spread)
    ]
    bound = confidence_width(alone, 0.0, one, factor) * alone.posterior(one).variance.sqrt()
    assert bound.item() == pytest.approx(bias[1] - bias[0], rel=1e-6)


# ------------------------------------------------------------------ special cases


@transformed
@pytest.mark.parametrize("maximize", [True, False])
def test_gp_ucb(transforms, maximize):
    """Without a window it is BoTorch's bound, whose parameter is the square of ours."""
    gp, X = make_gp(transforms=transforms), new_points(transforms=transforms)
    beta = torch.tensor(BETA**2, **DOUBLE)
    expected = UpperConfidenceBound(gp, beta, maximize=maximize)(X)
    for window, bound in ((None, 1.0), (X.squeeze(-2)[:0], 1.0), (X.squeeze(-2)[:2], 0.0)):
        acqf = DelayedUpperConfidenceBound(
            gp, beta=BETA**2, X_window=window, feedback_bound=bound, maximize=maximize
        )
        assert_close(acqf(X), expected)


@transformed
def test_gp_bucb(transforms):
    """Hallucinated values leave the mean and shrink the deviation."""
    model = make_censored(transforms=transforms, imputation="hallucinate")
    pending, X = pending_points(transforms=transforms), new_points(transforms=transforms)
    mean, _ = dense(pending[:0], 0.0, X, transforms)
    _, sigma = dense(pending, 0.0, X, transforms)
    assert_close(make_delayed(model)(X), mean + BETA * sigma, rtol=1e-6, atol=1e-8)
    conditioned = UpperConfidenceBound(model.gaussian_model, torch.tensor(BETA**2, **DOUBLE))
    assert_close(make_delayed(model)(X), conditioned(X))


# ------------------------------------------------------------------ pending points and batches


@pytest.mark.parametrize("window", [True, False])
def test_pending_points_condition_and_lengthen(window):
    known, more, X = pending_points(5)[:3], pending_points(5)[3:], new_points()
    model = make_censored(5)
    X_window = known if window else None
    first = CensoredDelayModel(make_gp(), pending_points(5)[:3], CENSOR)
    acqf = make_delayed(first, X_window=X_window)
    before, nu = acqf(X), acqf.nu
    acqf.set_X_pending(more)
    assert_close(
        acqf.nu, confidence_width(model, BETA**2, torch.cat([known, more][1 - window :]), BOUND)
    )
    by_hand = make_delayed(model, X_window=torch.cat([known, more][1 - window :]))
    assert_close(acqf(X), by_hand(X))
    given = make_delayed(first, X_window=X_window, X_pending=more)
    assert_close(given(X), by_hand(X))
    acqf.set_X_pending(None)
    assert acqf.X_pending is None and torch.equal(acqf.nu, nu) and torch.equal(acqf(X), before)
    acqf.set_X_pending(more[:0])
    assert acqf.X_pending is None and torch.equal(acqf(X), before)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_pending_points_with_and_without_the_task_column():
    known, more, X = pending_points(5)[:3], pending_points(5)[3:], new_points()
    model = CensoredDelayModel(make_multitask(), known, CENSOR)
    expected = make_delayed(model, X_window=known, X_pending=more)(X)
    acqf = make_delayed(model, X_window=model.X_pending)  # with the column
    acqf.set_X_pending(more)
    assert_close(acqf(X), expected)
    whole = torch.cat([more, torch.zeros(2, 1).to(more)], dim=-1)
    assert_close(make_delayed(model, X_window=known, X_pending=whole)(X), expected)


def test_refused_pending_points_change_nothing():
    X = new_points()
    for model, pending, error in (
        (make_gp(), pending_points(), UnsupportedError),
        (make_censored(), torch.full((1, 2), torch.nan, **DOUBLE), InputDataError),
        (make_censored(), torch.zeros(1, 3, **DOUBLE), BotorchTensorDimensionError),
        (make_censored(), torch.zeros(2, **DOUBLE), BotorchTensorDimensionError),
        (CensoredDelayModel(make_gp()), pending_points(), InputDataError),  # no censoring value
    ):
        acqf = make_delayed(model, X_window=pending_points())
        before = acqf(X)
        with pytest.raises(error):
            acqf.set_X_pending(pending)
        assert acqf.X_pending is None and torch.equal(acqf(X), before)


def test_another_model_is_the_one_that_counts():
    acqf = DelayedUpperConfidenceBound(make_gp())
    other = DelayedUpperConfidenceBound(make_censored())
    acqf.model = other.model
    assert_close(acqf(new_points()), other(new_points()))


def test_a_batch_is_chosen_one_by_one():
    """``optimize_acqf`` in sequence is conditioning by hand, and gives points apart."""
    search: dict[str, Any] = {"num_restarts": 2, "raw_samples": 16}
    acqf = make_delayed(make_censored(), X_window=pending_points(), feedback_bound=0.2)
    with manual_seed(3):
        batch, values = optimize_acqf(acqf, BOUNDS, q=3, sequential=True, **search)
    assert acqf.X_pending is None and torch.pdist(batch).min() > 1e-2
    chosen = batch[:0]
    with manual_seed(3):
        for value in values:
            model = make_censored().with_pending(chosen)
            window = torch.cat([pending_points(), chosen])
            step = make_delayed(model, X_window=window, feedback_bound=0.2)
            point, expected = optimize_acqf(step, BOUNDS, q=1, **search)
            assert_close(value, expected, rtol=1e-6, atol=1e-8)
            chosen = torch.cat([chosen, point])
    assert_close(batch, chosen, rtol=0, atol=1e-5)


# ------------------------------------------------------------------ other models and transforms


@pytest.mark.parametrize("weight", [2.0, -0.5])
def test_posterior_transform(weight):
    """The values are scaled; ``nu``, which has no units, is not."""
    transform = ScalarizedPosteriorTransform(torch.tensor([weight], **DOUBLE), offset=3.0)
    model, X = make_censored(), new_points()
    plain = make_delayed(model, X_window=pending_points())
    acqf = make_delayed(model, X_window=pending_points(), posterior_transform=transform)
    assert torch.equal(acqf.nu, plain.nu)
    posterior = model.posterior(X)
    mean, sigma = posterior.mean.flatten(), posterior.variance.sqrt().flatten()
    assert_close(acqf(X), 3.0 + weight * mean + abs(weight) * plain.nu * sigma)
    if weight < 0:
        lower = make_delayed(model, X_window=pending_points(), maximize=False)
        assert_close(acqf(X) - 3.0, abs(weight) * lower(X))


def test_calibrated_models():
    """Calibration inside or outside: the calibrated mean and standard deviation are used."""
    gp, pending, X = make_gp(), pending_points(), new_points()
    inside = CensoredDelayModel(CalibratedModel(gp, far_from_gaussian()), pending, CENSOR)
    outside = CalibratedModel(CensoredDelayModel(gp, pending, CENSOR), far_from_gaussian())
    for model in (inside, outside, CalibratedModel(gp, far_from_gaussian())):
        acqf = make_delayed(model, X_window=pending)
        sigma = model.posterior(pending).variance.sqrt().sum()
        assert_close(acqf.nu, BOUND * sigma.detach() + BETA)
        posterior = model.posterior(X)
        expected = posterior.mean + acqf.nu * posterior.variance.sqrt()
        assert_close(acqf(X), expected.flatten())
    acqf = make_delayed(inside, X_window=pending)
    acqf.set_X_pending(X.squeeze(-2)[:1])
    assert acqf.nu > make_delayed(inside, X_window=pending).nu
    plain = make_delayed(CalibratedModel(gp, far_from_gaussian()))
    with pytest.raises(UnsupportedError, match="CensoredDelayModel"):
        plain.set_X_pending(pending)


def test_batch_of_models():
    """Each model of a batch has a separate ``nu``."""
    X, Y, _ = make_data()
    singles, window = [], pending_points()
    outcomes = [Y, -Y, Y.flip(0)]
    for outcome, scale in zip(outcomes, (0.3, 0.6, 0.9), strict=True):
        gp = SingleTaskGP(X, outcome, outcome_transform=None)
        gp.covar_module.lengthscale = torch.tensor([scale, 0.5], **DOUBLE)
        gp.likelihood.noise = 0.1 * scale
        singles.append(gp.eval())
    batch = SingleTaskGP(X.expand(3, -1, -1), torch.stack(outcomes), outcome_transform=None)
    batch.covar_module.lengthscale = torch.stack([gp.covar_module.lengthscale for gp in singles])
    batch.likelihood.noise = torch.stack([gp.likelihood.noise for gp in singles])
    acqf = make_delayed(batch.eval(), X_window=window)
    alone = [make_delayed(gp, X_window=window) for gp in singles]
    assert_close(acqf.nu, torch.stack([one.nu for one in alone]))
    points = new_points().unsqueeze(-3)  # 6 x 1 x 1 x 2 against a batch of 3
    expected = torch.stack([one(points.squeeze(-3)) for one in alone], dim=-1)
    assert_close(acqf(points), expected)


def test_ensemble_is_averaged():
    """Each member has a separate ``nu``, and the value is the mean over members."""
    X, Y, _ = make_data()
    taus = torch.tensor([0.1, 0.5, 2.0], **DOUBLE)
    model = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=3, taus=taus).eval()
    scales = torch.tensor([0.2, 0.5, 0.9], **DOUBLE).reshape(3, 1, 1)
    model.covar_module.base_kernel.lengthscale = scales.expand(3, 1, 2)
    model.likelihood.noise = torch.tensor([[0.05], [0.1], [0.2]], **DOUBLE)
    acqf = make_delayed(model, X_window=pending_points())
    values = []
    for member in range(3):
        deviation = model.posterior(pending_points().unsqueeze(-2)).variance[:, member].sqrt()
        nu = (BOUND * deviation.sum() + BETA).detach()
        assert_close(acqf.nu[member], nu)
        posterior = model.posterior(new_points())
        mean, variance = posterior.mean[:, member], posterior.variance[:, member]
        values.append((mean + nu * variance.sqrt()).flatten())
    assert acqf.nu.diff().abs().min() > 1e-3
    assert_close(acqf(new_points()), torch.stack(values).mean(dim=0))


# ------------------------------------------------------------------ arguments


def test_bad_arguments():
    for name, value in (
        ("beta", -1.0),
        ("beta", torch.inf),
        ("feedback_bound", -0.1),
        ("feedback_bound", torch.nan),
        ("X_window", torch.full((1, 2), torch.nan, **DOUBLE)),
    ):
        with pytest.raises(InputDataError, match=name):
            DelayedUpperConfidenceBound(make_gp(), **{name: value})
    gp = make_gp(transforms=True)
    for model in (gp, CensoredDelayModel(make_model(), censor_value=0.0)):
        for shape in ((2,), (1, 1, 2), (3, 3)):
            with pytest.raises(BotorchTensorDimensionError, match="X_window"):
                DelayedUpperConfidenceBound(model, X_window=torch.zeros(shape, **DOUBLE))
    with pytest.raises(UnsupportedError, match="one output"):
        DelayedUpperConfidenceBound(ModelList(gp, gp))

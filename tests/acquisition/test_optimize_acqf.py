"""Real `optimize_acqf` runs on calibrated models: own and BoTorch's acquisition functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import IdentityMCObjective
from botorch.models import ModelList
from botorch.optim import optimize_acqf
from botorch.optim.optimize import optimize_acqf_discrete_local_search
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    QuantileRecalibrator,
)
from botorch_calib.acquisition import DelayedUpperConfidenceBound
from tests.gps import DOUBLE, far_from_gaussian, make_data, make_gp
from tests.long_grids import mostly_slow

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
RAW_BOUNDS = 10 * BOUNDS - 5
SEARCH: dict[str, Any] = {"num_restarts": 1, "raw_samples": 16, "options": {"maxiter": 15}}
PENDING = torch.tensor([[0.25, 0.3], [0.7, 0.8]], **DOUBLE)

Build = Callable[[CalibratedModel, Tensor, Tensor], AcquisitionFunction]
OWN: dict[str, Build] = {
    "calibrated EI": lambda model, X, best: CalibratedExpectedImprovement(model, best),
    "calibrated log EI": lambda model, X, best: LogCalibratedExpectedImprovement(model, best),
    "calibrated PI": lambda model, X, best: CalibratedProbabilityOfImprovement(model, best),
    "calibrated UCB": lambda model, X, best: CalibratedUpperConfidenceBound(model),
}
MONTE_CARLO: dict[str, Build] = {
    "qLogEI": lambda model, X, best: qLogExpectedImprovement(model, best),
    "qLogNEI": lambda model, X, best: qLogNoisyExpectedImprovement(model, X),
    "qUCB": lambda model, X, best: qUpperConfidenceBound(model, beta=0.2),
}
ALL: dict[str, Build] = {
    **OWN,
    "LogEI": lambda model, X, best: LogExpectedImprovement(model, best),
    "delayed UCB": lambda model, X, best: DelayedUpperConfidenceBound(model, X_window=X[:2]),
    **MONTE_CARLO,
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def make_model(
    transforms: bool = False,
    fixed_noise: bool = False,
    sign: float = 1.0,
    noise: float | None = None,
) -> CalibratedModel:
    gp = make_gp(fixed_noise, transforms, sign=sign)
    if noise is not None:
        gp.likelihood.noise = noise
    calibrator = LocalizedConformal(0.2, lengthscale=0.25, step_size=0.1)
    return CalibratedModel.from_history(gp, calibrator, num_initial=3)


def check(acqf: AcquisitionFunction, q: int = 1, bounds: Tensor = BOUNDS, **kwargs: Any) -> Tensor:
    """Optimise, and check the result against random candidates."""
    candidate, value = optimize_acqf(acqf, bounds=bounds, q=q, **SEARCH, **kwargs)
    assert value is not None
    assert candidate.shape == (q, 2) and candidate.dtype == torch.double
    assert (candidate >= bounds[0]).all() and (candidate <= bounds[1]).all()
    assert value.isfinite().all()
    if kwargs.get("sequential"):
        assert value.shape == (q,)
        value = acqf(candidate)  # the joint value, now that nothing is pending
    size = q + getattr(acqf, "num_fantasies", 0) * isinstance(acqf, qKnowledgeGradient)
    rivals = acqf(draw_sobol_samples(bounds, n=16, q=size, seed=1))
    assert rivals.isfinite().all() and value.detach() > rivals.mean()
    return candidate


@pytest.mark.parametrize("build", ALL.values(), ids=ALL)
def test_one_candidate(build):
    X, Y, _ = make_data(transforms=True)
    check(build(make_model(transforms=True, fixed_noise=True), X, Y.max()), bounds=RAW_BOUNDS)


def test_knowledge_gradient():
    check(qKnowledgeGradient(make_model(fixed_noise=True), num_fantasies=2))


@pytest.mark.parametrize(
    ("fixed_noise", "around", "by_samples"),
    [(False, True, True), (True, False, False)],
)
def test_derivatives_of_knowledge_gradient(fixed_noise, around, by_samples):
    """Also by the points whose outcomes are fantasies, on which later variances depend.

    The mean of a calibrated distribution depends on the variance, and so does every sample.
    """
    calibrator = QuantileRecalibrator([0.2, 0.5, 0.9], step_size=0.2)
    model: Any = CalibratedModel.from_history(make_gp(fixed_noise=fixed_noise), calibrator)
    if around:
        model = CensoredDelayModel(model, PENDING, imputation="hallucinate")
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0) if by_samples else None
    objective = IdentityMCObjective() if by_samples else None
    acqf = qKnowledgeGradient(model, num_fantasies=2, inner_sampler=sampler, objective=objective)
    X = draw_sobol_samples(BOUNDS, n=1, q=3, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(acqf, X, eps=1e-5, atol=1e-5)


@pytest.mark.parametrize("fixed_noise, steps", mostly_slow([(True, 1), (False, 2)], [(True, 1)]))
def test_derivatives_of_a_look_ahead_over_several_steps(fixed_noise, steps):
    """It predicts as anyone does, while a knowledge gradient asks to keep graphs of predictions."""
    calibrator = QuantileRecalibrator([0.2, 0.5, 0.9], step_size=0.2)
    model: Any = CalibratedModel.from_history(make_gp(fixed_noise=fixed_noise), calibrator)
    acqf = qMultiStepLookahead(model, batch_sizes=[1] * steps, num_fantasies=[2, 1][:steps])
    q = acqf.get_augmented_q_batch_size(1)
    X = draw_sobol_samples(BOUNDS, n=1, q=q, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(acqf, X, eps=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", ["never predicted", "predicted", "differentiated"])
def test_look_ahead_may_be_differentiated_again(known):
    """A backward pass may free the hyperparameters' graphs, which a second pass needs."""
    gp = make_gp()
    assert all(parameter.requires_grad for parameter in gp.parameters())
    learned = CalibratedModel.from_history(make_gp(), QuantileRecalibrator([0.2, 0.5, 0.9]))
    model: Any = CalibratedModel(gp, learned.calibrator)
    if known != "never predicted":
        mean = model.posterior(PENDING).mean
        if known == "differentiated":
            mean.sum().backward()
    acqf = qKnowledgeGradient(model, num_fantasies=2)
    X = draw_sobol_samples(BOUNDS, n=1, q=3, seed=3).requires_grad_()
    slopes = []
    for _ in range(2):
        X.grad = None
        acqf(X).sum().backward()
        slopes.append(X.grad)
    torch.testing.assert_close(*slopes)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_known_points_promise_nothing():
    """A copy of a point that is in the baseline exceeds it in no sample."""
    X, _, _ = make_data()
    wide = CalibratedModel(make_gp(), far_from_gaussian())
    sampler = SobolQMCNormalSampler(torch.Size([256]), seed=0)
    acqf = qLogNoisyExpectedImprovement(wide, X, sampler=sampler, prune_baseline=False)
    rivals = acqf(draw_sobol_samples(BOUNDS, n=16, q=1, seed=1))
    assert (acqf(X.unsqueeze(-2)) < rivals.max() - 6).all()  # a 400th of the best
    posterior: Any = ModelList(wide, make_model()).posterior(PENDING[[0, 1, 0]])
    samples = get_sampler(posterior, torch.Size([64]), seed=0)(posterior)
    assert samples.shape == (64, 3, 2)
    torch.testing.assert_close(samples[:, 0], samples[:, 2], rtol=0.0, atol=2e-3)


SEQUENTIAL = {name: ALL[name] for name in ("calibrated log EI", "qLogNEI")}


# Points of the search may be as good as equal to known ones, which the Cholesky root of the
# process' own covariance does not survive without jitter on every machine.
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_greedy(name):
    """Of four points chosen in sequence, each avoids the earlier points."""
    X, Y, _ = make_data()
    if name == "qLogNEI":
        candidates = check(SEQUENTIAL[name](make_model(), X, Y.max()), q=4, sequential=True)
    else:
        # With much noise, a point may well be worth a second evaluation.
        acqf = SEQUENTIAL[name](make_model(noise=2e-4), X, Y.max())
        candidates, values = optimize_acqf(acqf, BOUNDS, q=4, sequential=True, **SEARCH)
        assert candidates.shape == (4, 2) and values.isfinite().all()
        assert (candidates >= 0).all() and (candidates <= 1).all()
        assert acqf.X_pending is None
        # The first is the usual optimum; there is less to gain once others are pending.
        first = acqf(candidates.unsqueeze(-2))[0]
        torch.testing.assert_close(first, values[0])
        assert first > acqf(draw_sobol_samples(BOUNDS, n=16, q=1, seed=1)).mean()
        assert values[0] > values[1:].max()
    assert torch.pdist(candidates).min() > 1e-3


def check_joint_value(acqf: AcquisitionFunction, X: Tensor, value: Tensor | None) -> None:
    """Of points ``q x d`` chosen one after another: their values then, added."""
    assert acqf.X_pending is None
    total = torch.zeros(1, **DOUBLE)
    with torch.no_grad():
        for num in range(len(X)):
            acqf.set_X_pending(X[:num] if num else None)
            each = acqf(X[num : num + 1])
            total += each.exp() if getattr(acqf, "_log", False) else each
    acqf.set_X_pending(None)
    result = value.exp() if getattr(acqf, "_log", False) else value
    torch.testing.assert_close(result.view(1), total)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.parametrize("name", ["calibrated log EI", "calibrated UCB"])
def test_searches_that_ask_for_the_value_of_a_batch(name: str) -> None:
    """Up to now they failed at their end."""
    X, Y, _ = make_data()
    acqf = ALL[name](make_model(), X, Y.max())
    mixed = optimize_acqf_mixed_alternating(
        acqf, BOUNDS, discrete_dims={0: [0.0, 0.5, 1.0]}, q=3, num_restarts=2, raw_samples=8
    )
    levels = [torch.linspace(0, 1, 4, **DOUBLE)] * 2
    local = optimize_acqf_discrete_local_search(acqf, levels, q=2, num_restarts=2, raw_samples=8)
    for chosen, value in (mixed, local):
        assert value is not None
        check_joint_value(acqf, chosen, value)
    with pytest.raises(AssertionError, match="q=1"):  # a joint search has no such value
        acqf(mixed[0].unsqueeze(0))
    with pytest.raises(AssertionError, match="q=1"):
        acqf(mixed[0].clone().requires_grad_())

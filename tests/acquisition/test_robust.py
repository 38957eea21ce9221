"""Robust acquisition functions compared with loops over contexts, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound, qLogExpectedImprovement
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import InputPerturbation
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from botorch.sampling.get_sampler import get_sampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedExpectedImprovement,
    CalibratedModel,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    ChanceConstraint,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
    QuantileRecalibrator,
)
from botorch_calib.acquisition import robust as robust_acquisition
from botorch_calib.acquisition.robust import (
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.calibration import NoCalibration
from botorch_calib.decisions import CertifiedSetExpansion
from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ClosedFormConfidenceBound,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    RadiusSchedule,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from tests.gps import far_from_gaussian, make_gp, make_multitask, make_variational
from tests.long_grids import mostly_slow

DOUBLE: dict[str, Any] = {"dtype": torch.double}
BETA, RADIUS = 2.25, 0.3
CONTEXTS = torch.tensor([[0.1], [0.35], [0.5], [0.8], [0.95]], **DOUBLE)
WEIGHTS = torch.tensor([0.3, 0.1, 0.2, 0.25, 0.15], **DOUBLE)
CENTRE = ContextDistribution.discrete(CONTEXTS, WEIGHTS)
UNIT = torch.tensor([[0.0], [1.0]], **DOUBLE)


def matern_gp() -> SingleTaskGP:
    gp = make_gp()
    gp.covar_module = MaternKernel(nu=1.5, ard_num_dims=2).double()
    gp.covar_module.lengthscale = torch.tensor([0.6, 0.4], **DOUBLE)
    return gp.eval()


def summed_gp() -> SingleTaskGP:
    """With a kernel that has no closed form."""
    gp = make_gp()
    gp.covar_module = RBFKernel().double() + MaternKernel(nu=2.5).double()
    for kernel, lengthscale in zip(gp.covar_module.kernels, (0.4, 0.7), strict=True):
        kernel.lengthscale = lengthscale
    return gp.eval()


def calibrated() -> CalibratedModel:
    return CalibratedModel(make_gp(), far_from_gaussian())


def recalibrated() -> CalibratedModel:
    return CalibratedModel.from_history(make_gp(), QuantileRecalibrator(lengthscale=0.5))


def conformal() -> CalibratedModel:
    return CalibratedModel.from_history(make_gp(), OnlineConformal(alpha=0.2))


def robust_sampled_improvement(model: Any, best_f: float) -> RobustAcquisition:
    point = torch.zeros(1, 2, **DOUBLE)
    sampler = get_sampler(model.posterior(point), torch.Size([32]), seed=0)
    improvement = qLogExpectedImprovement(model, best_f=best_f, sampler=sampler)
    return RobustAcquisition(improvement, WassersteinBall(0.2, "lipschitz"), CONTEXTS)


def censored(**kwargs: Any) -> CensoredDelayModel:
    pending = torch.tensor([[0.2, 0.4], [0.7, 0.9]], **DOUBLE)
    return CensoredDelayModel(make_gp(**kwargs), pending, censor_value=-2.0)


MODELS: dict[str, Callable[[], Any]] = {
    "rbf": make_gp,
    "matern": matern_gp,
    "censored": censored,
    "calibrated": calibrated,
    "recalibrated": recalibrated,
    "variational": make_variational,
    "calibrated sum of kernels": lambda: CalibratedModel(summed_gp(), far_from_gaussian()),
    "calibrated and censored": lambda: CalibratedModel(censored(), far_from_gaussian()),
    "censored and calibrated": lambda: CensoredDelayModel(
        calibrated(), torch.tensor([[0.2, 0.4]], **DOUBLE), censor_value=-2.0
    ),
}
FALLBACK = ("variational", "calibrated sum of kernels")
# One of each path, for tests of what they have in common: two in closed form, and the fallback.
EACH = ("matern", "calibrated", "calibrated sum of kernels")
AMBIGUITY: dict[str, Callable[[], Any]] = {
    "lipschitz": lambda: WassersteinBall(RADIUS, "lipschitz"),
    "wasserstein": lambda: WassersteinBall(0.1, "exact"),
    "total variation": lambda: TotalVariationBall(0.2),
    "chi squared": lambda: ChiSquaredBall(0.2),
    "kl": lambda: KLBall(0.2),
    "cvar": lambda: ConditionalValueAtRisk(0.3),
    "worst": lambda: WorstCase(),
    "lipschitz, radius 0": lambda: WassersteinBall(0.0, "lipschitz"),
    "kl, radius 0": lambda: KLBall(0.0),
}


def points(*shape: int, dim: int = 1, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 1, dim, **DOUBLE, generator=generator)


def bound_at(model: Any, x: Tensor, c: Tensor, sign: float = 1.0) -> Tensor:
    """The bound at one pair, decision first, from the model's posterior."""
    posterior = model.posterior(torch.cat([x, c]).view(1, 1, -1))
    return (sign * posterior.mean + BETA**0.5 * posterior.variance.sqrt()).reshape(())


def gradient_norm_at(model: Any, x: Tensor, c: Tensor, sign: float = 1.0) -> Tensor:
    """The norm of its context gradient, by central differences."""
    h = 1e-5
    parts = []
    for j in range(len(c)):
        step = torch.zeros_like(c)
        step[j] = h
        up, down = (bound_at(model, x, c + s * step, sign) for s in (1, -1))
        parts.append((up - down) / (2 * h))
    return torch.stack(parts).norm()


def by_loops(model: Any, X: Tensor, lipschitz: Tensor, sign: float = 1.0) -> Tensor:
    result = []
    for x in X.reshape(-1, 1):
        mean = sum(w * bound_at(model, x, c, sign) for w, c in zip(WEIGHTS, CONTEXTS, strict=True))
        steepest = max(gradient_norm_at(model, x, c, sign) for c in lipschitz)
        result.append(mean - RADIUS * steepest)
    return torch.stack(result).view(X.shape[:-2]).detach()


def wasserstein(model: Any, radius: Any = RADIUS, **kwargs: Any) -> WassersteinUpperConfidenceBound:
    kwargs = {"contexts": CENTRE, **kwargs}
    return WassersteinUpperConfidenceBound(model, BETA, radius, **kwargs)


class TestWasserstein:
    @pytest.mark.parametrize("name", mostly_slow(MODELS, EACH))
    def test_values(self, name):
        model, X = MODELS[name](), points(2)
        acqf = wasserstein(model)
        assert_close(acqf(X), by_loops(model, X, CONTEXTS), rtol=1e-6, atol=1e-6)
        kind = PointwiseFunction if name in FALLBACK else ClosedFormConfidenceBound
        assert isinstance(acqf.contextual_function(X), kind)
        others = torch.linspace(0.0, 1.0, 7, **DOUBLE).unsqueeze(-1)
        acqf = wasserstein(model, maximize=False, lipschitz_contexts=others)
        assert_close(acqf(X), by_loops(model, X, others, -1.0), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("name", [*EACH, "censored"])
    def test_gradient(self, name):
        acqf, X = wasserstein(MODELS[name]()), points(3).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,), eps=1e-6, atol=1e-5, rtol=1e-4)

    def test_where_the_steepest_context_switches(self):
        acqf = wasserstein(matern_gp())

        def steepest(x: Tensor) -> Tensor:
            function = acqf.contextual_function(x)
            return function.with_gradients(x.view(-1, 1), CONTEXTS)[1].norm(dim=-1).argmax(dim=-1)

        grid = torch.linspace(0.02, 0.98, 200, **DOUBLE)
        change = steepest(grid).diff().nonzero().squeeze(-1)
        assert len(change)
        low, high = grid[change[0]].clone(), grid[change[0] + 1].clone()
        first = steepest(low)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if steepest(middle) == first else (low, middle)
        # On both sides of the switch, the gradient belongs to the branch of that side.
        slopes = []
        for x, side in ((low, -1.0), (high, 1.0)):
            x = x.view(1, 1, 1).requires_grad_()
            (slope,) = torch.autograd.grad(acqf(x).sum(), x)
            h = 1e-5
            one, two = (acqf(x.detach() + side * k * h) for k in (1, 2))
            numeric = side * (4 * one - two - 3 * acqf(x.detach())) / (2 * h)
            assert_close(slope.view(1), numeric, rtol=1e-4, atol=1e-4)
            slopes.append(slope.item())
        # The largest norm has a convex kink, so the penalised value has a concave one.
        assert slopes[0] > slopes[1] + 1e-2

    @pytest.mark.parametrize("radius", [torch.tensor(RADIUS), torch.tensor([RADIUS], **DOUBLE)])
    def test_kinds_of_radius_and_beta(self, radius):
        model, X = make_gp(), points(3)
        acqf = wasserstein(model, radius)
        assert_close(acqf(X), wasserstein(model)(X), rtol=1e-6, atol=1e-6)
        acqf = WassersteinUpperConfidenceBound(model, torch.tensor(BETA), RADIUS, CENTRE)
        assert_close(acqf(X), wasserstein(model)(X), rtol=1e-12, atol=1e-12)

    def test_list_of_one_model(self):
        gp, X = make_gp(), points(3)
        for radius in (RADIUS, RadiusSchedule(RADIUS)):
            listed = wasserstein(ModelListGP(gp), radius)
            assert_close(listed(X), wasserstein(gp, radius)(X))
            assert isinstance(listed.contextual_function(X), ClosedFormConfidenceBound)
        improvement = UpperConfidenceBound(ModelListGP(gp), BETA)
        acqf = RobustAcquisition(improvement, WassersteinBall(RadiusSchedule(RADIUS)), CENTRE)
        assert acqf.ambiguity.radius == RADIUS / 12**0.5

    def test_smoothed_for_a_search(self, monkeypatch):
        acqf, X = wasserstein(matern_gp()), points(6)
        exact, smooth = acqf(X), acqf.lipschitz_bound(UNIT).smooth
        ends = []
        for smoothing in (1 / 8, 1 / 32, 1 / 4096):
            monkeypatch.setattr(robust_acquisition, "SMOOTHING", smoothing)
            ends.append(smooth(X))
        # The norm of higher order is nearer to the maximum, and above it.
        assert (ends[0] < ends[1]).all() and (ends[1] <= ends[2]).all()
        assert (ends[2] <= exact).all()
        assert_close(ends[2], exact, rtol=1e-3, atol=1e-3)
        monkeypatch.undo()
        x = X.requires_grad_()
        assert torch.autograd.gradcheck(smooth, (x,), eps=1e-6, atol=1e-5, rtol=1e-4)
        assert torch.equal(acqf(X), exact)


class MeanSlopePenalty(AmbiguitySet):
    """A set of a user's own: the expectation, less the mean gradient norm times a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def evaluate(self, function, X, contexts):
        norms = function.gradient_norms(X, contexts.points)
        return contexts.expectation(function(X, contexts.points) - self.factor * norms)


class HalfWay(AmbiguitySet):
    """Another one, of the values at the atoms alone: half of the mass moves to the worst atom."""

    def _solve(self, u, contexts):
        worst = torch.zeros_like(u).scatter_(-1, u.argmin(dim=-1, keepdim=True), 1.0)
        return (contexts.weights + worst) / 2


class TestSetsOfOnesOwn:
    @pytest.mark.parametrize(
        ("name", "maximize"), [*zip(EACH, (True, False, True), strict=True), ("censored", False)]
    )
    def test_gradients_by_loops(self, name, maximize):
        model, X = MODELS[name](), points(3)
        acqf = RobustUpperConfidenceBound(
            model, BETA, MeanSlopePenalty(0.3), CENTRE, maximize=maximize
        )
        sign, expected = 1.0 if maximize else -1.0, []
        for x in X.reshape(-1, 1):
            penalised = [
                bound_at(model, x, c, sign) - 0.3 * gradient_norm_at(model, x, c, sign)
                for c in CONTEXTS
            ]
            expected.append(WEIGHTS @ torch.stack(penalised).detach())
        assert_close(acqf(X), torch.stack(expected), rtol=1e-6, atol=1e-6)
        X = X.requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,), eps=1e-6, atol=1e-5, rtol=1e-4)

    def test_gradients_of_any_acquisition(self):
        model, X = matern_gp(), points(2, 3).requires_grad_()
        fast = RobustUpperConfidenceBound(model, BETA, MeanSlopePenalty(0.3), CENTRE)
        slow = RobustAcquisition(UpperConfidenceBound(model, BETA), MeanSlopePenalty(0.3), CENTRE)
        assert_close(fast(X), slow(X), rtol=1e-6, atol=1e-6)
        slopes = [torch.autograd.grad(acqf(X).sum(), X)[0] for acqf in (fast, slow)]
        assert_close(*slopes, rtol=1e-6, atol=1e-6)
        with pytest.raises(UnsupportedError, match=r"MeanSlopePenalty\(factor=0.3\).*`evaluate`"):
            fast.worst_case_weights(X)

    def test_values_at_the_atoms(self):
        model, X = make_gp(), points(4)
        acqf = RobustUpperConfidenceBound(model, BETA, HalfWay(), CENTRE)
        parts = (TotalVariationBall(0.0), WorstCase())
        mean, worst = (RobustUpperConfidenceBound(model, BETA, s, CENTRE)(X) for s in parts)
        assert_close(acqf(X), (mean + worst) / 2, rtol=1e-9, atol=1e-9)
        assert_close(acqf.worst_case_weights(X).sum(dim=-1), torch.ones(4, **DOUBLE))


class TestAnyAcquisition:
    @pytest.mark.parametrize("ambiguity", AMBIGUITY)
    def test_agrees_with_the_closed_form(self, ambiguity):
        model, X = matern_gp(), points(2, 3)
        fast = RobustUpperConfidenceBound(model, BETA, AMBIGUITY[ambiguity](), CENTRE)
        slow = RobustAcquisition(UpperConfidenceBound(model, BETA), AMBIGUITY[ambiguity](), CENTRE)
        results = []
        for acqf in (fast, slow):
            x = X.clone().requires_grad_()
            values = acqf(x)
            results.append((values.detach(), torch.autograd.grad(values.sum(), x)[0]))
        for a, b in zip(*results, strict=True):
            assert_close(a, b, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(
        ("build", "ambiguity"),
        [
            (lambda model: CalibratedExpectedImprovement(model, best_f=0.4), "total variation"),
            (lambda model: LogCalibratedExpectedImprovement(model, best_f=0.4), "lipschitz"),
        ],
    )
    def test_gradient(self, build, ambiguity):
        acqf = RobustAcquisition(build(calibrated()), AMBIGUITY[ambiguity](), CONTEXTS)
        X = points(3).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,), eps=1e-6, atol=1e-4, rtol=1e-3)

    def test_gradient_in_small_units_of_contexts_of_tasks(self):
        """The scale of the only context, 0, follows from the training inputs without the task."""
        unit = 1e-6
        X = torch.rand(12, 3, **DOUBLE) * torch.tensor([1.0, unit, 0.0], **DOUBLE)
        X[::2, 2] = 1.0
        Y = (4 * X[:, :1]).sin() * (3 / unit * X[:, 1:2]).cos()
        gp = MultiTaskGP(
            X, Y, task_feature=-1, output_tasks=[0], input_transform=Normalize(3, indices=[0, 1])
        )
        quantile = CalibratedUpperConfidenceBound(CalibratedModel(gp.eval(), NoCalibration()))
        ball = WassersteinBall(0.1 * unit, "lipschitz")
        acqf = RobustAcquisition(quantile, ball, torch.zeros(1, 1, **DOUBLE))
        assert torch.autograd.gradcheck(acqf, (points(2).requires_grad_(),), eps=1e-5, atol=1e-5)

    @pytest.mark.parametrize(("build", "best_f"), [(matern_gp, 1.5), (conformal, 1.3)])
    def test_gradient_of_sampled_improvement(self, build, best_f):
        """Which bends within a thousandth of the scale over which differences are taken."""
        acqf = robust_sampled_improvement(build(), best_f)
        X = points(3).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,), eps=1e-7, atol=1e-3, rtol=1e-3)

    def test_samples_with_first_derivatives_only(self):
        acqf = robust_sampled_improvement(recalibrated(), 0.9)
        X = points(3).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(acqf(X).sum(), X)
            assert slope.isfinite().all() and (slope != 0).any()

    def test_memory_that_ran_out_does_not_change_the_method(self, monkeypatch):
        def full(self: PointwiseFunction, x: Tensor, c: Tensor) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        acqf = robust_sampled_improvement(matern_gp(), 1.5)
        X = points(3).requires_grad_()
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(PointwiseFunction, "_twice_along", full)
            torch.autograd.grad(acqf(X).sum(), X)
        expected = torch.autograd.grad(robust_sampled_improvement(matern_gp(), 1.5)(X).sum(), X)
        assert torch.equal(torch.autograd.grad(acqf(X).sum(), X)[0], expected[0])

    @pytest.mark.parametrize(("num", "unit"), [(1, 1e-6), (6, 1e-6), (6, 1.0), (6, 1e6)])
    def test_differences_are_in_the_unit_of_the_contexts(self, num, unit):
        """Also where contexts do not vary, at all or in one column."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(20, 3, **DOUBLE, generator=generator)
        gp = SingleTaskGP(
            unit * inputs,
            (4 * inputs).sin().sum(dim=-1, keepdim=True),
            input_transform=Normalize(3),
        )
        contexts = unit * torch.full((num, 2), 0.3, **DOUBLE)
        contexts[:, 0] += unit * 0.1 * torch.arange(num)
        ball, slopes = WassersteinBall(0.3 * unit, "lipschitz"), []
        for acqf in (
            RobustUpperConfidenceBound(gp, BETA, ball, contexts),
            RobustAcquisition(UpperConfidenceBound(gp, BETA), ball, contexts),
        ):
            X = (unit * points(4)).requires_grad_()
            slopes.append(unit * torch.autograd.grad(acqf(X).sum(), X)[0])
        assert_close(*slopes, rtol=1e-6, atol=1e-6)

    def test_without_a_model(self):
        class Plain(AcquisitionFunction):
            def __init__(self) -> None:
                torch.nn.Module.__init__(self)

            def forward(self, X: Tensor) -> Tensor:
                return (X[..., 0, 0] - X[..., 0, 2]).square() + X[..., 0, 1]

        first = ContextDistribution.empirical(CONTEXTS).with_indices([0])
        acqf = RobustAcquisition(Plain(), WorstCase(), first)
        X = points(3, dim=2)
        expected = (CONTEXTS - X[:, 0, 1]).square().amin(dim=0) + X[:, 0, 0]
        assert_close(acqf(X), expected)


class TestInputs:
    def test_context_first(self):
        gp = make_gp()
        X, Y = gp.train_inputs[0], gp.train_targets.unsqueeze(-1)
        twin = SingleTaskGP(X.flip(-1), Y, outcome_transform=None)
        twin.load_state_dict(gp.state_dict())
        twin.covar_module.lengthscale = gp.covar_module.lengthscale.detach().flip(-1)
        decisions = points(4)
        expected = wasserstein(gp)(decisions)
        for indices in ([0], [-2], torch.tensor([0])):
            acqf = wasserstein(twin.eval(), contexts=CENTRE.with_indices(indices))
            assert_close(acqf(decisions), expected, rtol=1e-9, atol=1e-9)

    def test_arguments_and_what_the_distribution_carries(self):
        model, X, others = make_gp(), points(3), CONTEXTS[:3] + 0.02
        expected = wasserstein(model, lipschitz_contexts=others)(X)
        centre = CENTRE.with_indices([-1]).with_lipschitz_points(others)
        ball = WassersteinBall(RADIUS, "lipschitz")
        assert torch.equal(RobustUpperConfidenceBound(model, BETA, ball, centre)(X), expected)
        assert torch.equal(wasserstein(model, contexts=centre)(X), expected)
        elsewhere = CENTRE.with_lipschitz_points(CONTEXTS[3:])
        replaced = wasserstein(model, contexts=elsewhere, lipschitz_contexts=others)
        assert torch.equal(replaced(X), expected)

    @pytest.mark.parametrize(
        ("arguments", "error", "match"),
        [
            ({"radius": -0.1}, InputDataError, "radius"),
            ({"beta": -1.0}, InputDataError, "beta"),
            ({"contexts": CONTEXTS * float("nan")}, InputDataError, "contexts"),
            ({"contexts": CONTEXTS[:, 0]}, BotorchTensorDimensionError, "contexts"),
            ({"contexts": CENTRE.with_indices([2])}, InputDataError, "indices"),
            ({"contexts": CONTEXTS.expand(5, 2)}, InputDataError, "contexts"),
            (
                {"lipschitz_contexts": CONTEXTS.expand(5, 2)},
                BotorchTensorDimensionError,
                "lipschitz_points",
            ),
        ],
    )
    def test_wrong_arguments(self, arguments, error, match):
        given = {"beta": BETA, "radius": RADIUS, "contexts": CONTEXTS}
        with pytest.raises(error, match=match):
            WassersteinUpperConfidenceBound(make_gp(), **{**given, **arguments})

    def test_wrong_models_and_points(self):
        with pytest.raises(UnsupportedError, match="`radius` is a function"):
            wasserstein(GenericDeterministicModel(lambda X: X[..., :1]), RadiusSchedule(0.3))
        two = SingleTaskGP(*_standard(2), outcome_transform=None)
        with pytest.raises(UnsupportedError, match="one output"):
            wasserstein(two)
        X, Y = _standard(1)
        batch = SingleTaskGP(X.expand(2, -1, -1), Y.expand(2, -1, -1), outcome_transform=None)
        with pytest.raises(UnsupportedError, match="batch"):
            wasserstein(batch)
        # If pairs are as many as models, each pair would be evaluated by a different model.
        with pytest.raises(UnsupportedError, match="batch"):
            RobustAcquisition(UpperConfidenceBound(batch, BETA), WorstCase(), CONTEXTS[:2])
        perturbed = make_gp()
        perturbed.input_transform = InputPerturbation(torch.zeros(3, 2, **DOUBLE))
        with pytest.raises(UnsupportedError, match="one value"):
            wasserstein(perturbed.eval())(points(3))
        with pytest.raises(BotorchTensorDimensionError, match="columns of decisions"):
            wasserstein(make_gp())(points(3, dim=2))


def _standard(num_outputs: int) -> tuple[Tensor, Tensor]:
    X = points(6, dim=2).squeeze(-2)
    Y = (7 * X[:, :1]).sin().expand(-1, num_outputs)
    return X, (Y - Y.mean(dim=0)) / Y.std(dim=0)


def test_follows_its_model_and_its_attributes():
    gp, other, X = make_gp(), make_gp(), points(3)
    acqf = wasserstein(gp)
    acqf(X)
    other.covar_module.lengthscale = torch.tensor([0.3, 0.9], **DOUBLE)
    gp.load_state_dict(other.state_dict())
    for each in (gp, other):
        each.set_train_data(each.train_inputs[0][:8], each.train_targets[:8], strict=False)
    acqf.beta, acqf.maximize = 9.0, False
    expected = WassersteinUpperConfidenceBound(other, 9.0, RADIUS, CENTRE, maximize=False)
    assert_close(acqf(X), expected(X), rtol=1e-9, atol=1e-9)


class TestInputConstructors:
    X, Y = _standard(1)
    dataset = SupervisedDataset(X, Y, feature_names=["x", "c"], outcome_names=["y"])

    def construct(self, kind: type[AcquisitionFunction], **kwargs: Any) -> AcquisitionFunction:
        model = make_gp()
        constructor = get_acqf_input_constructor(kind)
        given: dict[str, Any] = {"contexts": CENTRE, **kwargs}
        return kind(**constructor(model=model, training_data=self.dataset, **given))

    def test_values(self):
        X = points(3)
        acqf = self.construct(WassersteinUpperConfidenceBound, radius=RADIUS)
        assert torch.equal(acqf(X), wasserstein(make_gp())(X))
        negated = ScalarizedPosteriorTransform(torch.tensor([-1.0], **DOUBLE))
        acqf = self.construct(
            WassersteinUpperConfidenceBound, radius=RADIUS, posterior_transform=negated
        )
        expected = wasserstein(make_gp(), maximize=False)(X)
        assert_close(acqf(X), expected, rtol=1e-6, atol=1e-6)
        ambiguity = WassersteinBall(RADIUS, "lipschitz")
        acqf = self.construct(RobustUpperConfidenceBound, ambiguity=ambiguity, maximize=False)
        assert torch.equal(acqf(X), expected)


def test_names_in_errors() -> None:
    """Errors name the argument and the expected type."""
    for ambiguity in (CENTRE, WassersteinBall):
        with pytest.raises(InputDataError, match="`ambiguity` must be an AmbiguitySet"):
            RobustUpperConfidenceBound(make_gp(), BETA, ambiguity, CENTRE)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="`acquisition` must be an acquisition function"):
        RobustAcquisition(matern_gp(), WorstCase(), CENTRE)


@pytest.mark.parametrize("indices", [None, [0]])
@pytest.mark.parametrize("kind", ["bound", "acquisition", "expansion"])
def test_mixed_searches_start_near_observed_decisions(kind: str, indices: list[int] | None) -> None:
    """BoTorch perturbed the training inputs, which have columns of contexts."""
    X = torch.rand(10, 3, **DOUBLE)
    gp = SingleTaskGP(X, X.sum(dim=-1, keepdim=True)).eval()
    named = CENTRE.with_indices(indices)
    given: dict[str, Any] = {"ambiguity": TotalVariationBall(0.2), "contexts": named}
    acqf: Any = {
        "bound": lambda: RobustUpperConfidenceBound(gp, BETA, **given),
        "acquisition": lambda: RobustAcquisition(UpperConfidenceBound(gp, BETA), **given),
        "expansion": lambda: CertifiedSetExpansion(ChanceConstraint(gp, upper=2.0, **given)),
    }[kind]()
    assert_close(acqf.X_baseline, X[:, :2] if indices is None else X[:, 1:])
    decision, _ = optimize_acqf_mixed_alternating(
        acqf, UNIT.expand(-1, 2), discrete_dims={0: [0.0, 1.0]}, num_restarts=1, raw_samples=4
    )
    assert decision[0, 0] in (0.0, 1.0)


def test_a_function_without_observations_has_no_baseline() -> None:
    acqf = RobustAcquisition(lambda Z: Z.sum(dim=(-2, -1)), WorstCase(), CONTEXTS)  # type: ignore[arg-type]
    assert not hasattr(acqf, "X_baseline")


def test_contexts_in_the_column_of_the_task_are_refused() -> None:
    """A value of the context was taken for a task, where decisions have the task column."""
    model, ball = make_multitask(), TotalVariationBall(0.2)  # columns: x, c and the task
    acqf = RobustUpperConfidenceBound(model, BETA, ball, CENTRE)
    x, whole = points(2), torch.cat([points(2), torch.zeros(2, 1, 1, **DOUBLE)], dim=-1)
    with pytest.raises(InputDataError, match="would fill column 2 .* `contexts.with_indices`"):
        acqf(whole)
    with pytest.raises(InputDataError, match="would fill column 2"):
        ChanceConstraint(model, upper=1.0, ambiguity=ball, contexts=CENTRE)
    named = CENTRE.with_indices([1])
    assert_close(RobustUpperConfidenceBound(model, BETA, ball, named)(whole), acqf(x))
    constraint = ChanceConstraint(model, upper=1.0, ambiguity=ball, contexts=named)
    assert constraint.margin(whole).shape == (2,)

"""Noisy improvement with cached roots, held against the same without them and BoTorch's own."""

from __future__ import annotations

import pickle
import runpy
import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.hypervolume_knowledge_gradient import (
    qHypervolumeKnowledgeGradient,
)
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import WeightedMCMultiOutputObjective
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.acquisition.objective import (
    GenericMCObjective,
    LinearMCObjective,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.risk_measures import CVaR
from botorch.exceptions.errors import BotorchError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models import ModelListGP, MultiTaskGP, SingleTaskGP
from botorch.models.model import Model, ModelList
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.optim import optimize_acqf
from botorch.sampling.list_sampler import ListSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.stochastic_samplers import StochasticSampler
from gpytorch.kernels import MaternKernel
from gpytorch.settings import max_eager_kernel_size
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import (
    CalibratedModel,
    CalibratedModelList,
    CensoredDelayModel,
    LogCalibratedProbabilityOfFeasibility,
    QuantileRecalibrator,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition import noisy
from tests.botorch_tutorials import value_and_gradient
from tests.gps import DOUBLE, GaussianLaw, far_from_gaussian, make_data

NEI, NEHVI = (
    qLogCalibratedNoisyExpectedImprovement,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
)
X, Y, _ = make_data(10)
REF_POINT = [-0.5, -0.5]
PENDING = torch.tensor([[0.2, 0.8], [0.9, 0.1]], **DOUBLE)
NUM_SAMPLES = torch.Size([32])
LINEAR = LinearMCObjective(torch.tensor([0.5, 0.5], **DOUBLE))


def rough_gp(sign: float = 1.0, dtype: torch.dtype = torch.double, **kwargs: Any) -> SingleTaskGP:
    """A GP with a well-conditioned posterior covariance at its data, which needs no jitter."""
    targets = sign * Y + (0.0 if sign > 0 else X[:, :1])
    kernel = MaternKernel(nu=2.5, ard_num_dims=2)
    gp = SingleTaskGP(X.to(dtype), targets.to(dtype), covar_module=kernel, **kwargs)
    gp.covar_module.lengthscale = 0.2
    gp.likelihood.noise = 0.3
    return gp.to(dtype).eval()


def calibrated(
    sign: float = 1.0, dtype: torch.dtype = torch.double, **kwargs: Any
) -> CalibratedModel:
    """Such a model with a calibrator that changes a lot."""
    return CalibratedModel(rough_gp(sign, dtype), far_from_gaussian().to(dtype), **kwargs)


def recalibrated(sign: float = 1.0) -> CalibratedModel:
    """The same with 19 levels that vary from point to point."""
    model = CalibratedModel.from_history(rough_gp(sign), QuantileRecalibrator(lengthscale=0.5))
    model._may_warn = False
    return model


def transformed(dtype: torch.dtype = torch.double) -> CalibratedModel:
    """The same in other units."""
    gp = rough_gp(input_transform=Normalize(2), outcome_transform=Standardize(1), dtype=dtype)
    return CalibratedModel(gp, far_from_gaussian().to(dtype))


def of_one_task() -> CalibratedModel:
    """A multi-task model in the units of one task."""
    place = (torch.arange(10) % 2).unsqueeze(-1)
    gp = MultiTaskGP(
        torch.cat([X, place.to(X)], dim=-1),
        Y + place,
        task_feature=-1,
        output_tasks=[0],
        outcome_transform=StratifiedStandardize(2, torch.arange(2)),
    )
    gp.likelihood.noise = 0.3
    return CalibratedModel(gp.eval(), GaussianLaw())


SINGLE: dict[str, Any] = {
    "conformal": calibrated,
    "19 levels": recalibrated,
    "transforms": transformed,
    "objective's excess": lambda: calibrated(excess="objective"),
    "observation": lambda: calibrated(denoise=False),
    "no correction": lambda: CalibratedModel(rough_gp(), GaussianLaw()),
    "plain": rough_gp,
    "pending around": lambda: CensoredDelayModel(calibrated(), PENDING, censor_value=-1.0),
    "pending inside": lambda: CalibratedModel(
        CensoredDelayModel(rough_gp(), PENDING, censor_value=-1.0), far_from_gaussian()
    ),
    "plain, pending": lambda: CensoredDelayModel(rough_gp(), PENDING, censor_value=-1.0),
    "multi-task": of_one_task,
}
SEVERAL: dict[str, Any] = {
    "calibrated": lambda: CalibratedModelList(calibrated(), recalibrated(-1.0)),
    "with a plain one": lambda: CalibratedModelList(calibrated(), rough_gp(-1.0)),
    "plain": lambda: ModelListGP(rough_gp(), rough_gp(-1.0)),
}


def points(*batch: int, q: int, dtype: torch.dtype = torch.double) -> Tensor:
    generator = torch.Generator().manual_seed(33)
    return torch.rand(*batch, q, 2, generator=generator, **DOUBLE).to(dtype).requires_grad_()


def sampler(cls: type = SobolQMCNormalSampler) -> Any:
    return cls(NUM_SAMPLES, seed=7)


def with_and_without(cls: type, model: Model, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The same function with cached roots and without, to be evaluated by `compare`."""
    kwargs.setdefault("sampler", sampler())
    first, second = (
        cls(model, *args, prune_baseline=False, cache_root=root, **deepcopy(kwargs))
        for root in (True, False)
    )
    assert first._cache_root and not second._cache_root
    return first, second


def compare(cached: Any, uncached: Any, new: Tensor, rtol: float = 1e-9) -> Tensor:
    """Values and gradients agree, given the same base samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", BotorchWarning)  # no fallback
        value, gradient = value_and_gradient(cached, new)
        uncached.sampler = deepcopy(cached.sampler)
        other_value, other_gradient = value_and_gradient(uncached, new)
    assert value.dtype == new.dtype and value.isfinite().all() and (gradient != 0).any()
    assert_close(value, other_value, rtol=rtol, atol=rtol)
    assert_close(gradient, other_gradient, rtol=rtol, atol=rtol * float(gradient.abs().max()))
    return value


class TestImprovement:
    @pytest.mark.parametrize("kind", SINGLE)
    def test_cached_is_uncached(self, kind):
        for batch, q in (((4,), 1), ((2, 3), 3), ((), 3)):
            pair = with_and_without(NEI, SINGLE[kind](), X)
            assert compare(*pair, points(*batch, q=q)).shape == (batch or (1,))

    def test_other_samplers_and_numbers_of_points_in_turn(self):
        pair = with_and_without(NEI, calibrated(), X, sampler=sampler(cls=IIDNormalSampler))
        for number in (1, 3, 2, 1):
            compare(*pair, points(4, q=number))

    @pytest.mark.parametrize("incremental", [True, False])
    def test_pending_points(self, incremental):
        """Given at once or later, taken back, and again."""
        pending, new = points(2, q=1)[:, 0].detach() * 0.5, points(4, q=2)
        pair = with_and_without(NEI, calibrated(), X, incremental=incremental, X_pending=pending)
        before = compare(*pair, new)
        if incremental:
            assert pair[0].X_baseline.shape == (12, 2) and len(pair[0]._baseline_L[0]) == 12
        late = with_and_without(NEI, calibrated(), X, incremental=incremental)
        for function in late:
            function.set_X_pending(pending)
        assert late[0]._cache_root
        assert compare(*late, new).shape == before.shape
        for function in late:
            function.set_X_pending(None)
        compare(*late, new)
        assert late[0].X_baseline.shape == (10, 2)

    def test_more_points_than_gpytorch_evaluates_at_once(self):
        with max_eager_kernel_size(11):
            compare(*with_and_without(NEI, calibrated(), X), points(4, q=3))

    def test_posterior_transform(self):
        negation = ScalarizedPosteriorTransform(torch.tensor([-2.0], **DOUBLE), offset=1.0)
        pair = with_and_without(NEI, calibrated(), X, posterior_transform=negation)
        compare(*pair, points(4, q=2))

    @pytest.mark.parametrize("kind", SEVERAL)
    def test_objective_and_constraints(self, kind):
        kwargs = {
            "objective": LinearMCObjective(torch.tensor([1.0, 0.5], **DOUBLE)),
            "constraints": [lambda samples: samples[..., 1] - 0.4],
        }
        pair = with_and_without(NEI, SEVERAL[kind](), X, **kwargs)
        compare(*pair, points(4, q=2))

    def test_without_a_correction_it_is_botorch(self):
        """Values equal BoTorch's for the same base samples of the paths; there is no noise."""
        new = points(4, q=2)
        model = SINGLE["no correction"]()
        ours = NEI(model, X, sampler=sampler(), prune_baseline=False)
        value, gradient = value_and_gradient(ours, new)
        own = sampler()
        own.register_buffer("base_samples", ours.base_sampler.base_samples[..., 0].clone())
        theirs = qLogNoisyExpectedImprovement(rough_gp(), X, sampler=own, prune_baseline=False)
        theirs(new)
        theirs.sampler.base_samples = ours.sampler.base_samples[..., 0].clone()
        other_value, other_gradient = value_and_gradient(theirs, new)
        assert_close(value, other_value, rtol=1e-12, atol=1e-12)
        assert_close(gradient, other_gradient, rtol=1e-12, atol=1e-12)

    def test_of_a_plain_model_it_is_botorch(self):
        ours, theirs = (
            cls(rough_gp(), X, sampler=sampler(), prune_baseline=False)
            for cls in (NEI, qLogNoisyExpectedImprovement)
        )
        new = points(4, q=2)
        assert torch.equal(ours(new), theirs(new))

    def test_single_precision(self):
        single = calibrated(dtype=torch.float32)
        pair = with_and_without(NEI, single, X.float())
        value = compare(*pair, points(4, q=2, dtype=torch.float32), rtol=2e-3)
        double = with_and_without(NEI, calibrated(), X)[0]
        double(points(4, q=2))
        assert_close(value.double(), double(points(4, q=2)).detach(), rtol=2e-3, atol=2e-3)

    def test_fallback(self, monkeypatch):
        """Where the root cannot be extended, the joint covariance is factored."""
        cached, uncached = with_and_without(NEI, calibrated(), X)
        new = points(4, q=2)
        expected = compare(cached, uncached, new)

        def fail(*args: Any, **kwargs: Any) -> None:
            raise NotPSDError("no root")

        monkeypatch.setattr("botorch_calib.posteriors.calibrated.psd_safe_cholesky", fail)
        with pytest.warns(BotorchWarning, match="could not be extended"):
            value = cached(new)
        assert_close(value, expected, rtol=1e-9, atol=1e-9)

    def test_copies(self):
        function = NEI(calibrated(), X, sampler=sampler())
        new = points(4, q=2)
        value = function(new)
        for twin in (deepcopy(function), pickle.loads(pickle.dumps(function))):
            assert_close(twin(new), value, rtol=1e-10, atol=1e-10)

    def test_what_has_no_root(self):
        skewed = SingleTaskGP(X, Y.exp(), outcome_transform=Log()).eval()
        model = CalibratedModelList(calibrated(), skewed)
        assert not noisy.keeps_roots(model) and noisy.keeps_roots(SEVERAL["calibrated"]())
        objective = GenericMCObjective(lambda samples, X: samples[..., 0])
        kwargs = {"objective": objective, "sampler": sampler(), "prune_baseline": False}
        with pytest.warns(BotorchWarning, match="`cache_root` needs"):
            function = NEI(model, X, cache_root=True, **kwargs)
        assert not function._cache_root
        assert not NEI(model, X, **kwargs)._cache_root  # by default without a word
        assert function(points(4, q=2)).shape == (4,)

    @pytest.mark.parametrize(
        "other", [StochasticSampler(NUM_SAMPLES), SobolQMCNormalSampler(torch.Size([4, 8]), seed=7)]
    )
    def test_samplers_whose_numbers_fit_no_root(self, other: Any) -> None:
        """BoTorch extends only base samples with one dimension of samples."""
        function = NEI(calibrated(), X, sampler=deepcopy(other))
        assert not function._cache_root
        assert function(points(4, q=2)).shape == (4,)
        with pytest.warns(BotorchWarning, match="whose `sample_shape` has one dimension"):
            NEI(calibrated(), X, sampler=deepcopy(other), cache_root=True)

    @pytest.mark.parametrize("cls", [NEI, NEHVI])
    def test_batches_of_several_shapes_in_turn(self, cls: type) -> None:
        """The numbers are those of the first batch, whatever its dimensions."""
        model: Any = calibrated(denoise=False)
        extra: dict[str, Any] = {}
        if cls is NEHVI:
            model, extra = CalibratedModelList(model, calibrated(-1.0)), {"ref_point": REF_POINT}
        function = cls(model, X_baseline=X, sampler=sampler(), **extra)
        new = points(6, q=2).detach()
        expected = function(new)
        for shape in ((2, 3), (6,), (1, 6)):
            value = function(new.reshape(*shape, 2, 2))
            assert_close(value, expected.reshape(shape), rtol=1e-10, atol=1e-10)
        assert_close(function(new[0]), expected[:1], rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("cls", [NEI, NEHVI])
    def test_points_that_are_not_finite(self, cls):
        """They would come up in a factorisation that does not converge."""
        model, extra = calibrated(), {}
        if cls is NEHVI:
            model, extra = CalibratedModelList(model, calibrated(-1.0)), {"ref_point": REF_POINT}
        bad = torch.full((1, 2), torch.nan, **DOUBLE)
        with pytest.raises(InputDataError, match="`X_baseline` contains NaN"):
            cls(model, X_baseline=torch.cat([X, bad]), **extra)
        with pytest.raises(InputDataError, match="`X_pending` contains NaN"):
            cls(model, X_baseline=X, X_pending=bad, **extra)
        function = cls(model, X_baseline=X, **extra)
        with pytest.raises(InputDataError, match="`X_pending` contains NaN"):
            function.set_X_pending(bad)
        assert function(points(2, q=1)).isfinite().all()

    def test_no_warning_of_botorch(self, recwarn):
        function = NEI(calibrated(), X, cache_root=True)
        function.set_X_pending(X[:1] + 0.05)
        function(points(2, q=1))
        assert not [w for w in recwarn if "cache_root" in str(w.message)]


class TestHypervolume:
    @pytest.mark.parametrize("kind", SEVERAL)
    def test_cached_is_uncached(self, kind):
        pair = with_and_without(NEHVI, SEVERAL[kind](), REF_POINT, X)
        for q in (1, 3):
            compare(*pair, points(4, q=q))

    @pytest.mark.parametrize(("incremental", "max_iep"), [(True, 0), (False, 0), (True, 2)])
    def test_pending_points(self, incremental, max_iep):
        pending, new = points(2, q=1)[:, 0].detach() * 0.5, points(4, q=1)
        pair = with_and_without(
            NEHVI,
            SEVERAL["calibrated"](),
            REF_POINT,
            X,
            incremental_nehvi=incremental,
            max_iep=max_iep,
        )
        compare(*pair, new)
        for function in pair:
            function.set_X_pending(pending)
        cached, uncached = pair
        value, gradient = value_and_gradient(cached, new)
        assert len(cached._baseline_L[0]) == (12 if max_iep == 0 else 10)
        for ours, theirs in zip((value, gradient), value_and_gradient(uncached, new), strict=True):
            assert_close(ours, theirs, rtol=1e-8, atol=1e-8)

    def test_objective_and_constraints(self):
        model = CalibratedModelList(calibrated(), rough_gp(-1.0), recalibrated(-1.0))
        pair = with_and_without(
            NEHVI,
            model,
            REF_POINT,
            X,
            objective=WeightedMCMultiOutputObjective(
                torch.tensor([1.0, 2.0], **DOUBLE), outcomes=[0, 1]
            ),
            constraints=[lambda samples: samples[..., 2] - 0.5],
        )
        compare(*pair, points(4, q=2))

    def test_copies_and_gradients_of_backward(self):
        """The cells, which are computed once, have no graph."""
        gps = (rough_gp(sign, outcome_transform=None) for sign in (1.0, -1.0))
        model = CalibratedModelList(*(CalibratedModel(gp, far_from_gaussian()) for gp in gps))
        function, new = NEHVI(model, REF_POINT, X, sampler=sampler()), points(q=2)
        _, gradient = value_and_gradient(function, new)
        for each in (function, deepcopy(function)):
            new.grad = None
            each(new).sum().backward()
            assert_close(new.grad, gradient, rtol=1e-10, atol=1e-10)


PERTURBATIONS = 0.1 * torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]], **DOUBLE)
ENVIRONMENTS = torch.tensor([[0.1], [0.4], [0.8]], **DOUBLE)
RISKY: dict[str, Any] = {
    # The second column of the inputs is a decision, or an environmental variable.
    "perturbed inputs": (lambda: InputPerturbation(PERTURBATIONS).eval(), 2),
    "environmental variables": (lambda: AppendFeatures(ENVIRONMENTS).eval(), 1),
}


@pytest.mark.parametrize("kind", RISKY)
class TestRisk:
    """Each point stands for three, and a risk measure over these is the objective."""

    def setting(self, kind: str) -> tuple[CalibratedModel, Tensor, Tensor, CVaR]:
        transform, dim = RISKY[kind]
        model = CalibratedModel(rough_gp(input_transform=transform()), far_from_gaussian())
        new = points(4, q=2)[..., :dim].detach().requires_grad_()
        return model, X[:, :dim], new, CVaR(alpha=0.7, n_w=3)

    def test_against_joint_samples(self, kind):
        model, baseline, new, objective = self.setting(kind)
        function = NEI(
            model, baseline, sampler=sampler(), objective=objective, prune_baseline=False
        )
        value, gradient = value_and_gradient(function, new)
        assert value.shape == (4,) and gradient.isfinite().all() and (gradient != 0).any()
        samples, values = function._get_samples_and_objectives(new)
        together = torch.cat([baseline.expand(4, *baseline.shape), new], dim=-2)
        joint = function.sampler(model.posterior(together))
        assert_close(samples, joint[..., 30:, :], rtol=1e-9, atol=1e-9)
        risk = objective(joint)
        assert_close(values, risk[..., 10:], rtol=1e-9, atol=1e-9)
        assert_close(function.baseline_obj, risk[:, 0, :10], rtol=1e-9, atol=1e-9)


class TestArguments:
    def test_a_list_of_botorch(self) -> None:
        """Its outcomes are drawn apart; the remedy takes one sampler."""
        apart = ModelList(calibrated(), calibrated(-1.0))
        for build in (
            lambda model: NEI(model, X, objective=LINEAR, sampler=sampler()),
            lambda model: NEHVI(model, REF_POINT, X, sampler=sampler()),
        ):
            with pytest.raises(UnsupportedError, match=r"`CalibratedModelList\(\*model.models\)`"):
                build(apart)
            assert build(CalibratedModelList(*apart.models))(points(2, q=1)).isfinite().all()
        plain = ModelList(rough_gp(), rough_gp(-1.0))  # of which BoTorch keeps no root either
        assert NEI(plain, X, objective=LINEAR)(points(2, q=1)).isfinite().all()

    def test_what_is_no_point_is_named(self) -> None:
        model: Any = SEVERAL["calibrated"]()
        bad: list[Any] = [None, -1.0, ["a"], [-1.0]]
        for ref_point in bad:
            with pytest.raises(BotorchError, match="`ref_point"):
                NEHVI(model, ref_point, X)
        bad = [None, [0.5], X[0]]
        for baseline in bad:
            with pytest.raises(BotorchError, match="`X_baseline"):
                NEHVI(model, REF_POINT, baseline)

    def test_a_sampler_for_each_outcome(self) -> None:
        """Without the root, but with the value."""
        model, new = SEVERAL["calibrated"](), points(2, q=1)
        each = ListSampler(*(SobolQMCNormalSampler(NUM_SAMPLES, seed=i) for i in range(2)))
        function = NEHVI(model, REF_POINT, X, sampler=each)
        assert not function._cache_root
        theirs = qLogNoisyExpectedHypervolumeImprovement(
            ModelList(*model.models), REF_POINT, X, sampler=deepcopy(each)
        )
        assert_close(function(new), theirs(new))

    def test_a_transform_of_the_posterior(self) -> None:
        """Of one of the outcomes, and of all."""
        model = CalibratedModelList(calibrated(), rough_gp(-1.0))
        sole, both = (
            ScalarizedPosteriorTransform(torch.tensor(weights, **DOUBLE))
            for weights in ([2.0, 0.0], [0.5, 0.5])
        )
        compare(*with_and_without(NEI, model, X, posterior_transform=sole), points(4, q=2))
        with pytest.raises(UnsupportedError, match="`posterior_transform` .*LinearMCObjective"):
            NEI(model, X, posterior_transform=both)

    def test_pending_points_that_are_not_cached(self) -> None:
        """The option fails in BoTorch; the remedy evaluates them with the new points."""
        model, new = SEVERAL["calibrated"](), points(4, q=1)
        with pytest.raises(InputDataError, match="`cache_pending=False` .*`max_iep=n`"):
            NEHVI(model, REF_POINT, X, cache_pending=False)
        pending = NEHVI(model, REF_POINT, X, X_pending=PENDING, max_iep=2, sampler=sampler())
        together = torch.cat([new, PENDING.expand(4, 2, 2)], dim=-2)
        expected = NEHVI(model, REF_POINT, X, sampler=sampler())(together)
        assert_close(pending(new), expected)


# ------------------------------------------------------------ others of several outcomes


def test_samples_estimate_the_closed_form() -> None:
    """4096 samples estimate the probability that two calibrated outcomes are within limits.

    For independent samples the standard error would be at most 0.008.
    """
    model, point = SEVERAL["with a plain one"](), points(2, q=1).detach()
    exact = LogCalibratedProbabilityOfFeasibility(model, {0: (None, 0.3), 1: (-0.5, None)})
    samples = SobolQMCNormalSampler(torch.Size([4096]), seed=0)(model.posterior(point)).squeeze(-2)
    share = ((samples[..., 0] <= 0.3) & (samples[..., 1] >= -0.5)).double().mean(dim=0)
    assert_close(share, exact(point).exp(), rtol=0.0, atol=0.01)


@pytest.mark.filterwarnings("ignore:Non-strict enforcement")  # of an outcome without points
@pytest.mark.parametrize(
    ("use_posterior_mean", "decoupled"), [(True, False), (False, False), (True, True)]
)
def test_knowledge_gradient_of_the_hypervolume(use_posterior_mean: bool, decoupled: bool) -> None:
    """Fantasies of all outcomes, and models that are conditioned on them."""
    mask: Any = torch.tensor([[True, False]]) if decoupled else None
    function = qHypervolumeKnowledgeGradient(
        SEVERAL["with a plain one"](),
        torch.tensor(REF_POINT, **DOUBLE),
        num_fantasies=2,
        num_pareto=3,
        use_posterior_mean=use_posterior_mean,
        X_evaluation_mask=mask,
        X_pending=None if decoupled else PENDING[:1],
    )
    value, gradient = value_and_gradient(function, points(2, q=7))
    assert value.isfinite().all() and gradient.isfinite().all() and (gradient != 0).any()


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_search() -> None:
    """With raw samples around the best points, one candidate after the other."""
    function = NEHVI(SEVERAL["with a plain one"](), REF_POINT, X)
    options = {"sample_around_best": True, "maxiter": 5}
    search: dict[str, Any] = {"num_restarts": 1, "raw_samples": 8, "options": options}
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], **DOUBLE)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Failed to")
        candidates, _ = optimize_acqf(function, bounds, q=2, sequential=True, **search)
    assert candidates.shape == (2, 2)


@pytest.mark.filterwarnings("ignore:A not p.d.", "ignore:When all training points")
@pytest.mark.parametrize("kind", [qLogNoisyExpectedImprovement, qLogNParEGO])
def test_functions_of_botorch_where_nothing_is_feasible(kind: Any) -> None:
    """Without a root they ask in each evaluation how poor that is, and have the same answer."""
    settings = {"X_baseline": X, "constraints": [lambda samples: samples[..., 1].abs()]}
    if kind is qLogNParEGO:
        settings["scalarization_weights"] = torch.tensor([0.5, 0.5], **DOUBLE)
    else:
        settings["objective"] = LINEAR
    function = kind(CalibratedModelList(calibrated(), calibrated(-1.0)), **settings)
    first = function(PENDING.unsqueeze(-2))
    assert torch.equal(function(PENDING.unsqueeze(-2)), first)


def test_a_botorch_without_its_private_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(noisy.utils, noisy._NAME)
    runpy.run_path(noisy.__file__)
    assert not hasattr(noisy.utils, noisy._NAME)

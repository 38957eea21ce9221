"""Robust acquisition functions: schedules of radii, and worst-case distributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, CalibratedUpperConfidenceBound, CensoredDelayModel
from botorch_calib.acquisition.robust import (
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    RadiusSchedule,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
    join_contexts,
)
from tests.gps import far_from_gaussian, make_gp, make_variational
from tests.random_numbers import uniform

DOUBLE: dict[str, Any] = {"dtype": torch.double}
BETA, SCHEDULE = 2.25, RadiusSchedule(0.3)
NUM = 12  # observations of `make_gp`
CONTEXTS = torch.tensor([[0.1], [0.35], [0.5], [0.8], [0.95]], **DOUBLE)
WEIGHTS = torch.tensor([0.3, 0.1, 0.2, 0.25, 0.15], **DOUBLE)
CENTRE = ContextDistribution(CONTEXTS, WEIGHTS)
PENDING = torch.tensor([[0.2, 0.4], [0.7, 0.9]], **DOUBLE)
SETS: dict[str, AmbiguitySet] = {
    "wasserstein": WassersteinBall(0.1),
    "total variation": TotalVariationBall(0.2),
    "chi squared": ChiSquaredBall(0.2),
    "kl": KLBall(0.2),
    "cvar": ConditionalValueAtRisk(0.3),
    "worst": WorstCase(),
}


def points(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(*shape, 1, 1, **DOUBLE, generator=generator)


def censored(model: Any = None) -> CensoredDelayModel:
    return CensoredDelayModel(model or make_gp(), PENDING, censor_value=-2.0)


def calibrated(model: Any = None) -> CalibratedModel:
    return CalibratedModel(model or make_gp(), far_from_gaussian())


def robust(
    ambiguity: AmbiguitySet,
    model: Any = None,
    contexts: ContextDistribution = CENTRE,
    **kwargs: Any,
) -> RobustUpperConfidenceBound:
    return RobustUpperConfidenceBound(model or make_gp(), BETA, ambiguity, contexts, **kwargs)


def any_acquisition(ambiguity: AmbiguitySet, model: Any = None) -> RobustAcquisition:
    quantile = CalibratedUpperConfidenceBound(model or calibrated(), level=0.8)
    return RobustAcquisition(quantile, ambiguity, CENTRE)


class TestSchedules:
    @pytest.mark.parametrize(
        "make",
        [
            lambda radius: WassersteinBall(radius, method="lipschitz"),
            KLBall,
        ],
    )
    def test_is_the_ball_with_the_number(self, make):
        X, ball = points(3), make(SCHEDULE)
        for build in (robust, any_acquisition):
            acqf = build(ball)
            assert acqf.ambiguity.radius == SCHEDULE(NUM)
            assert torch.equal(acqf(X), build(make(SCHEDULE(NUM)))(X))
            assert ball.is_scheduled  # for the next model

    @pytest.mark.parametrize(
        "model",
        [
            calibrated,
            censored,
            lambda: calibrated(censored()),
            lambda: censored(calibrated()),
            lambda: censored().with_pending(PENDING + 0.05),
        ],
    )
    def test_pending_points_are_no_observations(self, model):
        for acqf in (
            robust(TotalVariationBall(SCHEDULE), model()),
            RobustAcquisition(
                UpperConfidenceBound(model(), BETA), TotalVariationBall(SCHEDULE), CONTEXTS
            ),
            WassersteinUpperConfidenceBound(model(), BETA, SCHEDULE, CONTEXTS),
        ):
            assert acqf.ambiguity.radius == SCHEDULE(NUM)

    def test_arrived_values_are(self):
        model = censored()
        model.observe(PENDING[:1], torch.zeros(1, 1, **DOUBLE))
        assert robust(KLBall(SCHEDULE), model).ambiguity.radius == SCHEDULE(NUM + 1)

    def test_is_resolved_once(self):
        """What the model learns later makes no other acquisition function of this one."""
        gp, asked = make_gp(), []

        def schedule(t: int) -> float:
            asked.append(t)
            return 0.3

        acqf = robust(TotalVariationBall(schedule), gp)
        gp.set_train_data(gp.train_inputs[0][:8], gp.train_targets[:8], strict=False)
        acqf(points(3))
        assert asked == [NUM]

    def test_models_that_do_not_tell(self):
        class Plain(AcquisitionFunction):
            def __init__(self) -> None:
                torch.nn.Module.__init__(self)

            def forward(self, X: Tensor) -> Tensor:
                return X.sum(dim=(-1, -2))

        with pytest.raises(UnsupportedError, match=r"without a model.*`ambiguity.at\(t\)`"):
            RobustAcquisition(Plain(), TotalVariationBall(SCHEDULE), CONTEXTS)
        RobustAcquisition(Plain(), TotalVariationBall(0.1), CONTEXTS)
        with pytest.raises(UnsupportedError, match="SingleTaskVariationalGP"):
            robust(TotalVariationBall(SCHEDULE), make_variational())
        robust(TotalVariationBall(SCHEDULE).at(3), make_variational())

    def test_a_schedule_set_later_is_not_evaluated(self):
        acqf = robust(TotalVariationBall(0.1))
        acqf.ambiguity = TotalVariationBall(SCHEDULE)
        with pytest.raises(UnsupportedError, match=r"\.at\(t\)"):
            acqf(points(3))


def bounds_at(x: Tensor, model: SingleTaskGP, sign: float = 1.0) -> Tensor:
    """The confidence bound at one decision and all contexts, from the model's posterior."""
    values = []
    for c in CONTEXTS:
        posterior = model.posterior(torch.cat([x, c]).view(1, 1, -1))
        values.append(sign * posterior.mean + BETA**0.5 * posterior.variance.sqrt())
    return torch.stack(values).flatten().detach()


class TestWorstCaseWeights:
    @pytest.mark.parametrize("maximize", [True, False])
    def test_by_loops(self, maximize):
        model, X = make_gp(), points(3)
        sign = 1.0 if maximize else -1.0
        values = torch.stack([bounds_at(x[0], model, sign) for x in X])
        for ambiguity in SETS.values():
            acqf = robust(ambiguity, model, maximize=maximize)
            # The closed form agrees with the posterior to 1e-8. The weights of an interior-point
            # method have an error of about the root of the error of its value.
            wanted = ambiguity.worst_case_weights(values, CENTRE)
            assert_close(acqf.worst_case_weights(X), wanted, rtol=0, atol=1e-4)

    @pytest.mark.parametrize(
        ("name", "build"),
        [*((name, robust) for name in SETS), ("kl", any_acquisition), ("worst", any_acquisition)],
    )
    def test_value_is_the_expectation_under_them(self, name, build):
        acqf, X = build(SETS[name]), points(2, 3).requires_grad_()
        weights = acqf.worst_case_weights(X)
        assert weights.shape == (2, 3, 5) and not weights.requires_grad
        assert (weights >= 0).all()
        assert_close(weights.sum(dim=-1), torch.ones(2, 3, **DOUBLE), rtol=0, atol=1e-12)
        pairs = join_contexts(X.detach(), CONTEXTS).unsqueeze(-2)  # 2 x 3 x 5 x 1 x 2
        whole = getattr(acqf, "acquisition", None) or UpperConfidenceBound(acqf.model, BETA)
        values = whole(pairs.view(-1, 1, 2)).view(2, 3, 5)
        assert_close((weights * values).sum(dim=-1), acqf(X), rtol=1e-6, atol=1e-6)
        # Without a graph, but others are not kept from one.
        assert acqf(X).requires_grad
        one = torch.stack([acqf.worst_case_weights(x) for x in X.view(-1, 1, 1, 1)])
        assert_close(one.view(2, 3, 5), weights, rtol=0, atol=1e-6)

    def test_two_columns_of_decisions(self):
        generator = torch.Generator().manual_seed(0)
        X, decisions = (uniform(*shape, generator=generator) for shape in ((12, 3), (4, 1, 2)))
        Y = (6 * X).sin().sum(dim=-1, keepdim=True)
        gp = SingleTaskGP(X, Y, outcome_transform=Standardize(1)).eval()
        worst = [bounds_at(x[0], gp).argmin() for x in decisions]
        expected = torch.eye(5, **DOUBLE)[torch.stack(worst)]
        assert torch.equal(robust(WorstCase(), gp).worst_case_weights(decisions), expected)

    def test_shapes(self):
        acqf = robust(TotalVariationBall(0.2))
        assert acqf.worst_case_weights(points()).shape == (1, 5)
        assert acqf.worst_case_weights(points(0)).shape == (0, 5)
        assert acqf.worst_case_weights(points(2, 1, 3)).shape == (2, 1, 3, 5)
        with pytest.raises(AssertionError, match="q=1"):
            acqf.worst_case_weights(torch.zeros(4, 2, 1, **DOUBLE))
        with pytest.raises(BotorchTensorDimensionError, match="columns of decisions"):
            acqf.worst_case_weights(torch.zeros(4, 1, 2, **DOUBLE))

    def test_single_precision(self):
        expected = robust(WorstCase()).worst_case_weights(points(3))
        acqf = robust(WorstCase(), make_gp(dtype=torch.float32))
        found = acqf.worst_case_weights(points(3).float())
        assert found.dtype == torch.float32 and torch.equal(found.double(), expected)

    def test_columns_are_the_merged_atoms_and_candidates(self):
        centre = ContextDistribution.empirical(CONTEXTS[[1, 0, 1]]).with_candidates(CONTEXTS)
        acqf = RobustUpperConfidenceBound(make_gp(), BETA, WorstCase(), centre)
        weights = acqf.worst_case_weights(points(6))
        assert weights.shape == (6, 5)
        expected = [bounds_at(x[0], make_gp()).argmin() for x in points(6)]
        assert_close(
            weights @ acqf.contexts.points, CONTEXTS[torch.stack(expected)], rtol=0, atol=1e-12
        )

    def test_bounds_have_no_distribution(self):
        wdrbo = WassersteinUpperConfidenceBound(make_gp(), BETA, 0.1, CONTEXTS)
        for acqf in (robust(WassersteinBall(0.1, method="lipschitz")), wdrbo):
            with pytest.raises(UnsupportedError, match="needs gradients"):
                acqf.worst_case_weights(points(3))

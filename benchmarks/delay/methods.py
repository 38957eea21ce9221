"""The methods of suite `delay`: one strategy, with settings.

All methods use the same Gaussian process of the values observed so far. They differ in the
treatment of queries without values: censor them (GP-UCB-SDF, GP-TS-SDF), ignore them (GP-UCB,
asy-TS), hallucinate them at the posterior mean (GP-BUCB, GP-BTS), or pass them to one of BoTorch's
acquisition functions as ``X_pending``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement, qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.sampling import SobolQMCNormalSampler
from torch import Tensor

from benchmarks.delay.replicate import DelayedTask
from benchmarks.framework.strategies import optimize
from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel

# The paper's B_y. On other samples of a GP, the values 0, 0.1, 0.3 and 1 did not differ by more
# than chance.
FEEDBACK_BOUND = 1.0

ACQUISITIONS = ("ucb", "ts", "qlogei", "qucb")


@dataclass(frozen=True)
class DelayedAcquisition:
    """A method: its acquisition function, and its treatment of queries without values.

    Args:
        name: The name, unique within a suite.
        acquisition: ``"ucb"`` or ``"ts"`` of this package, ``"qlogei"`` or ``"qucb"`` of BoTorch
            with ``X_pending``.
        imputation: See `CensoredDelayModel`. BoTorch's acquisition functions use the model of
            the observed values.
        window: The queries that widen the confidence region: see
            `DelayedUpperConfidenceBound.from_ledger`.
        feedback_bound: The factor of the sum of standard deviations at these queries, in units
            of the standard deviation of the observed outcomes.
        censor_at: The replacement for a censored value: the ``"least"`` value of the objective,
            as in the paper, or the ``"worst"`` value observed so far.
        beta: The multiplier of the standard deviation (not its square).
        num_samples: Number of base samples of BoTorch's acquisition functions.
        num_restarts: Number of starts of the maximisation on a continuous domain.
        raw_samples: Number of random points from which the starts are chosen.
    """

    name: str
    acquisition: str = "ucb"
    imputation: str = "none"
    window: str | None = None
    feedback_bound: float = 0.0
    censor_at: str = "least"
    beta: float = 1.0
    num_samples: int = 128
    num_restarts: int = 4
    raw_samples: int = 256

    def __post_init__(self) -> None:
        if self.acquisition not in ACQUISITIONS:
            raise ValueError(
                f"`acquisition` must be one of {ACQUISITIONS}, got {self.acquisition!r}."
            )
        if self.censor_at not in ("least", "worst"):
            raise ValueError(f"`censor_at` must be 'least' or 'worst', got {self.censor_at!r}.")

    def start(self, task: DelayedTask, bounds: Tensor) -> DelayedAcquisitionStrategy:
        """The strategy of one replicate on inputs in ``bounds``, ``2 x d``."""
        return DelayedAcquisitionStrategy(self, task, bounds)


@dataclass
class DelayedAcquisitionStrategy:
    """The strategy of a `DelayedAcquisition`.

    Attributes:
        gp: The Gaussian process of the last fit, without censored queries.
    """

    settings: DelayedAcquisition
    task: DelayedTask
    bounds: Tensor
    gp: SingleTaskGP | None = field(default=None, init=False, repr=False)

    def fit(self, ledger: FeedbackLedger, step: int) -> Model:
        def fit_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
            self.gp = self.task.surrogate(X, Y, self.bounds, step, self.gp)
            return self.gp

        if self.settings.censor_at == "worst":
            X, Y = ledger.to_observations()
            return CensoredDelayModel(fit_gp(X, Y), ledger.incomplete(), Y.min().item())
        return CensoredDelayModel.from_ledger(
            ledger, fit_gp, imputation=self.settings.imputation, hyperparameters="observed"
        )

    def propose(self, model: Model, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        settings = self.settings
        acquisition = self.acquisition_function(model, ledger, choices)
        if choices is None:
            return optimize(
                acquisition, self.bounds, settings.num_restarts, settings.raw_samples
            ).squeeze(0)
        with torch.no_grad():
            return choices[acquisition(choices.unsqueeze(-2)).argmax()]

    def acquisition_function(
        self, model: Any, ledger: FeedbackLedger, choices: Tensor | None
    ) -> AcquisitionFunction:
        """The acquisition function of this round."""
        settings = self.settings
        if settings.acquisition in ("qlogei", "qucb"):
            return self._of_botorch(model.model, ledger)
        shared: dict[str, Any] = {
            "window": settings.window,
            "beta": settings.beta**2,
            "feedback_bound": settings.feedback_bound / self._outcome_scale(),
        }
        if settings.acquisition == "ucb":
            return DelayedUpperConfidenceBound.from_ledger(model, ledger, **shared)
        # The global generator is seeded for this round.
        seed = int(torch.randint(2**31, (1,)))
        return DelayedThompsonSampling.from_ledger(
            model, ledger, choices=choices, seed=seed, **shared
        )

    def _of_botorch(self, model: Model, ledger: FeedbackLedger) -> AcquisitionFunction:
        """BoTorch's acquisition function, with pending queries as ``X_pending``."""
        X_pending = ledger.pending()
        sampler = SobolQMCNormalSampler(
            torch.Size([self.settings.num_samples]), seed=int(torch.randint(2**31, (1,)))
        )
        if self.settings.acquisition == "qucb":
            return qUpperConfidenceBound(
                model, beta=self.settings.beta**2, sampler=sampler, X_pending=X_pending
            )
        _, Y = ledger.to_observations()
        return qLogExpectedImprovement(model, best_f=Y.max(), sampler=sampler, X_pending=X_pending)

    def _outcome_scale(self) -> float:
        """The standard deviation by which the process standardises outcomes; 1 if it does not."""
        if self.gp is None:
            raise ValueError("The acquisition function needs a fitted model.")
        standardize: Any = getattr(self.gp, "outcome_transform", None)
        return 1.0 if standardize is None else standardize.stdvs.item()


def sdf(name: str, acquisition: str, **changes: Any) -> DelayedAcquisition:
    """GP-UCB-SDF or GP-TS-SDF with the settings of the suite, except for ``changes``."""
    settings: dict[str, Any] = {
        "imputation": "censor",
        "window": "pending",
        "feedback_bound": FEEDBACK_BOUND,
    }
    return DelayedAcquisition(name, acquisition, **{**settings, **changes})


def compared() -> tuple[DelayedAcquisition, ...]:
    return (
        sdf("ucb_sdf", "ucb"),
        sdf("ucb_sdf_worst", "ucb", censor_at="worst"),
        DelayedAcquisition("ucb"),
        DelayedAcquisition("ucb_hallucinate", imputation="hallucinate"),
        sdf("ts_sdf", "ts"),
        DelayedAcquisition("ts", "ts"),
        DelayedAcquisition("ts_hallucinate", "ts", imputation="hallucinate"),
        DelayedAcquisition("qlogei_pending", "qlogei"),
        DelayedAcquisition("qucb_pending", "qucb"),
    )


def default() -> DelayedAcquisition:
    """The default strategy of `DelayAwareProposer` for up to 20 pending queries."""
    return DelayedAcquisition("ucb_default", imputation="hallucinate", beta=2.0)

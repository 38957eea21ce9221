"""`OutcomeProbability`: the calibrated probability of a yes or no outcome, as a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.likelihoods.pairwise import PairwiseProbitLikelihood
from botorch.models.model import Model
from botorch.models.pairwise_gp import PairwiseGP
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor

from botorch_calib.calibration.probabilities import ProbabilityCalibrator
from botorch_calib.models.requirements import check_pairs


class OutcomeProbability(DeterministicModel):
    """Probability that an evaluation succeeds, that a point is feasible or preferred, kept true.

    Its value at a point is the calibrated probability itself, without uncertainty. So it stands
    beside the model of an objective in a `CalibratedModelList`, and
    ``constraints=[lambda Y: 0.9 - Y[..., 1]]`` of a Monte Carlo acquisition function asks for nine
    successes in ten.

    The probabilities of observed outcomes are kept true over all rounds together, whatever the
    classifier (see `ProbabilityCalibrator`); nothing is promised about a single point.

    Args:
        probability: Maps points ``... x d`` to the stated probabilities, ``...``.
        calibrator: Shared, not copied, with what it has learned.

    Example:
        >>> feasible = OutcomeProbability.of_classifier(gp, ProbabilityCalibrator())
        >>> feasible.observe(X_new, happened)  # before the classifier is refitted
        >>> model = CalibratedModelList(objective, feasible)
    """

    def __init__(
        self, probability: Callable[[Tensor], Tensor], calibrator: ProbabilityCalibrator
    ) -> None:
        super().__init__()
        if isinstance(probability, Model) or not callable(probability):
            raise UnsupportedError(
                "`probability` must be a function of points, got "
                f"{type(probability).__name__}: of a model take `of_classifier` or `of_preference`."
            )
        if not isinstance(calibrator, ProbabilityCalibrator):
            raise UnsupportedError(
                f"`calibrator` must be a ProbabilityCalibrator, got {type(calibrator).__name__}."
            )
        self._num_outputs = 1
        self.probability = probability
        self.calibrator = calibrator

    @classmethod
    def of_classifier(cls, model: Model, calibrator: ProbabilityCalibrator) -> Self:
        """The probability ``P(b = 1)`` by a Gaussian process with a ``BernoulliLikelihood``."""
        _check_likelihood(model, BernoulliLikelihood)
        return cls(partial(_probability_of_yes, model), calibrator)

    @classmethod
    def of_preference(
        cls, model: PairwiseGP, reference: Tensor, calibrator: ProbabilityCalibrator
    ) -> Self:
        """The probability by a ``PairwiseGP`` that a point is preferred to a reference, ``d``."""
        _check_likelihood(model, PairwiseProbitLikelihood)
        return cls(partial(_probability_of_preference, model, reference), calibrator)

    def forward(self, X: Tensor) -> Tensor:
        """Calibrated probabilities at ``batch_shape x q x d``, ``batch_shape x q x 1``."""
        probability: Tensor = self.calibrator(self._stated(X))
        return probability.unsqueeze(-1)

    def _stated(self, X: Tensor) -> Tensor:
        stated = self.probability(X)
        if stated.shape != X.shape[:-1]:
            raise BotorchTensorDimensionError(
                f"`probability` must give one number for each point, of shape "
                f"{tuple(X.shape[:-1])}, got {tuple(stated.shape)}."
            )
        return stated

    @torch.no_grad()
    def observe(self, X: Tensor, happened: Tensor) -> None:
        """Learn from outcomes at ``n x d``, in order, with the classifier that has seen none.

        ``happened``, ``n x 1``, is 1 or True where the outcome is yes, else 0 or False.
        """
        check_pairs(X, happened, name="happened")
        self.calibrator.update(self._stated(X), happened.squeeze(-1).to(X))


def _check_likelihood(model: Any, kind: type) -> None:
    if not isinstance(getattr(model, "likelihood", None), kind):
        raise UnsupportedError(
            f"{type(model).__name__} has no {kind.__name__}: give OutcomeProbability a function "
            "that computes the probability from points."
        )


# Functions of the module, with which a model can be pickled


def _probability_of_yes(model: Model, X: Tensor) -> Tensor:
    posterior: Any = model.posterior(X.unsqueeze(-2))
    score = posterior.mean / (1.0 + posterior.variance).sqrt()
    return torch.special.ndtr(score).squeeze(-1).squeeze(-1)


def _probability_of_preference(model: Model, reference: Tensor, X: Tensor) -> Tensor:
    pairs = torch.stack([X, reference.to(X).expand_as(X)], dim=-2)
    posterior: Any = model.posterior(pairs)
    normal = posterior.distribution
    covariance = normal.covariance_matrix
    difference = normal.mean[..., 0] - normal.mean[..., 1]
    shared = covariance[..., 0, 1] + covariance[..., 1, 0]
    variance = covariance.diagonal(dim1=-2, dim2=-1).sum(dim=-1) - shared
    # Each utility is observed with a variance of 1.
    return torch.special.ndtr(difference / (2.0 + variance.clamp(min=0.0)).sqrt())

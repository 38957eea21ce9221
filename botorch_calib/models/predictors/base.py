"""`Predictor`: what a calibrated model asks of its base model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import Posterior
from torch import Tensor

from botorch_calib.calibration import Calibrator
from botorch_calib.models.inspection import observed_process, predicting_process
from botorch_calib.posteriors import StatedPosterior


class Correction(NamedTuple):
    """How a calibrated model corrects what its base model predicts; see `CalibratedPosterior`."""

    calibrator: Calibrator
    denoise: bool = True  # whether the posterior is of the objective, not of an observation
    excess: str = "noise"


class Predictor(ABC):
    """Predictions of one kind of base model.

    Calibrators see an observation ``y`` at ``x`` by its normal score ``z = Phi^-1(F_x(y))``, with
    ``F_x`` the base model's predictive distribution of ``y``: for a Gaussian one the standardised
    residual. Scores are invariant under increasing maps of ``y``.

    Args:
        model: The base model, around which layers of pending points may stand. Observations are
            scored by the part that has seen observed data alone (``observed``), and posteriors are
            those of the part that predicts (``predicting``).
    """

    #: Whether it tells the objective from the noise of an observation.
    states_objective = True
    #: Whether samples of the posterior have a dimension of members, as BoTorch's ensembles' have.
    is_ensemble = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.observed: Any = observed_process(model)
        self.predicting: Any = predicting_process(model)

    @property
    def is_process(self) -> bool:
        """Whether the base model is a single Gaussian process."""
        return self.states_objective and not self.is_ensemble

    @abstractmethod
    def check(self) -> None:
        """Raise ``UnsupportedError``, with a remedy, if a model of this kind is not served."""

    def states_observations_only(self) -> UnsupportedError:
        """The error for a claim about the objective, where `states_objective` is False."""
        return UnsupportedError(
            f"A {type(self.observed).__name__} states observations only, not the objective behind "
            "their noise: make the CalibratedModel with `denoise=False`."
        )

    def inputs(self, X: Tensor, posterior: Posterior | None = None) -> Tensor:
        """Points ``... x d`` in the transformed space, where calibrators work.

        The ``posterior`` of `predicting` there may hold them.
        """
        if self.predicting.training:  # an input transform would learn from X
            self.predicting.eval()
        held: Tensor | None = getattr(posterior, "inputs", None)
        return self.predicting.transform_inputs(X) if held is None else held

    @abstractmethod
    def scores(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Tensor:
        """Normal scores ``n`` of observations ``Y`` at ``X``, each predicted alone.

        ``X`` is ``n x d``, with all columns of the base model, ``Y`` and its noise variances
        ``Yvar`` (default: the model's) are ``n x 1``.
        """

    def history(self, residuals: str) -> tuple[Tensor, Tensor]:
        """Transformed inputs ``n x d`` and normal scores ``n`` of the training data, in order.

        ``residuals`` are ``"prequential"``, one step ahead, or ``"loo"``, leave-one-out.
        """
        raise UnsupportedError(
            f"Past data cannot be replayed by a {type(self.observed).__name__}: calibrate it "
            "online, by calling `CalibratedModel.observe` with each new observation, and judge it "
            "on held-out data."
        )

    @abstractmethod
    def conditioned(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
        """`model` with further observations; rows that were pending are so no longer."""

    @abstractmethod
    def posterior(
        self, X: Tensor, correction: Correction, noise: Tensor | None = None
    ) -> StatedPosterior:
        """The calibrated posterior at ``X``, ``batch_shape x q x d``.

        ``noise`` is the noise variance in the space of the targets (default: the likelihood's).
        """

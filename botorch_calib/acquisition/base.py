"""Base class of closed-form acquisition functions for single points."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.utils.safe_math import logmeanexp
from torch import Tensor

from botorch_calib._validation import check_count, check_flag, check_model
from botorch_calib.acquisition.pending_points import PendingPoints, fantasy_models
from botorch_calib.models.predict import predict
from botorch_calib.models.process import sole_member
from botorch_calib.models.requirements import scalar_affine
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.posteriors import Prediction


class CalibratedAcquisitionFunction(PendingPoints, ABC):
    """Base class of closed-form acquisition functions for single points (``q = 1``).

    The ``forward`` method of a subclass computes values from the distributions that ``_marginals``
    returns, and passes the values to ``_reduce``, which averages them over fantasies (draws of the
    outcomes at pending points). The constructor of a subclass must end with
    ``self.set_X_pending(X_pending)``. The argument ``outcomes`` contains the indices of the
    outcomes on which the value depends; the objective, if there is one, comes first. If
    ``outcomes`` is None, the model must have one output. Otherwise the model may also be a
    `CalibratedModelList`, or a ``ModelList`` of calibrated and Gaussian models.
    `CalibratedUpperConfidenceBound` explains the other arguments. For joint batches (``q > 1``) use
    BoTorch's Monte Carlo acquisition functions.
    """

    def __init__(
        self,
        model: Model,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        num_fantasies: int = 16,
        observation_noise: bool = False,
        outcomes: Sequence[int] | None = None,
    ) -> None:
        model = sole_output(type(self).__name__, model) if outcomes is None else model
        members = members_of(model)
        super().__init__(model=model)
        self.posterior_transform = posterior_transform
        self.maximize = check_flag("maximize", maximize)
        self.num_fantasies = check_count("num_fantasies", num_fantasies)
        self.observation_noise = check_flag("observation_noise", observation_noise)
        self._takes_gaussian = outcomes is not None
        self._models = {i: members[i] for i in outcomes or (0,)}
        self._fantasies: dict[int, Model] | None = None

    def _account_for(self, X_pending: Tensor | None) -> None:
        if X_pending is None:
            self._fantasies = None
            return
        fantasies = fantasy_models([*self._models.values()], X_pending, self.num_fantasies)
        self._fantasies = dict(zip(self._models, fantasies, strict=True))

    def _marginals(self, X: Tensor, outcome: int | None = None) -> Prediction:
        """Predictive distributions ``b x 1 x 1`` of one outcome at points ``b x 1 x d``.

        With pending points the shape is ``b x num_fantasies x 1 x 1``. If the index ``outcome`` is
        None, the outcome is the objective, multiplied by -1 if ``maximize`` is False. Otherwise the
        sign is unchanged. Subclasses evaluate the models only through this method.
        """
        index = next(iter(self._models)) if outcome is None else outcome
        model = self._models[index]
        if self._fantasies is not None:  # the model has a batch dimension of fantasies
            model, X = self._fantasies[index], X.unsqueeze(-3)
        if isinstance(model, WrapperModel):
            model.warn_if_unlearned()
        objective = False if self.observation_noise else None
        name = type(self).__name__
        stated: Prediction = predict(model, X, objective=objective, sole_values=name)
        if stated.predictive is None and not self._takes_gaussian:
            raise UnsupportedError(
                f"{name} needs a calibrated posterior, such as that of a CalibratedModel; "
                f"{type(model).__name__} is not calibrated."
            )
        if self.posterior_transform is not None:
            map_of_outcome = scalar_affine(self.posterior_transform, "a calibrated posterior")
            stated = stated.affine(*map_of_outcome)
        return stated if self.maximize or outcome is not None else stated.affine(-1.0)

    def _reduce(self, values: Tensor) -> Tensor:
        """Return ``values`` in the shape ``b``, averaged over fantasies if points are pending.

        ``values`` have the shape of `_marginals`. If they are logarithms (``_log``), the result is
        the logarithm of the average.
        """
        values = values.squeeze(-1).squeeze(-1)
        if self._fantasies is None:
            return values
        return logmeanexp(values, dim=-1) if self._log else values.mean(dim=-1)


def sole_output(name: str, model: Model) -> Model:
    """Return the model of the only outcome; raise ``UnsupportedError`` if ``model`` has several.

    ``name`` is the name of the caller in the error message.
    """
    if check_model(model).num_outputs != 1:
        raise UnsupportedError(f"{name} needs a model with one output, got {model.num_outputs}.")
    member: Model = sole_member(model)
    return member


def members_of(model: Model) -> list[Model]:
    """Return one model per outcome; raise ``UnsupportedError`` if one has several outputs."""
    members = [*model.models] if isinstance(model, ModelList) else [model]
    for member in members:
        if check_model(member).num_outputs != 1:
            raise UnsupportedError(
                f"`model` needs one model per outcome in a CalibratedModelList, and "
                f"{type(member).__name__} has {member.num_outputs} outputs."
            )
    return members

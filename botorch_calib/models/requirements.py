"""Checks that a model supports an operation; errors name a remedy."""

from __future__ import annotations

from typing import Any

from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions import BotorchTensorDimensionError, UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel, MultiTaskGPyTorchModel
from botorch.models.heterogeneous_mtgp import HeterogeneousMTGP
from botorch.models.higher_order_gp import HigherOrderGP
from botorch.models.model import Model, ModelList
from botorch.utils.transforms import is_fully_bayesian
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase

from botorch_calib._validation import check_model
from botorch_calib.models.outcome_transforms import (
    check_increasing,
    has_affine_outcomes,
    transform_name,
)
from botorch_calib.models.process import kind_of, likelihood_of, raw_width


def check_sole_outcome(model: Model, remedy: str) -> None:
    """Raise ``UnsupportedError`` if ``model`` has several outcomes.

    In the error, ``remedy`` says what to do, and `one_outcome_of` the model follows it.
    """
    is_list = isinstance(check_model(model), ModelList)
    try:
        num = model.num_outputs
    except NotImplementedError:  # raised by prior-fitted networks, which have one output
        num = 1
    if is_list or num != 1:
        found = "is a list of models" if is_list else f"has {num} outputs"
        raise UnsupportedError(
            f"{'A ' if is_list else ''}{type(model).__name__} {found}: {remedy} "
            f"{one_outcome_of(model)}."
        )


def check_base(model: Model, wrapper: str = "CalibratedModel") -> None:
    """Raise ``UnsupportedError`` unless ``model`` has one output and a Gaussian likelihood.

    The error calls the class that needs the model ``wrapper``.
    """
    independent = isinstance(model, ModelList | BatchedMultiOutputGPyTorchModel)
    is_done = independent and wrapper == "CalibratedModel"
    done = "`CalibratedModelList.from_history`, or " if is_done else ""
    check_sole_outcome(
        model, f"use {done}one {wrapper} per outcome in a CalibratedModelList, each around"
    )
    name = type(model).__name__
    if not isinstance(likelihood_of(model), _GaussianLikelihoodBase):
        raise UnsupportedError(
            f"{name} has no Gaussian likelihood, which {wrapper} needs: use an exact GP such as "
            "SingleTaskGP, whose likelihood is Gaussian by default. If your model adds Gaussian "
            "noise, set its `likelihood` to a GaussianLikelihood."
        )
    if isinstance(model, HeterogeneousMTGP):
        raise UnsupportedError(
            f"The tasks of a {name} have different inputs, which {wrapper} does not support: use a "
            "MultiTaskGP of their common inputs, or a SingleTaskGP of the target task."
        )
    if isinstance(model, HigherOrderGP):
        raise UnsupportedError(
            f"The outcome of a {name} is a tensor, which {wrapper} does not support: use one model "
            "per element, in a CalibratedModelList."
        )


def check_process(model: Model) -> None:
    """Raise ``UnsupportedError`` unless a `CalibratedModel` can wrap ``model``."""
    check_model(model)
    kind = kind_of(model)
    if kind == "members":
        _check_ensemble(model)
    elif kind == "cdf":
        check_sole_outcome(
            model, "use one CalibratedModel per outcome in a CalibratedModelList, each around"
        )
        return
    else:
        check_base(model)
    check_increasing(model)


def _check_ensemble(model: Model) -> None:
    name = type(model).__name__
    if model.num_outputs != 1:
        raise UnsupportedError(
            f"{name} has {model.num_outputs} outputs: use one CalibratedModel per outcome in a "
            "ModelList, each around an ensemble of that outcome or output task alone."
        )
    if not (isinstance(likelihood_of(model), _GaussianLikelihoodBase) or is_to_be_fitted(model)):
        raise UnsupportedError(
            f"{name} has no observation noise, which a calibrated model needs: pass "
            "`NoisyEnsemble(model, noise_variance)`."
        )
    if not has_affine_outcomes(model):
        raise UnsupportedError(
            f"{name} has the nonlinear outcome transform {transform_name(model)}, and the "
            "predictions of its members are Gaussian only before it: apply it to the observations "
            "beforehand, and let the model have Standardize or no transform."
        )


def is_to_be_fitted(model: Any) -> bool:
    """Whether a fully Bayesian model is not fitted yet, and therefore has no likelihood."""
    return is_fully_bayesian(model) and model.covar_module is None


def one_outcome_of(model: Model) -> str:
    """Return the part of an error message that tells how to get a model of a single outcome."""
    if isinstance(model, ModelList):
        return "one of its `models`"
    if isinstance(model, MultiTaskGPyTorchModel):
        return "a model that was made with `output_tasks=[task]`"
    if isinstance(model, BatchedMultiOutputGPyTorchModel):
        return "`model.subset_output([i])`"
    return "a model that was fitted to that outcome alone"


def scalar_affine(transform: PosteriorTransform | None, subject: str) -> tuple[float, float]:
    """Return weight and offset of an affine transform of one outcome; ``(1, 0)`` for None.

    Raise ``UnsupportedError`` for other transforms and for the weight 0. In the error, ``subject``
    is what the transform should apply to, such as "a draw".
    """
    if transform is None:
        return 1.0, 0.0
    weights: Any = getattr(transform, "weights", None)
    if isinstance(transform, ScalarizedPosteriorTransform) and weights.numel() == 1:
        if float(weights) == 0.0:
            raise UnsupportedError(
                f"`posterior_transform` has the weight 0, which makes {subject} constant: use "
                "another weight."
            )
        return float(weights), float(transform.offset)
    raise UnsupportedError(
        f"`posterior_transform` {type(transform).__name__} does not apply to {subject}: use a "
        "ScalarizedPosteriorTransform with one weight, or a Monte Carlo acquisition function with "
        "an objective."
    )


def check_same_width(model: object, other: object) -> None:
    """Raise ``BotorchTensorDimensionError`` if two models have inputs of different widths.

    Models of unknown width pass. The error calls ``other``, which is to replace ``model``, "model".
    """
    width, own = (raw_width(each) for each in (model, check_model(other)))
    if width is not None and own is not None and own != width:
        raise BotorchTensorDimensionError(
            f"`model` must have {width} inputs, like the current model, got {own}: calibration "
            "cannot continue with other inputs, so start from the beginning, as by `from_history`."
        )


def check_fantasizes(model: object, subject: str) -> None:
    """Raise ``UnsupportedError`` unless a model can be conditioned on fantasies.

    ``subject`` is the first word of the error: the method or argument that needs fantasies.
    """
    if not hasattr(model, "fantasize"):
        raise UnsupportedError(
            f"{subject} needs models that can be conditioned on observations, and a "
            f"{type(model).__name__} cannot: use an exact GP such as SingleTaskGP, or pass pending "
            "points to a Monte Carlo acquisition function."
        )

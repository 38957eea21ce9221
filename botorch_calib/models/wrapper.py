"""`WrapperModel`: a wrapped model with the attributes that BoTorch and its clients read.

The *base model* is the BoTorch model inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from inspect import signature
from typing import Any, Self

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.transforms import is_fully_bayesian
from gpytorch.models import ExactGP
from torch import Tensor
from torch.nn import Module

from botorch_calib.calibration import Calibrator


def _of_base(name: str) -> Any:
    """Return a property that reads an attribute of the base model, and raises if it is missing."""
    return property(lambda self: getattr(self.model, name), doc=f"``{name}`` of the base model.")


# Clients set these parts of the base model, such as an input transform for a risk measure. Setting
# another attribute changes the wrapper alone.
_PARTS = ("input_transform", "likelihood", "mean_module", "covar_module")


class WrapperModel(Model):
    """Base class of `Surrogate`: a model with one output that wraps a BoTorch model.

    Modules that the module of `Surrogate` imports cannot import `Surrogate`, so they use this class
    to recognise surrogates.
    """

    # BoTorch's noisy expected improvement can cache Cholesky roots only for BoTorch's own models.
    _supports_cache_root = False

    model: Any  # a BoTorch model
    calibrator: Calibrator | None
    denoise: bool
    excess: str

    @property
    def gaussian_model(self) -> Any:
        """The base model, conditioned on imputed values at pending points."""
        raise NotImplementedError

    def warn_if_unlearned(self) -> None:
        """Warn, once, if the calibrator has seen fewer residuals than it needs."""

    @property
    def num_outputs(self) -> int:
        return 1

    likelihood = _of_base("likelihood")
    mean_module = _of_base("mean_module")
    covar_module = _of_base("covar_module")  # clients such as TuRBO read its lengthscales
    train_inputs = _of_base("train_inputs")
    train_targets = _of_base("train_targets")
    input_transform = _of_base("input_transform")
    outcome_transform = _of_base("outcome_transform")
    models = _of_base("models")  # source models of botorch_community's multi-source models
    # From these two attributes BoTorch gets untransformed training inputs, for example to draw raw
    # samples around the best points (``sample_around_best``).
    _has_transformed_inputs = _of_base("_has_transformed_inputs")
    _original_train_inputs = _of_base("_original_train_inputs")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the wrapper, or one of `_PARTS` of the base model.

        Setting ``outcome_transform`` or a part that the base model lacks raises
        ``UnsupportedError``.
        """
        if name == "outcome_transform":
            raise UnsupportedError(
                "`outcome_transform` cannot be replaced, as the current one has transformed the "
                "training outcomes: make and fit a new model, and wrap it."
            )
        if name not in _PARTS:
            super().__setattr__(name, value)
            return
        if name != "input_transform" and not hasattr(self.model, name):
            raise UnsupportedError(f"{type(self.model).__name__} has no `{name}` to replace.")
        with _changing(self.model):
            setattr(self.model, name, value)

    def transform_inputs(self, X: Tensor, input_transform: Module | None = None) -> Tensor:
        """Return inputs after the base model's input transform, as calibrators take them."""
        return self.gaussian_model.transform_inputs(X, input_transform)

    def _set_transformed_inputs(self) -> None:
        """Do nothing: the base model transforms its data when it is put in `eval` mode."""

    def _revert_to_original_inputs(self) -> None:
        """Do nothing: the base model restores its data when it is put in `train` mode."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ``UnsupportedError``, since a wrapped model is used through its ``posterior``."""
        raise UnsupportedError(
            f"A {type(self).__name__} cannot be called: use its `posterior`. For training, "
            "cross-validation from the training data and entropy search with pending points, pass "
            "the Gaussian process inside, `model.model`."
        )

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model itself, as it has one output; ``idcs`` must be ``[0]`` or ``[-1]``."""
        check_output_indices(idcs)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Apply ``fn`` to all tensors, to move or convert them.

        If dtype or device changed, the base model's prediction strategy, a cached factorisation, is
        dropped. Otherwise it must be kept: BoTorch's look-ahead moves fantasies to the device on
        which they already are, and differentiates through the factorisation.
        """

        def kinds() -> list[tuple[torch.dtype, torch.device]]:
            return [(parameter.dtype, parameter.device) for parameter in self.model.parameters()]

        before = kinds()
        moved = super()._apply(fn, recurse)
        if kinds() != before and hasattr(self.model, "prediction_strategy"):
            self.model.prediction_strategy = None
        return moved

    def load_state_dict(  # type: ignore[override]
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        keep_transforms: bool = True,
        assign: bool = False,
    ) -> Any:
        """Load a state; after an error, the state outside the base model has not changed.

        The arguments are as in BoTorch's models. The base model's own method loads its part of the
        state, and gets only the options that this method accepts.
        """
        base = {key[6:]: state_dict[key] for key in state_dict if key.startswith("model.")}
        others = {key: state_dict[key] for key in state_dict if not key.startswith("model.")}
        own = copy(self)  # has the same buffers and modules, without the base model
        own._modules = {name: part for name, part in self._modules.items() if name != "model"}
        before = deepcopy(own.state_dict())
        try:
            Module.load_state_dict(own, others, strict, assign)
            options = {"strict": strict, "keep_transforms": keep_transforms, "assign": assign}
            # The method of BoTorch's ensembles has fewer arguments.
            known = signature(self.model.load_state_dict).parameters
            with _changing(self.model):
                return self.model.load_state_dict(
                    base, **{name: value for name, value in options.items() if name in known}
                )
        except Exception:
            Module.load_state_dict(own, before)
            raise


@contextmanager
def _changing(model: Model) -> Iterator[None]:
    """Return a context in which a model's parts can be changed; outdated caches are dropped."""
    # Training mode drops GPyTorch's caches and restores the untransformed training inputs. The
    # model's own mode is restored at the end: `eval` mode transforms the inputs by the new parts.
    was_training = model.training
    # Only exact models are put in training mode. A fully Bayesian model would lose its draws, and a
    # variational model has no training data.
    has_draws = is_fully_bayesian(model)
    if isinstance(model, ExactGP) and not has_draws:
        model.train()
    try:
        yield
    finally:
        if not (was_training and has_draws):
            model.train(was_training)


def check_output_indices(indices: list[int] | None) -> None:
    """Raise ``UnsupportedError`` unless ``indices`` select the only output."""
    if indices is not None and list(indices) not in ([0], [-1]):
        raise UnsupportedError(
            f"`output_indices` must be None or [0], got {indices}. BoTorch's ModelList passes "
            "other indices with a tensor of noise: use a CalibratedModelList instead."
        )


def standardized_gp(**data: Any) -> SingleTaskGP:
    """Return an unfitted ``SingleTaskGP`` with ``Normalize`` and ``Standardize``.

    ``data`` are keyword arguments of ``SingleTaskGP``, including ``train_X``, for one outcome.
    """
    return SingleTaskGP(
        **data,
        input_transform=Normalize(data["train_X"].shape[-1]),
        outcome_transform=Standardize(1),
    )

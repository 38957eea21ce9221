"""Models conditioned on observations: the noise that takes, and errors that help where it fails."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.settings import propagate_grads
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.settings import detach_test_caches
from gpytorch.utils.memoize import add_to_cache
from torch import Tensor

from botorch_calib.models.factorization import row_updates
from botorch_calib.models.inspection import inputs_of_transform, with_task_feature
from botorch_calib.models.marginals import keep_in_step, remember_factor
from botorch_calib.models.requirements import check_fits


def conditioned_on(model: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
    """``model.condition_on_observations``, with an error that helps where there is none.

    Exact Gaussian processes gain rows of their Cholesky factor. Predictions, variances included,
    are differentiable in ``X`` and ``Y`` where these require it: by default GPyTorch detaches what
    they are made of.
    """
    keeps_graph = X.requires_grad or Y.requires_grad
    try:
        keep_in_step(model)
        # BoTorch's exact GPs can be conditioned only once they have been evaluated.
        if hasattr(model, "prediction_strategy") and (
            model.training or model.prediction_strategy is None
        ):
            with torch.no_grad():
                model.posterior(X)
        if keeps_graph:
            _drop_graph_of_parameters(model)
        detaches = detach_test_caches.on() and not keeps_graph
        with row_updates(model) as update, detach_test_caches(detaches):
            conditioned: Any = model.condition_on_observations(X, Y, **kwargs)
            strategy = getattr(conditioned, "prediction_strategy", None)
            if keeps_graph and strategy is not None:
                # Here the means' weights keep their graph. GPyTorch updates them under a name by
                # which it does not find them again: the first prediction would detach them.
                _ = strategy.mean_cache
        if update is not None and update.factor is not None:
            remember_factor(conditioned, *update.factor)
    except (NotImplementedError, AttributeError) as error:
        # BoTorch's variational models lack the method that its base class calls.
        if isinstance(error, AttributeError) and "get_fantasy_model" not in str(error):
            raise
        raise UnsupportedError(
            f"{type(model).__name__} cannot be conditioned on observations. Use an exact GP such "
            "as SingleTaskGP, or, to calibrate only, call `observe` with `condition=False` and "
            "refit."
        ) from error
    except RuntimeError:
        check_fits(model, with_task_feature(model, X))  # GPyTorch speaks of sizes inside
        transform = getattr(model, "input_transform", None)
        if getattr(transform, "is_one_to_many", False):
            raise UnsupportedError(
                f"{type(model).__name__} cannot be conditioned on one value for each point, as its "
                f"input transform {type(transform).__name__} makes several points of each. Give "
                "pending points to a Monte Carlo acquisition function, as `X_pending`."
            ) from None
        raise
    return conditioned


def _drop_graph_of_parameters(model: Any) -> None:
    """Detach the factor that a model keeps, unless it depends on more than hyperparameters.

    The first backward pass frees its graph, and the factor stays, so there could be no second one.
    Under ``propagate_grads`` nothing is detached.
    """
    strategy: Any = getattr(model, "prediction_strategy", None)
    # The exact type: other strategies hold other caches than a factor.
    if type(strategy) is not DefaultPredictionStrategy or propagate_grads.on():
        return
    if any(values.requires_grad for values in (*model.train_inputs, model.train_targets)):
        return
    covariance = strategy.lik_train_train_covar
    for name in ("root_decomposition", "root_inv_decomposition"):
        factor = getattr(covariance, name)()
        if factor.requires_grad:
            add_to_cache(covariance, name, factor.detach())


def given_noise(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> dict[str, Tensor]:
    """The ``noise`` a fixed-noise model needs to be conditioned, in transformed units."""
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return {}
    if Yvar is None:
        return {"noise": model.likelihood.noise.mean().expand_as(Y)}
    model.eval()  # in training mode `Standardize` would learn mean and scale anew from these
    if hasattr(model, "outcome_transform"):
        strata = inputs_of_transform(model, with_task_feature(model, X))
        Yvar = model.outcome_transform(Y, Yvar, **strata)[1]
    return {"noise": Yvar}

"""Sample paths of calibrated models, for BoTorch's ``draw_matheron_paths``.

Importing this module registers two things with BoTorch: how to draw these paths, and how to update
paths of a Gaussian process whose noise `with_learned_spread` has learned.
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.sampling.pathwise.paths import GeneralizedLinearPath, PathList, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.update_strategies import GaussianUpdate, gaussian_update
from botorch.sampling.pathwise.utils import get_train_inputs
from botorch.utils.sampling import draw_sobol_normal_samples
from botorch.utils.transforms import is_ensemble
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from torch import Size, Tensor
from torch.nn import ModuleList

from botorch_calib.models.model_list import CalibratedModelList
from botorch_calib.models.outcome_transforms import has_affine_outcomes
from botorch_calib.models.predict import predict, slots_of
from botorch_calib.models.process import (
    batch_of_models,
    learned_noise,
    raw_train_inputs,
    with_own_hyperparameters,
)
from botorch_calib.models.spread_likelihood import LearnedSpreadLikelihood
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.posteriors import CalibratedPosterior


class CalibratedPath(SamplePath):
    """Functions drawn from a calibrated model, computed from paths of the Gaussian process inside.

    At each point let ``f ~ N(mu, v)`` be the process's posterior, ``n`` the noise variance, ``a =
    v / (v + n)``, and ``T`` the map from a standard normal variable to a calibrated normal score.
    Let ``f`` and ``f'`` be independent paths of the process, and let ``z`` be the standardised
    value of ``f + sqrt(n / v) (f' - mu)``. A drawn function is ``f + a sqrt(v + n) (T(z) - z)``,
    like a joint sample of `CalibratedPosterior`.

    Args:
        model: The calibrated model.
        paths: Paths of the model's process: two with the sample shape ``sample_shape``, or one with
            the sample shape ``sample_shape x 2``, of linear combinations of features.

    Example:
        >>> paths = draw_matheron_paths(model, torch.Size([8]))
        >>> values = paths(X)
    """

    paths: Any  # a ``ModuleList``

    def __init__(self, model: Surrogate, *paths: Any) -> None:
        super().__init__()
        self.model, self.paths = model, ModuleList(paths)
        self._batch = batch_of_models(model.model)
        if len(paths) == 1:
            for name, part in paths[0].items():
                paths[0][name] = _PathsOfSameFeatures(
                    part.feature_map, part.weight, part.bias_module, part.input_transform
                )

    def forward(self, X: Tensor) -> Tensor:
        """Return the paths' values at ``X``, ``batch_shape x q x d``, in units of the outcome.

        The values are ``sample_shape x q``, where the batch shape broadcasts against the sample
        shape, as in BoTorch's paths. If the input transform turns each point into several points,
        the values of these points are adjacent.
        """
        return self._moved(X, self._posterior(X))

    def with_mean(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of `forward`, and the calibrated mean, ``batch_shape x q``."""
        posterior = self._posterior(X)
        return self._moved(X, posterior), self._points_last(posterior.mean)

    def _posterior(self, X: Tensor) -> CalibratedPosterior:
        """Return the marginal posterior of each point, ``... x q x model_batch_shape x 1 x 1``."""
        X = X.expand(*torch.broadcast_shapes(X.shape[:-2], self._batch), *X.shape[-2:])
        return predict(self.model, X.unsqueeze(-2).movedim(-3, -3 - len(self._batch)))

    def _moved(self, X: Tensor, posterior: CalibratedPosterior) -> Tensor:
        # Marginals of the posterior are enough, since the paths contain the correlations. Each
        # point has one marginal, or several marginals after a one-to-many input transform.
        shape = X.shape[-2], posterior.shape[-2]
        both = self.of_process(X).unflatten(-1, shape).movedim(-2, -2 - len(self._batch))
        path, other = map(posterior.outcome_map.latent, both.unsqueeze(-1))
        return self._points_last(posterior.moved(path, other))

    def _points_last(self, values: Tensor) -> Tensor:
        return values.squeeze(-1).movedim(-2 - len(self._batch), -2).flatten(-2)

    def of_process(self, X: Tensor) -> Tensor:
        """Return the values of ``f`` and ``f'`` at ``X``, ``2 x sample_shape x q``.

        For ``f`` and ``f'`` see the class docstring; for shapes see `forward`.
        """
        if len(self.paths) == 1:
            values: Tensor = self.paths[0](X)
            return values.movedim(-1, 0)
        return torch.stack([path(X) for path in self.paths])

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        for path in self.paths:
            path.set_ensemble_as_batch(ensemble_as_batch)


class _PathsOfSameFeatures(GeneralizedLinearPath):
    """Linear paths whose values, ``... x q x k``, contain all ``k`` paths in the last dimension.

    One matrix product with the features evaluates all paths. BoTorch's broadcasting would copy the
    features for each path.
    """

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        values = self.feature_map(x, **kwargs) @ self.weight.mT
        return values if self.bias_module is None else values + self.bias_module(x).unsqueeze(-1)


def process_of_paths(model: object, otherwise: str) -> ExactGP:
    """Return the exact Gaussian process from which a model's paths are drawn, in evaluation mode.

    If a model has no such process, ``UnsupportedError`` names ``otherwise`` as a remedy.
    """
    gp, calibrator, denoise, _ = slots_of(model, pending=True)
    is_calibrated = calibrator is not None
    if is_calibrated and not has_affine_outcomes(gp):
        raise UnsupportedError(
            "Pathwise draws of a calibrated model need an affine outcome transform or none: "
            f"{otherwise}, or draw paths of a model of the transformed outcomes, and map them back."
        )
    if not isinstance(gp, ExactGP) or isinstance(gp, MultiTaskGPyTorchModel):
        raise UnsupportedError(
            f"{type(gp).__name__} has no pathwise draws: {otherwise}, or use an exact Gaussian "
            "process with one task, such as SingleTaskGP."
        )
    if is_calibrated and is_ensemble(gp):
        raise UnsupportedError(
            f"{type(gp).__name__} is an ensemble, whose mixture is calibrated, and which has no "
            f"pathwise draws: {otherwise}, or use a single exact Gaussian process."
        )
    if is_calibrated and not denoise:
        raise UnsupportedError(
            "Paths are functions of the input, and observations have independent noise: "
            f"{otherwise}, or use a CalibratedModel with `denoise=True`."
        )
    return gp.eval()


@DrawMatheronPaths.register(Surrogate)
def _draw_paths(model: Surrogate, *, sample_shape: Size, **samplers: Any) -> SamplePath:
    """Draw paths of a model, calibrated or not, given its pending points.

    The paths do not change when the model is updated.
    """
    if model.calibrator is None:
        gp = model.gaussian_model
        if isinstance(gp, ExactGP):
            gp = with_own_hyperparameters(gp)
            samplers = _with_noise_of_data(gp, samplers)
        return DrawMatheronPaths(gp, sample_shape=sample_shape, **samplers)
    gp = process_of_paths(model, "draw joint samples from `posterior`")
    X = raw_train_inputs(model)
    assert X is not None
    # Evaluate the model once, so that errors and warnings occur now and not during a search, and so
    # that the Cholesky factor is cached.
    with torch.no_grad():
        model.posterior(X[..., :1, :])
    # Copy process and calibrator, since `observe` changes both of them, and paths must not change.
    gp, calibrator = with_own_hyperparameters(gp), deepcopy(model.calibrator)
    drawn_from = Surrogate(gp, None, None, None, calibrator, model.denoise, model.excess)
    samplers = _with_noise_of_data(gp, samplers)
    sampler: Any = samplers.get("prior_sampler", draw_kernel_feature_paths)
    usual, given = sampler, {}
    if isinstance(sampler, partial):
        usual, given = sampler.func, sampler.keywords
    if usual is draw_kernel_feature_paths and not batch_of_models(gp):
        weights = partial(_weights_of_pairs, place=len(sample_shape))
        ours = partial(sampler, **{"weight_generator": weights, **given})
        shape = Size([*sample_shape, 2])
        paths: Any = draw_matheron_paths(gp, shape, **{**samplers, "prior_sampler": ours})
        # Both paths can share features, unless a user's update is not a linear combination of them.
        if all(type(part) is GeneralizedLinearPath for part in paths.values()):
            return CalibratedPath(drawn_from, paths)
    both = (draw_matheron_paths(gp, sample_shape, **samplers) for _ in range(2))
    return CalibratedPath(drawn_from, *both)


def noise_of_data(gp: ExactGP, points: Tensor) -> DiagLinearOperator:
    """Return the noise variances of the training data, as a diagonal covariance matrix.

    ``points`` are the transformed training inputs.
    """
    noise_covar = gp.likelihood.noise_covar
    is_sparse = isinstance(gp.likelihood, SparseOutlierGaussianLikelihood)
    scale: dict[str, Tensor] = {}
    if is_sparse and noise_covar.convex_parameterization:
        # The variances of outliers are in units of the other variance.
        scale["diag_K"] = gp.covar_module(points).diagonal(dim1=-1, dim2=-2)
    noise = noise_covar(points, shape=points.shape[:-1], **scale)
    learned = learned_noise(gp)
    if learned is None:
        return noise
    return DiagLinearOperator(noise.diagonal(dim1=-1, dim2=-2) + learned)


def _with_noise_of_data(gp: ExactGP, samplers: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a draw, whose update of prior paths has the noise of the data.

    BoTorch's own update ignores the inputs, the variances that were learned for outliers, and the
    part of the noise that is learned in addition to given noise.
    """
    if samplers.get("update_strategy", gaussian_update) is not gaussian_update or is_ensemble(gp):
        return samplers
    with torch.no_grad():
        (points,) = get_train_inputs(gp.eval(), transformed=True)
        noise = noise_of_data(gp, points)
    return {**samplers, "update_strategy": partial(gaussian_update, noise_covariance=noise)}


def _weights_of_pairs(shape: Size, place: int) -> Tensor:
    """Return standard normal weights of features for pairs of independent paths.

    ``shape`` ends with the number of features, and its dimension ``place`` is of the pair. BoTorch
    would use neighbours in a Sobol sequence, which are far from each other, so that both paths of a
    pair would have a correlation of -0.5. Here one point of the sequence has the weights of both.
    """
    *others, num_features = shape[:place] + shape[place + 1 :]
    num = Size(others).numel()
    weights = draw_sobol_normal_samples(2 * num_features, num, dtype=torch.double)
    return weights.view(*others, 2, num_features).movedim(-2, place)


@DrawMatheronPaths.register(CalibratedModelList)
def _draw_paths_of_outcomes(model: CalibratedModelList, **arguments: Any) -> PathList:
    """Draw paths of each outcome, independently of the other outcomes, as for a ``ModelListGP``."""
    return PathList([DrawMatheronPaths(each, **arguments) for each in model.models])


@GaussianUpdate.register(ExactGP, LearnedSpreadLikelihood)
def _update(gp: ExactGP, likelihood: LearnedSpreadLikelihood, **arguments: Any) -> SamplePath:
    """Return BoTorch's update of prior paths, with the noise variances at the training inputs.

    BoTorch itself would evaluate the noise without the inputs.
    """
    if arguments.get("noise_covariance") is None:
        (points,) = get_train_inputs(gp, transformed=True)
        arguments["noise_covariance"] = noise_of_data(gp, points)
    usual = GaussianUpdate.dispatch(ExactGP, GaussianLikelihood)
    return usual(gp, likelihood, **arguments)

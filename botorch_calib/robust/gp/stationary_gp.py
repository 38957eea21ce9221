"""Store posteriors of exact Gaussian processes with a stationary radial kernel as a few tensors."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from types import NoneType

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedInputTransform, Normalize, Standardize
from botorch.models.transforms.input import AffineInputTransform, InputStandardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.models import ExactGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import Module

from botorch_calib.models.outcome_transforms import outcome_map_of, unit_of_targets
from botorch_calib.models.predict import constant_noise
from botorch_calib.models.process import raw_train_inputs
from botorch_calib.models.radial_kernels import RadialProfile, base_kernel, radial_profile
from botorch_calib.posteriors.prediction import usual_least
from botorch_calib.robust.contexts import pairwise_distances

# The methods of a class that determine its predictions: a subclass must inherit all of them
_HOW = attrgetter("__call__", "forward", "posterior", "transform_inputs")
_AFFINE = (Normalize, InputStandardize, AffineInputTransform)
# Lower limit of posterior variances, in units of the prior variance times the machine epsilon
_ROUNDING = 8.0
# Largest accepted rounding error of posterior standard deviations, in units of the prior standard
# deviation. If the estimated error is larger, they are computed from a root of the precision.
_TOLERANCE = {torch.double: 1e-9, torch.float: 1e-4}


@dataclass(frozen=True, eq=False)
class StationaryGP:
    """The posterior of ``f`` in units of the outcome, in terms of a kernel with ``k(z, z) = 1``.

    Let the row ``k`` contain the kernel's values between a point and the ``n`` training inputs. The
    posterior mean is ``mean + k weights``, and the posterior variance is ``variance - k precision
    k^T``. Scaled inputs are ``(z - origin) * slope`` for joint inputs ``z`` before the model's
    input transform.
    """

    profile: RadialProfile  # the kernel as a function of the squared distance of scaled inputs
    # Mean of the training inputs, d: differences from it are accurate even for inputs far from 0
    origin: Tensor
    slope: Tensor  # derivatives of scaled inputs with respect to inputs, d
    inputs: Tensor  # training inputs, n x d, scaled
    weights: Tensor  # n, the factors of ``k`` in the posterior mean
    precision: Tensor  # n x n, the scaled inverse of the training covariance
    # n x n with ``root root^T = precision`` if the training covariance is so badly conditioned that
    # a product with the precision loses the variance to rounding; else None
    root: Tensor | None
    # Numbers, as tensors without dimensions so that they remain on the device
    mean: Tensor  # prior mean
    variance: Tensor  # prior variance
    noise: Tensor  # noise variance
    least_variance: Tensor  # lower limit of posterior variances


def is_stationary(model: ExactGP) -> bool:
    """Whether `stationary_gp` supports a model.

    The model must be a ``SingleTaskGP``, or a subclass that predicts in the same way, with one
    output and no batch dimensions. The kernel is RBF, Matern 3/2 or Matern 5/2, with or without ARD
    and ``ScaleKernel``. The mean is constant or zero, and the noise is learned or given. Input
    transforms must be affine, and the only supported outcome transform is ``Standardize``.
    """
    if not isinstance(model, SingleTaskGP) or _HOW(type(model)) != _HOW(SingleTaskGP):
        return False
    parts = dict(model.named_children())
    return (
        model.num_outputs == 1
        and not model.batch_shape
        and model.train_targets.dim() == 1
        and model.train_inputs[0].dim() == 2
        and type(model.mean_module) in (ConstantMean, ZeroMean)
        and type(model.likelihood) in (GaussianLikelihood, FixedNoiseGaussianLikelihood)
        and type(parts.get("outcome_transform")) in (NoneType, Standardize)
        and _is_affine(parts.get("input_transform"))
        and radial_profile(base_kernel(model.covar_module)) is not None
    )


@torch.no_grad()
def stationary_gp(model: ExactGP) -> StationaryGP:
    """Return the posterior of a model for which `is_stationary` is True.

    It is computed in double precision, and vectors and matrices are stored in the dtype of the
    training inputs. The model is put in evaluation mode. ``UnsupportedError`` is raised for other
    models.
    """
    kernel = base_kernel(model.covar_module)
    profile = radial_profile(kernel)
    if profile is None or not is_stationary(model):
        raise UnsupportedError(f"This {type(model).__name__} has no closed form.")
    model.eval()
    data = model.train_inputs[0].detach()
    is_scaled = kernel is not model.covar_module
    one = data.new_ones((), dtype=torch.double)
    output_scale = one * model.covar_module.outputscale.detach() if is_scaled else one
    # The deviation and the mean by which outcomes were standardised, or 1 and 0 if they were not
    unit = one * unit_of_targets(model).squeeze()
    location = one * outcome_map_of(model).outcome(data.new_zeros(1, 1)).squeeze()
    scale = profile.factor**0.5 / kernel.lengthscale.detach().reshape(-1).expand(data.shape[-1])
    origin, center, slopes = _input_map(model)
    # In double precision even for a model in single precision: all values depend on the weights
    # and on the inverse of an ill-conditioned covariance, which are computed once.
    inputs = ((data - center) * scale).double()
    covariance = output_scale * profile.at(pairwise_distances(inputs, inputs).square_())[0]
    covariance.diagonal().add_(model.likelihood.noise.detach())
    factor = psd_safe_cholesky(covariance)
    prior_mean = model.mean_module(model.train_inputs[0]).detach().double()
    deviations = (model.train_targets.detach().double() - prior_mean).unsqueeze(-1)
    weights = torch.cholesky_solve(deviations, factor).squeeze(-1)
    precision, root = torch.cholesky_inverse(factor), None
    # Outcomes are location + unit * g, where the kernel of g is output_scale times a kernel with
    # k(z, z) = 1. So the returned weights, precision and root contain these factors.
    #
    # Let ``m`` be the largest diagonal entry of ``precision`` times the prior variance, and let
    # ``k`` contain the prior correlations of a point with the ``n`` inputs. In units of the prior
    # variance, rounding changes the posterior variance, 1 minus a quadratic form of ``k``, by about
    # ``eps sqrt(n) m``. The least posterior standard deviation is about ``1 / sqrt(n m)``. So the
    # error of standard deviations is at most about ``eps sqrt(n) m sqrt(n m) / 2``. If this number
    # exceeds the tolerance, variances are computed from a root of the precision instead.
    largest = output_scale * precision.diagonal().amax()
    error = 0.5 * torch.finfo(data.dtype).eps * len(precision) * largest**1.5
    if error > _TOLERANCE.get(data.dtype, 0.0):
        eye = torch.eye(len(factor)).to(factor)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        root = unit * output_scale * inverse.mT.contiguous()
    noise = constant_noise(model.likelihood)
    assert noise is not None
    variance = unit**2 * output_scale
    floor = _ROUNDING * torch.finfo(data.dtype).eps * variance
    return StationaryGP(
        profile,
        origin=origin.to(data),
        slope=(scale * slopes).to(data),
        inputs=inputs.to(data),
        weights=(unit * output_scale * weights).to(data),
        precision=((unit * output_scale) ** 2 * precision).to(data),
        root=None if root is None else root.to(data),
        mean=location + unit * prior_mean[0],
        variance=variance,
        noise=unit**2 * noise.squeeze(),
        least_variance=torch.maximum(floor, unit**2 * usual_least(data.dtype)),
    )


def _is_affine(transform: Module | None) -> bool:
    """Whether a transform maps each column affinely; None is the identity."""
    if isinstance(transform, ChainedInputTransform):
        return type(transform) is ChainedInputTransform and all(map(_is_affine, transform.values()))
    if not isinstance(transform, AffineInputTransform):
        return transform is None
    # A transform that depends on the row of the input is not a function of single inputs, so it is
    # not supported.
    parts = transform.coefficient, transform.offset
    is_one = all(part.shape[:-1].numel() == 1 for part in parts)
    return type(transform) in _AFFINE and not transform.batch_shape and is_one


def _input_map(model: ExactGP) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of raw inputs, the transformed mean, and the slopes of the transform, all ``d``."""
    raw = raw_train_inputs(model)
    assert raw is not None
    # The raw inputs that BoTorch stores may have a dimension of outcomes, even after
    # `subset_output`, so all leading dimensions are averaged over.
    origin = raw.detach().flatten(0, -2).mean(dim=0, keepdim=True)
    with torch.enable_grad():
        point = origin.clone().requires_grad_()
        image = model.transform_inputs(point)
        (slopes,) = torch.autograd.grad(image.sum(), point)
    return origin.squeeze(0), image.detach().squeeze(0), slopes.squeeze(0)

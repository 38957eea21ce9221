"""`remaining_gain`: how much better than the point at hand another one may be, and when to stop."""

from __future__ import annotations

from typing import NamedTuple

import torch
from botorch.acquisition import PosteriorMean
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model
from botorch.utils.sampling import manual_seed, optimize_posterior_samples
from botorch.utils.transforms import is_ensemble
from scipy.stats import binom
from torch import Tensor

from botorch_calib._validation import (
    check_bounds,
    check_count,
    check_model,
    check_open_unit,
)
from botorch_calib.decisions.chance_constrained_search import checked_choices
from botorch_calib.decisions.recommendation import best_mean, check_place
from botorch_calib.models.wrapper import batch_shape_of

# Confidence in the quantile of the gain, of which there are finitely many draws.
_CONFIDENCE = 0.95
# Starts of the search for a path's maximum, of so many points.
_STARTS, _POINTS = 2, 512


class RemainingGain(NamedTuple):
    """What `remaining_gain` returns.

    Args:
        candidate: The point at hand, ``1 x d``.
        gains: How much better each draw of the objective is at its best point than at the
            candidate, in units of the objective, at least 0: a vector, increasing.
    """

    candidate: Tensor
    gains: Tensor

    def bound(self, delta: float = 0.05) -> float:
        """What is to be gained is at most this, with probability ``1 - delta`` of the model.

        It is the draw that exceeds the quantile at ``1 - delta`` of the gain with a confidence of
        95 %, by the binomial distribution; infinite if there are too few draws to say so.

        Args:
            delta: Probability, in (0, 1), with which more may be gained.

        Raises:
            InputDataError: If ``delta`` is malformed.
        """
        check_open_unit("delta", delta)
        num = len(self.gains)
        # The k-th smallest draw (k from 1) is below the quantile if k draws or more are.
        rank = int(binom.isf(1.0 - _CONFIDENCE, num, 1.0 - delta)) + 1
        return self.gains[rank - 1].item() if rank <= num else float("inf")


def remaining_gain(
    objective: Model,
    bounds: Tensor | None = None,
    choices: Tensor | None = None,
    candidate: Tensor | None = None,
    num_paths: int = 128,
    maximize: bool = True,
    seed: int = 0,
) -> RemainingGain:
    """How much better the noise-free objective may be elsewhere than at the point to stop at.

    Draws of the objective, functions on the whole domain, are maximised one by one; a gain is the
    maximum less the value at the candidate. So stop once ``remaining_gain(...).bound(delta) <=
    eps``: then the candidate is within ``eps`` of the best point with a stated probability of ``1 -
    delta``, as in [Wilson2024]_. The statement is that of the model, and as true as its intervals
    of the objective: of a model whose noise is understated it comes too early. A calibrated model
    states it from its calibrated distribution.

    Args:
        objective: A model of one outcome of which BoTorch's ``draw_matheron_paths`` draws paths:
            an exact Gaussian process, or a `CalibratedModel` or `CensoredDelayModel` of one.
        bounds: ``2 x d`` lower and upper bounds; None with ``choices``.
        choices: ``n x d``: the domain, if it is finite.
        candidate: The point at hand, ``1 x d`` (default: the best posterior mean).
        num_paths: Number of draws. A bound at ``delta`` takes at least ``3 / delta`` of them.
        maximize: Whether large values of the objective are good.
        seed: Seed of the draws.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.
        UnsupportedError: If there are no paths of the model.

    .. [Wilson2024]
        J. T. Wilson. Stopping Bayesian optimization with probabilistic regret bounds. Advances in
        Neural Information Processing Systems 37, 2024.
    """
    check_model(objective)
    num_paths = check_count("num_paths", num_paths, 1)
    if is_ensemble(objective) or batch_shape_of(objective):
        raise UnsupportedError(
            f"There are no single paths of a {type(objective).__name__} of several members: take "
            "an exact Gaussian process."
        )
    check_place(objective, bounds, choices, candidate=candidate)
    sign = 1.0 if maximize else -1.0
    with manual_seed(seed):
        if candidate is None:
            acqf = PosteriorMean(objective, maximize=maximize)
            candidate = best_mean(acqf, bounds, choices, raw_samples=_POINTS)
        paths = get_matheron_path_model(objective, sample_shape=torch.Size([num_paths]))
        if choices is not None:
            with torch.no_grad():
                best = (sign * paths(checked_choices(choices))).amax(dim=-2).squeeze(-1)
        else:
            _, best = optimize_posterior_samples(
                paths,
                check_bounds(bounds),
                raw_samples=_POINTS,
                num_restarts=_STARTS,
                sample_transform=lambda values: sign * values,
                return_transformed=True,
            )
    with torch.no_grad():
        here = sign * paths(candidate).reshape(num_paths)
        gains = (best.detach().reshape(num_paths) - here).clamp_min(0.0)
    return RemainingGain(candidate, gains.sort().values)

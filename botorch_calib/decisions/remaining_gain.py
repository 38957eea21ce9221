"""`remaining_gain`: how much better than the point at hand another one may be, and when to stop."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from botorch.acquisition import PosteriorMean
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.generation.gen import gen_candidates_scipy
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from botorch.utils.transforms import is_ensemble
from scipy.stats import binom
from torch import Tensor

from botorch_calib._validation import (
    check_bounds,
    check_count,
    check_flag,
    check_model,
    check_open_unit,
    check_precision,
    check_width,
)
from botorch_calib.decisions.chance_constrained_search import checked_choices, repeated_points
from botorch_calib.decisions.recommendation import best_mean, check_objective, check_place
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.inspection import like, observed_process, raw_train_inputs
from botorch_calib.optim.reasons_to_stop import without_reasons_to_stop

# Confidence in the quantile of the gain, of which there are finitely many draws.
_CONFIDENCE = 0.95
# Starts of the search for a path's maximum, of so many points.
_STARTS, _POINTS = 2, 512


class RemainingGain(NamedTuple):
    """What `remaining_gain` returns.

    Attributes:
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

    Pending points of a `CensoredDelayModel` are left out, since values that are made up would make
    it too sure.

    Args:
        objective: A model of one outcome, noise-free: a `CalibratedModel` with ``denoise=True``.
            With ``bounds``, one of which BoTorch's ``draw_matheron_paths`` draws single functions:
            an exact Gaussian process, or a calibrated one. With ``choices`` any, such as an
            ensemble or a fully Bayesian model, of each member of which there are ``num_paths``
            joint draws.
        bounds: ``2 x d`` lower and upper bounds, equal ones for a feature, such as a context, that
            is given; None with ``choices``.
        choices: ``n x d``: the domain, if it is finite.
        candidate: The point at hand, ``1 x d`` (default: the best posterior mean).
        num_paths: Number of draws. A bound at ``delta`` takes at least ``3 / delta`` of them.
        maximize: Whether large values of the objective are good.
        seed: Seed of the draws.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed, or not in the
            precision of the model.
        UnsupportedError: If there are no paths of the model, or several values at each point.

    Example:
        >>> gain = remaining_gain(model, bounds, num_paths=64)
        >>> done = gain.bound(delta=0.05) <= 0.1

    .. [Wilson2024]
        J. T. Wilson. Stopping Bayesian optimization with probabilistic regret bounds. Advances in
        Neural Information Processing Systems 37, 2024.
    """
    model: Any = check_model(objective)
    if isinstance(model, CensoredDelayModel):
        model = model.model
    check_objective(model)
    num_paths = check_count("num_paths", num_paths, 1)
    check_place(model, bounds, choices, candidate=candidate)
    domain = check_bounds(bounds) if choices is None else checked_choices(choices)
    name = "bounds" if choices is None else "choices"
    check_precision(name, domain, like(model, domain).dtype)
    sign = 1.0 if check_flag("maximize", maximize) else -1.0
    with manual_seed(seed), repeated_points():
        if candidate is None:
            acqf = PosteriorMean(model, maximize=maximize)
            candidate = best_mean(acqf, bounds, choices, raw_samples=_POINTS)
        check_width(candidate, domain.shape[-1])
        size = torch.Size([num_paths])
        path = _path(model, size)
        if choices is None:
            if path is None:
                raise UnsupportedError(
                    f"No single functions are drawn from a {type(model).__name__} on a box: give "
                    "`choices`, such as some hundred Sobol points and those observed."
                )
            gains = _gains_in_box(model, path, domain, candidate, sign)
        else:
            others = domain[(domain != candidate).any(dim=-1)]
            X = torch.cat([candidate, others])
            with torch.no_grad():
                samples = model.posterior(X).rsample(size).squeeze(-1) if path is None else path(X)
            draws = samples.flatten(0, -2)  # of each member of an ensemble as many rows
            gains = (sign * draws).amax(dim=-1) - sign * draws[:, 0]
    return RemainingGain(candidate, gains.sort().values)


def check_paths(delta: float, num_paths: int) -> tuple[float, int]:
    """Both, if a `RemainingGain.bound` at ``delta`` can be finite by so many draws."""
    delta = check_open_unit("delta", delta)
    least = math.ceil(math.log(1.0 - _CONFIDENCE) / math.log1p(-delta))
    if check_count("num_paths", num_paths) < least:
        raise InputDataError(
            f"`num_paths` must be at least {least} for a bound at `delta={delta:g}`, got "
            f"{num_paths}: fewer draws never say that one may stop."
        )
    return delta, int(num_paths)


def _path(model: Any, size: torch.Size) -> Any:
    """Functions drawn from a single model; None if BoTorch draws none, or there are several."""
    if is_ensemble(model):
        return None
    try:
        with torch.no_grad():
            return draw_matheron_paths(model, size)
    except NotImplementedError:
        return None


def _gains_in_box(model: Any, path: Any, bounds: Tensor, candidate: Tensor, sign: float) -> Tensor:
    """The gains of functions on a box, in no order.

    A part of a maximum that is not found would be a gain that is not seen. So a search starts at
    the best of points all over the box, ever closer to the candidate, and those observed: where the
    box is wide, hardly any other is better than the candidate.
    """
    spread, toward = draw_sobol_samples(bounds, n=2 * _POINTS, q=1).squeeze(-2).chunk(2)
    shares = torch.logspace(-3, 0, _POINTS).to(bounds).unsqueeze(-1)
    points = torch.cat([candidate, spread, torch.lerp(candidate, toward, shares)])
    known = raw_train_inputs(observed_process(model))
    if known is not None:
        points = torch.cat([points, known.to(points).clamp(bounds[0], bounds[1])])
    with torch.no_grad():
        values = sign * path(points)
    start, where = values.topk(_STARTS, dim=-1)
    with without_reasons_to_stop():
        _, found = gen_candidates_scipy(
            points[where],
            lambda X: sign * path(X),  # type: ignore[arg-type]
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            use_parallel_mode=False,
        )
    return torch.maximum(found.detach(), start).amax(dim=-1) - values[:, 0]

"""`recommend`: chooses a final point, with statements about its safety and value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from botorch.acquisition import PosteriorMean
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, Posterior
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_calib._validation import (
    check_flag,
    check_instance,
    check_model,
    check_open_unit,
    check_tensor,
)
from botorch_calib.calibration import NoCalibration
from botorch_calib.decisions import chance_constrained_search as search
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.exceptions import NotCertifiedWarning, warn
from botorch_calib.models import CalibratedModel
from botorch_calib.models.outcome_transforms import has_affine_outcomes
from botorch_calib.models.predict import slots_of
from botorch_calib.models.process import (
    check_fits,
    observed_process,
    raw_width,
    training_points,
    with_task_feature,
)
from botorch_calib.optim.feasible_search import evaluated, known_points
from botorch_calib.optim.region import LinearConstraints

# The largest number of competing points for whose selection a `Recommendation`'s statements are
# corrected, and the number of posterior draws at each point.
_RIVALS, _DRAWS = 500, 2000


class Recommendation(NamedTuple):
    """The result of `recommend`. All values are noise-free, in units of the objective.

    Attributes:
        candidate: The point, ``1 x d``.
        certified: Whether the quantile of each constrained outcome is within its limits at the
            candidate, with the given confidence.
        value: Mean of the objective at the candidate.
        lower: Lower end of the interval that contains the objective at the candidate with the given
            confidence.
        upper: Upper end of this interval.
        better: Probability that the candidate is better than the baseline, corrected for the
            selection of the candidate; None without a baseline.
        note: A text, empty unless the limits exclude a point with a better mean. It then names
            the outcome whose limits exclude this point, and suggests what to do.
    """

    candidate: Tensor
    certified: bool
    value: float
    lower: float
    upper: float
    better: float | None
    note: str


def recommend(
    objective: Model,
    constraint: ChanceConstraint | None = None,
    bounds: Tensor | None = None,
    choices: Tensor | None = None,
    confidence: float = 0.95,
    baseline: Tensor | None = None,
    maximize: bool = True,
    raw_samples: int = 512,
    fixed_features_list: Sequence[Mapping[int, float]] | None = None,
    inequality_constraints: LinearConstraints | None = None,
    equality_constraints: LinearConstraints | None = None,
) -> Recommendation:
    r"""Recommend a final point: the best mean of the objective among points that are safe.

    A `ChanceConstraint` bounds the violations of all rounds *together*, which says little about a
    single point. Here the quantile of each constrained outcome must be within the limits at the
    candidate itself, with the stated ``confidence``: see `ChanceConstraint.margin`. The model
    treats all data alike, so old data distort the result if the outcomes have changed since.

    The predicted value of the best of many points is biased towards better values. So the
    statements about the objective hold simultaneously for all points from which the candidate was
    selected (or for the 500 points with the best means). Let ``f_i`` be posterior draws at point
    ``i`` of these points, with mean ``m_i`` and standard deviation ``s_i``. At the candidate, the
    interval is ``m +- c s``, where ``c`` is the quantile, at ``confidence``, of
    ``max_i |f_i - m_i| / s_i`` over the draws. For ``better``, ``f_i``, ``m_i`` and ``s_i``
    describe improvements on the baseline, and the probability is the share of draws in which
    ``max_i (m_i - f_i) / s_i`` is below the candidate's ``m / s``. All statements depend on the
    models: check the models with `noise_diagnosis`, and the point with a `ConfirmationTest`.

    Args:
        objective: A model of the objective, without contexts among the inputs.
        constraint: A constraint on the same inputs, or on these inputs and contexts.
        bounds: ``2 x d`` lower and upper bounds; None with ``choices``.
        choices: The points ``n x d`` to choose from, in place of a search within ``bounds``.
        confidence: Confidence of each statement, in (0, 1).
        baseline: A point ``1 x d`` to compare with, such as the present setting.
        maximize: Whether larger values of the objective are better.
        raw_samples: Number of points sampled at the start of the search.
        fixed_features_list: As in `optimize_chance_constrained`.
        inequality_constraints: Linear constraints, as in `optimize_chance_constrained`.
        equality_constraints: Linear equality constraints, as in `optimize_chance_constrained`.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.
        UnsupportedError: If the objective is not a model, or has several values at each point.
        InfeasibilityError: If no point meets the linear constraints.

    Warns:
        NotCertifiedWarning: If no point is safe with this confidence.

    Example:
        >>> recommended = recommend(gp, constraint, bounds, baseline=X[:1])
        >>> stated = recommended.lower, recommended.upper, recommended.better
    """
    confidence = check_open_unit("confidence", confidence)
    if constraint is not None:
        check_instance("constraint", constraint, ChanceConstraint)
    _check_arguments(check_model(objective), constraint, bounds, choices, baseline)
    check_flag("maximize", maximize)
    acqf = posterior_mean(objective, maximize)
    margin = search.LeastMargin(constraint, confidence)
    place = search.Place(bounds, choices, None, inequality_constraints, equality_constraints)
    place = place._replace(raw_samples=raw_samples, fixed_features_list=fixed_features_list)
    candidate, certified = search.best_certified(acqf, margin, place)
    sign = 1.0 if maximize else -1.0
    with torch.no_grad(), search.repeated_points():
        X = torch.cat([candidate, _rivals(acqf, margin, place)])
        value, *ends, better = _stated(acqf.model, X, baseline, confidence, sign)
    best = ends[1] if maximize else ends[0]
    note = _in_the_way(acqf, margin, place, sign * best if certified else -math.inf)
    if not certified:
        warn(
            f"No point is certified with a confidence of {confidence:g}: the point returned may "
            f"meet the limits, without any guarantee. {note}",
            NotCertifiedWarning,
        )
    return Recommendation(candidate, certified, value, ends[0], ends[1], better, note)


def posterior_mean(objective: Model, maximize: bool) -> PosteriorMean:
    """The mean of the objective, as an acquisition function, under any outcome transform.

    BoTorch's posteriors of some transformed outcomes, such as a ``Bilog``, have no mean.
    """
    if slots_of(objective).calibrator is None and not has_affine_outcomes(
        observed_process(objective)
    ):
        objective = CalibratedModel(objective, NoCalibration())
    return PosteriorMean(objective, maximize=maximize)


def _in_the_way(
    acqf: PosteriorMean, margin: search.LeastMargin, place: search.Place, best: float
) -> str:
    """A text on the limits that exclude a value of ``acqf`` above ``best``; empty if none do."""
    constraint = margin.constraint
    if constraint is None:
        return ""
    hopeful, is_expected = search.best_certified(acqf, search.LeastMargin(constraint, 0.5), place)
    X = hopeful.unsqueeze(-2)
    value = evaluated(acqf, X).item()
    if value <= best:
        return ""
    with torch.no_grad():
        margins, units = constraint.margins(X, margin.confidence), constraint.typical_deviations()
        each = [(own / unit).item() for own, unit in zip(margins, units, strict=True)]
    name = [*constraint.limits][each.index(min(each))]
    if not is_expected:
        return f"No point is even expected to keep the limits of {name!r}: check them, and `level`."
    return (
        "Some points probably keep all limits, though not with the stated confidence. Their means "
        f"reach {value if acqf.maximize else -value:.4g}, and the limits of {name!r} exclude them. "
        "Measure there, or decide with an `expansion_share`, if it can be set."
    )


def _check_arguments(
    objective: Model,
    constraint: ChanceConstraint | None,
    bounds: Tensor | None,
    choices: Tensor | None,
    baseline: Tensor | None,
) -> None:
    """Raise unless the objective has one value at each point and the points fit the model."""
    observed = observed_process(objective)
    transform = getattr(observed, "input_transform", None)
    if objective.num_outputs > 1 or getattr(transform, "is_one_to_many", False):
        raise UnsupportedError(
            "`objective` must have one value at each point: pass the model of one outcome, without "
            "a one-to-many input transform. Fix a context by equal `bounds`."
        )
    if objective.batch_shape and not is_ensemble(objective):
        raise UnsupportedError(f"`objective` is a batch of models, {[*objective.batch_shape]}.")
    if baseline is not None and check_tensor("baseline", baseline).shape[:-1] != (1,):
        raise BotorchTensorDimensionError(
            f"`baseline` must have shape 1 x d, got {tuple(baseline.shape)}."
        )
    for name, X in {"bounds": bounds, "choices": choices, "baseline": baseline}.items():
        if X is None:
            continue
        if constraint is not None and constraint.num_contexts > 0:
            constraint.check_points(name, check_tensor(name, X))
            width, num = raw_width(observed), with_task_feature(observed, X).shape[-1]
            if width is not None and width > num:
                raise BotorchTensorDimensionError(
                    f"`objective` must be a model of the {num} columns of `{name}`, without the "
                    f"contexts of `constraint`, but has {width} inputs: fit a model to the "
                    "decisions alone."
                )
        check_fits(observed, check_tensor(name, X), name)


def _rivals(acqf: PosteriorMean, margin: search.LeastMargin, place: search.Place) -> Tensor:
    """Up to 500 certified points ``n x d`` with the best means: choices, or samples and data."""
    bounds = place.bounds
    if bounds is None:
        assert place.choices is not None
        X = place.choices
    else:
        X = draw_sobol_samples(bounds, n=2 * _RIVALS, q=1, seed=0)
        regions, known = place.regions(), training_points(acqf.model)
        within = [region.placed(X) for region in regions]
        within += [known_points(known, region) for region in regions]
        if regions[0].linear or regions[0].equal:  # few points may be left
            with manual_seed(0):
                within += [region.sample(_RIVALS) for region in regions]
        X = torch.cat(within).squeeze(-2)
    X = X[margin.certified.margins(X.unsqueeze(-2)) >= 0.0]
    if not len(X):
        return X
    values = evaluated(acqf, X.unsqueeze(-2))
    return X[values.topk(min(_RIVALS, len(X))).indices]


def _stated(
    objective: Model, X: Tensor, baseline: Tensor | None, confidence: float, sign: float
) -> tuple[float, float, float, float | None]:
    """Return the value, both ends of its interval, and ``better`` of the candidate ``X[0]``.

    The statements are corrected for the selection of the candidate among ``X``. ``sign`` is 1 if
    larger values of the objective are better, else -1.
    """
    # A multi-task model's task column may be omitted in one of the two, and present in the other.
    X, *more = (with_task_feature(objective, Z) for Z in (X, baseline) if Z is not None)
    X = torch.cat([X, *more])
    draws = _draws(objective.posterior(X))
    mean, better = draws.mean(dim=0), None
    if baseline is not None:
        # Draws at equal points differ by jitter, yet the baseline is no improvement on itself.
        signs = sign * (X[:-1] != X[-1]).any(dim=-1).to(draws)
        gain, expected = signs * (draws[:, :-1] - draws[:, -1:]), signs * (mean[:-1] - mean[-1])
        deviation = gain.std(dim=0).clamp_min(torch.finfo(gain.dtype).tiny)
        fallen = ((expected - gain) / deviation).amax(dim=-1)
        better = (fallen < expected[0] / deviation[0]).double().mean().item()
        draws, mean = draws[:, :-1], mean[:-1]
    deviation = draws.std(dim=0).clamp_min(torch.finfo(draws.dtype).tiny)
    reach = ((draws - mean).abs() / deviation).amax(dim=-1).quantile(confidence) * deviation[0]
    value = mean[0]
    return value.item(), (value - reach).item(), (value + reach).item(), better


def _draws(posterior: Posterior) -> Tensor:
    """Return joint draws of ``n`` values, at least ``_DRAWS x n``."""
    # The draws are divided among the members of a fully Bayesian model.
    num_members = posterior._extended_shape().numel() // posterior._extended_shape()[-2]
    unit = torch.ones(())
    if isinstance(posterior, GPyTorchPosterior):
        # GPyTorch adds jitter of a fixed size to covariances, and in the units of the outcome its
        # deviation may exceed that of the objective. So draw values of order 1, from a dense
        # covariance: of a lazy multiple, GPyTorch would factor the covariance before the multiple.
        normal = posterior.distribution
        covariance = normal.covariance_matrix
        if (largest := covariance.diagonal(dim1=-2, dim2=-1).amax()) > 0.0:
            unit, scaled = largest.sqrt(), to_linear_operator(covariance / largest)
            posterior = GPyTorchPosterior(MultivariateNormal(normal.mean / unit, scaled))
    with manual_seed(0):
        draws = posterior.rsample(torch.Size([-(-_DRAWS // num_members)]))
    return unit.to(draws) * draws.flatten(0, -3).squeeze(-1)

"""Outcome transforms as increasing maps, checks that they increase, and data before transforms.

The *targets* of a model are its outcomes after the outcome transform. The *normal score* of an
observation ``y`` is ``Phi^-1(F(y))``, with the predictive cdf ``F``. An increasing map of ``y``
does not change the score. Therefore a model with an increasing outcome transform is calibrated in
the space of its targets, and the calibrated distribution is mapped back to outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.transforms import ChainedOutcomeTransform, Standardize
from botorch.models.transforms.outcome import (
    Bilog,
    Log,
    OutcomeTransform,
    Power,
    StratifiedStandardize,
)
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_calib.models.process import like, observed_process, of_one_member, raw_train_inputs
from botorch_calib.posteriors import OutcomeMap
from botorch_calib.posteriors.outcome_maps import Affine

# Transforms are checked up to this distance from the training targets, in units of the targets'
# range. Farther away, where predictions are unlikely, a transform may decrease.
_BEYOND = 3.0
_CHECKED = 129  # number of points at which a transform is checked
_FARTHEST = 1e30  # a target in place of infinity, for which users' transforms may fail


def outcome_transform_of(model: object) -> Any:
    """Return a model's outcome transform; None if the model has none."""
    return getattr(model, "outcome_transform", None)


def has_affine_outcomes(model: object) -> bool:
    """Whether a model has no outcome transform, or an affine one."""
    transform = outcome_transform_of(model)
    return transform is None or transform._is_linear


class InverseTransform(OutcomeMap):
    """The inverse of a model's outcome transform: a map from targets to outcomes.

    Calling `target` requires the model to be in evaluation mode. ``X`` are the points at which an
    input-dependent transform is inverted (default: the training inputs).
    """

    def __init__(self, model: Any, X: Tensor | None = None) -> None:
        self._parts = list(_parts_of(model.outcome_transform))
        self._inputs = inputs_of_transform(model, X)

    def outcome(self, latent: Tensor) -> Tensor:
        for part in reversed(self._parts):
            latent = _backward(part, latent, self._inputs)
        return latent

    def latent(self, outcome: Tensor) -> Tensor:
        """Return the greatest targets whose outcomes do not exceed the given outcomes.

        The target is ``-inf`` if all outcomes of the map exceed the given outcome, and ``inf`` if
        none does. (If the map is constant in a tail, its extreme outcome has positive probability,
        which the cdf at this outcome must include.)
        """
        target = self.target(outcome)
        with torch.no_grad():
            far = torch.full_like(target, _FARTHEST)
            least, greatest = self.outcome(-far), self.outcome(far)
        target = torch.where(outcome < least, -torch.inf, target)
        return torch.where(outcome >= greatest, torch.inf, target)

    @torch.no_grad()
    def kinks(self, ref: Tensor) -> Tensor | None:
        """Return the sorted targets at which the map has kinks, ``num x 1 x 1``; None without any.

        ``ref`` gives the precision and the device. A ``Power`` or ``Bilog`` has a kink at 0. The
        inverse of a user's transform may have two kinks, where it becomes constant in the tails. If
        the map depends on inputs, each kink can be broadcast to ``batch_shape x q x 1``.
        """
        found = []
        for i, part in enumerate(self._parts):
            if type(part) is Log or part._is_linear:
                continue
            ends = [ref.new_zeros(1, 1)]
            if type(part) not in (Power, Bilog):
                far = torch.full_like(ends[0], _FARTHEST)
                ends = [_backward(part, end, self._inputs) for end in (-far, far)]
            for end in ends:
                for later in self._parts[i:]:
                    end = _forward(later, end, self._inputs)
                found.append(end.nan_to_num(_FARTHEST, posinf=_FARTHEST, neginf=-_FARTHEST))
        return torch.stack(torch.broadcast_tensors(*found)).sort(dim=0).values if found else None

    def target(self, outcome: Tensor) -> Tensor:
        """Return the targets of outcomes; not finite outside the outcome transform's domain."""
        for part in self._parts:
            outcome = _forward(part, outcome, self._inputs)
        return outcome


def inputs_of_transform(model: Any, X: Tensor | None = None) -> dict[str, Tensor]:
    """Return the keyword argument ``X`` of a model's outcome transform, if it depends on inputs.

    For other transforms the result is empty, as users' transforms need not accept ``X``. The points
    ``X`` are ``... x d`` (default: the training inputs).
    """
    parts = model.outcome_transform.modules()
    if not any(isinstance(part, StratifiedStandardize) for part in parts):
        return {}
    inputs = raw_train_inputs(model) if X is None else X
    return {} if inputs is None else {"X": inputs}


def outcome_map_of(process: Any, X: Tensor | None = None) -> OutcomeMap:
    """Return the inverse of a process's outcome transform: a map from targets to outcomes.

    If the transform depends on inputs, the map is for the points ``X``, ``batch_shape x q x d``,
    which include the task column (default: the training inputs).
    """
    transform = outcome_transform_of(process)
    if transform is None:
        return Affine()
    if type(transform) is Standardize:
        return Affine(transform.stdvs.double(), transform.means.double())
    if not transform._is_linear:
        if process.training:  # then `Standardize` would learn its moments from outcomes
            process.eval()
        return InverseTransform(process, X)
    strata = inputs_of_transform(process, X)
    ref = strata.get("X", process.train_targets)
    ones = ref.new_ones(*ref.shape[:-1], 1) if strata else ref.new_ones(1, 1)
    # The inverse of variance 1 is the squared scale factor. The difference between the inverses of
    # two values is the scale factor, too, but would lose digits.
    offset, squares = transform.untransform(torch.zeros_like(ones), ones, **strata)
    if squares is None:
        raise _not_affine(process)
    return Affine(squares.double().sqrt(), offset.double())


def _not_affine(process: object) -> UnsupportedError:
    return UnsupportedError(
        f"{type(process).__name__} has the outcome transform {transform_name(process)}, which "
        "declares itself affine (`_is_linear`) but is not: correct the declaration."
    )


def unit_of_targets(process: Any) -> Tensor:
    """Return the factor that scales deviations of training targets to units of the outcome.

    The factor is ``1 x 1``, or ``n x 1`` if the outcome transform depends on inputs. If the
    transform is not affine, ``UnsupportedError`` is raised.
    """
    outcome_map = outcome_map_of(process)
    if not isinstance(outcome_map, Affine):
        raise UnsupportedError(
            f"With the outcome transform {transform_name(process)}, predictions are not Gaussian "
            "in units of the outcome: use Standardize, and apply other transforms to the "
            "observations beforehand."
        )
    return outcome_map.scaled(process.train_targets.new_ones(1, 1)).detach()


def check_takes(model: Any, X: Tensor, Y: Tensor, name: str = "Y") -> None:
    """Raise ``InputDataError`` if an outcome is outside the domain of the outcome transform.

    The outcomes ``Y``, ``n x 1``, are at the points ``X``, ``n x d``. The error calls ``Y`` by the
    given ``name``.
    """
    if has_affine_outcomes(model):
        return
    targets = cast(InverseTransform, outcome_map_of(model, X)).target(Y)
    if not targets.isfinite().all():
        culprit = Y.expand_as(targets)[~targets.isfinite()][0]
        raise InputDataError(
            f"`{name}` has the value {culprit:g}, outside the domain of the outcome transform "
            f"{transform_name(model)} of this {type(model).__name__}: use values in its domain, or "
            "another transform, such as Bilog, which accepts all numbers."
        )


def raw_train_targets(model: Any) -> Tensor:
    """Return the training outcomes of a single-output model, ``n x 1``, before any transform."""
    targets = model.train_targets.unsqueeze(-1)
    is_plain = outcome_transform_of(model) is None
    return targets if is_plain else InverseTransform(model).outcome(targets)


@torch.no_grad()
def train_data(model: object) -> tuple[Tensor, Tensor]:
    """Return the training inputs ``n x d`` and outcomes ``n x 1`` of an exact GP.

    They are the data before any transform. For an ensemble they are the first member's data. For
    other processes both tensors are empty.
    """
    process = observed_process(model)
    inputs = raw_train_inputs(process)
    if inputs is None or not isinstance(process, ExactGP):
        return torch.zeros(0, 0), torch.zeros(0, 1)
    Y = raw_train_targets(process)
    return of_one_member(inputs), of_one_member(Y)


def transform_name(model: object) -> str:
    """Return the class names of the parts of a model's outcome transform, for errors."""
    return " and ".join(type(part).__name__ for part in _parts_of(outcome_transform_of(model)))


@torch.no_grad()
def check_increasing(model: Any) -> None:
    """Raise ``UnsupportedError`` unless a model's outcome transform increases.

    The inverse must increase strictly within the range of the training targets. Up to three times
    this range beyond either end, where predictions are likely, the inverse must not decrease. An
    outcome transform that declares itself affine must be affine.
    """
    transform = outcome_transform_of(model)
    if transform is None or type(transform) is Standardize:
        return
    model.eval()
    targets = getattr(model, "train_targets", None)
    targets = like(model, torch.zeros(1) if targets is None or not targets.numel() else targets)
    low, high = targets.min(), targets.max()
    length = torch.where(high > low, high - low, 1.0)
    steps = torch.linspace(0.0, 1.0, _CHECKED).to(length).view(-1, 1, 1)
    inverse = InverseTransform(model)
    among = inverse.outcome(low + steps * (high - low).clamp(min=1e-3))
    beyond = inverse.outcome(low - _BEYOND * length + steps * (1.0 + 2.0 * _BEYOND) * length)
    name, kind = transform_name(model), type(model).__name__
    if (among[1:] < among[:-1]).all():
        raise UnsupportedError(
            f"{kind} has the decreasing outcome transform {name}, which swaps the lower and the "
            "upper tail: negate the observations beforehand, or minimise in the acquisition "
            "function."
        )
    # Comparisons with NaN are false, so `not (... > ...).all()` also refuses NaN.
    if not ((among[1:] > among[:-1]).all() and (beyond[1:] >= beyond[:-1]).all()):
        raise UnsupportedError(
            f"{kind} has the outcome transform {name}, whose inverse does not increase among the "
            "training targets and beyond, where predictions are likely: let `untransform` be an "
            "increasing function of all numbers (for example constant outside its domain), or "
            f"apply {name} to the observations beforehand."
        )
    outcome_map = outcome_map_of(model)
    if isinstance(outcome_map, Affine) and not torch.allclose(
        outcome_map.outcome(targets.unsqueeze(-1).double()),
        inverse.outcome(targets.unsqueeze(-1)).double(),
        rtol=1e-4,
    ):
        raise _not_affine(model)


def _parts_of(transform: Any) -> Iterator[OutcomeTransform]:
    """Yield the parts of a transform, including nested chains, in the order of application."""
    if isinstance(transform, ChainedOutcomeTransform):
        for part in transform.values():
            yield from _parts_of(part)
    else:
        yield transform


def _forward(part: Any, Y: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    if type(part) is Power:
        if _is_odd(part.power):
            return Y.sign() * Y.abs().pow(part.power)
        Y = Y.masked_fill(Y < 0.0, torch.nan)  # an even power would make negative outcomes positive
    return part(Y, **inputs)[0]


def _backward(part: Any, Y: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    if type(part) is Power:
        # For a negative target, which is possible as predictions are Gaussian, BoTorch returns NaN
        # or a positive outcome. Instead, keep the sign, or use the smallest positive target.
        if _is_odd(part.power):
            return Y.sign() * Y.abs().pow(1.0 / part.power)
        Y = Y.clamp(min=torch.finfo(Y.dtype).tiny)  # at 0 the derivative would be NaN
    return part.untransform(Y, **inputs)[0]


def _is_odd(power: float) -> bool:
    """Whether ``power`` or its reciprocal is an odd integer, so that signs are preserved."""
    return any(abs(p - round(p)) < 1e-9 and round(p) % 2 == 1 for p in (power, 1.0 / power))

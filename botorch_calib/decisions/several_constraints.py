"""`joint_chance_constraints`: several outcomes within their limits together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model, ModelList
from torch import Tensor

from botorch_calib._validation import check_list
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constraints import ChanceConstraint
from botorch_calib.robust import AmbiguitySet, ContextDistribution


def joint_chance_constraints(
    models: Sequence[Model] | Model,
    limits: Sequence[tuple[float | None, float | None]],
    level: float = 0.9,
    width: float | None = None,
    budget: float = SIZE,
    records: Sequence[Iterable[Mapping[str, Any]]] | None = None,
    ambiguity: AmbiguitySet | None = None,
    contexts: ContextDistribution | Tensor | None = None,
) -> list[ChanceConstraint]:
    """Constraints on several outcomes that hold together with probability ``level``.

    They share ``1 - level``: at each point each limit gets a part by how probable it is to be
    violated there. Where one limit alone is in danger, its level is hardly above ``level``. A point
    is certified where all margins are at least 0. Budget and width are common: a point that
    violates several limits counts once, so that ``violation_bound(T) = (1 - level) T + budget +
    level`` is about points that violate any of them, among those that all have certified. Tell each
    of them its own outcome; a point counts as a violation until the last one has come.

    Args:
        models: A model for each outcome, on the same inputs, or a ``ModelList`` of them. A single
            one stands for a list of one.
        limits: ``(lower, upper)`` of each outcome, None for no limit.
        level: Joint level, in (0, 1).
        width: As in `ChanceConstraint`, of all of them.
        budget: As in `ChanceConstraint`, of all together.
        records: `ChanceConstraint.decisions` of each, to go on with.
        ambiguity: For all of them.
        contexts: For all of them.

    Raises:
        InputDataError: If ``models``, ``limits`` and ``records`` differ in number, or one is
            malformed.

    Example:
        >>> gps = ModelListGP(gp, SingleTaskGP(X, X.sum(dim=-1, keepdim=True)))
        >>> constraints = joint_chance_constraints(gps, [(None, 1.0), (0.2, 1.5)], level=0.9)
    """
    given: Any = models.models if isinstance(models, ModelList) else models
    several = [given] if isinstance(given, Model) else check_list("models", given, "models")
    pairs = check_list("limits", limits, "pairs `(lower, upper)`, one for each model")
    if not several or len(several) != len(pairs):
        raise InputDataError(
            f"`models` and `limits` must have the same positive length, got {len(several)} and "
            f"{len(pairs)}."
        )
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InputDataError("`limits` must hold a pair `(lower, upper)` for each model.")
    known: list[Any] = [()] * len(several)
    if records is not None:
        known = check_list("records", records, "lists of decisions, one for each model")
    if len(known) != len(several):
        raise InputDataError(
            f"`records` must hold a list of decisions for each of the {len(several)} models, got "
            f"{len(known)}."
        )
    made = [
        ChanceConstraint(model, upper, lower, level, width, budget, (), ambiguity, contexts)
        for model, (lower, upper) in zip(several, pairs, strict=True)
    ]
    for place, (constraint, own) in enumerate(zip(made, known, strict=True)):
        constraint._hold_together(made, place, own)
    _check_same_decisions([constraint._records for constraint in made], level)
    if records is None:
        for constraint in made:
            constraint._warn_of_earlier_decisions()
    return [*made]


def _check_same_decisions(records: Sequence[Sequence[Mapping[str, Any]]], level: float) -> None:
    """Raise unless records are about the same points, and levels of parts of ``1 - level``."""
    rows = [[(r["point"], r["certified"]) for r in own] for own in records]
    if any(row != rows[0] for row in rows):
        raise InputDataError("`records` must hold the same decisions for each constraint.")
    for number, row in enumerate(zip(*records, strict=True)):
        total = sum(1.0 - record["level"] for record in row)
        if not math.isclose(total, 1.0 - level, rel_tol=1e-3):
            raise InputDataError(
                f"Decision {number} of `records` is of the level {1.0 - total:g}, not {level}."
            )

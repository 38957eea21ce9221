"""`joint_chance_constraints`: several outcomes within their limits together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model, ModelList
from torch import Tensor

from botorch_calib._validation import check_count
from botorch_calib.decisions.budget import SIZE, Budget, check_level
from botorch_calib.decisions.chance_constraints import ChanceConstraint
from botorch_calib.robust import AmbiguitySet, ContextDistribution


def joint_level(level: float, num_constraints: int) -> float:
    """Level of each of several constraints that hold together with probability ``level``.

    By Bonferroni's inequality, ``1 - (1 - level) / num_constraints``, whatever the outcomes'
    dependence; it is cautious where they fail together.
    """
    num = check_count("num_constraints", num_constraints)
    return 1.0 - (1.0 - check_level(level)) / num


def joint_chance_constraints(
    models: Sequence[Model] | Model,
    limits: Sequence[tuple[float | None, float | None]],
    level: float = 0.9,
    budget: float = SIZE,
    records: Sequence[Iterable[Mapping[str, Any]]] | None = None,
    ambiguity: AmbiguitySet | None = None,
    contexts: ContextDistribution | Tensor | None = None,
) -> list[ChanceConstraint]:
    """Constraints on several outcomes that hold together with probability ``level``.

    Each states its own quantiles at `joint_level`. The budget is one of *points*: a point that
    violates several limits counts once, so that ``violation_bound(T) = (1 - level) T + budget +
    level`` is about points that violate any of them, among those that all have certified. (With
    budgets of their own the bounds would add up.) Tell each of them its own outcome; a point counts
    as a violation until the last one has come.

    Args:
        models: A model for each outcome, on the same inputs, or a ``ModelList`` of them. A single
            one stands for a list of one.
        limits: ``(lower, upper)`` of each outcome, None for no limit.
        level: Joint level, in (0, 1).
        budget: As in `ChanceConstraint`, like the last two.
        records: `ChanceConstraint.decisions` of each, to go on with.
        ambiguity: For all of them.
        contexts: For all of them.

    Raises:
        InputDataError: If ``models``, ``limits`` and ``records`` differ in number, or one is
            malformed.
    """
    if isinstance(models, ModelList):
        several = [*models.models]
    else:
        several = [models] if isinstance(models, Model) else [*models]
    if not several or len(several) != len(limits):
        raise InputDataError(
            f"`models` and `limits` must have the same positive length, got {len(several)} and "
            f"{len(limits)}."
        )
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in limits):
        raise InputDataError("`limits` must hold a pair `(lower, upper)` for each model.")
    level = check_level(level)
    each = joint_level(level, len(several))
    known = [None] * len(several) if records is None else [*records]
    if len(known) != len(several):
        raise InputDataError(
            f"`records` must hold a list of decisions for each of the {len(several)} models, got "
            f"{len(known)}."
        )
    shared: dict[str, Any] = {"budget": budget, "ambiguity": ambiguity, "contexts": contexts}
    made = [
        ChanceConstraint(model, upper, lower, each, records=own, **shared)
        for model, (lower, upper), own in zip(several, limits, known, strict=True)
    ]
    rows = [[(r["point"], r["certified"]) for r in constraint._records] for constraint in made]
    if any(row != rows[0] for row in rows):
        raise InputDataError("`records` must hold the same decisions for each constraint.")
    for place, constraint in enumerate(made):
        constraint._together, constraint._place = made, place
        constraint._budget = Budget(level, constraint._budget.size)
    return [*made]

"""Xopt: calibrated models for its Bayesian generators, and a generator under chance constraints.

It needs Xopt (``pip install botorch_calib[xopt]``). Xopt's ``StandardModelConstructor`` fits the
Gaussian processes. Then the calibrator of each outcome replays the rows of the data in their order.
Importing this module registers the generator, so that ``Xopt.from_file`` loads it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self
from uuid import uuid4

try:
    import yaml
    from gest_api.vocs import GreaterThanConstraint, LessThanConstraint, MaximizeObjective
    from pydantic import Field, PrivateAttr, field_serializer, field_validator, model_validator
    from xopt import Xopt
    from xopt.generators import generators
    from xopt.generators.bayesian.bayesian_generator import BayesianGenerator
    from xopt.generators.bayesian.models.standard import StandardModelConstructor
    from xopt.generators.bayesian.turbo import OptimizeTurboController, SafetyTurboController
    from xopt.pydantic import remove_none_values
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.xopt needs Xopt 3.2 or a later one that has what it imports "
        f"({error}): pip install botorch_calib[xopt]"
    ) from error
import pandas as pd
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model, ModelList
from gpytorch import Module
from torch import Tensor

from botorch_calib._validation import check_one_of, check_open_unit, check_positive
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.decisions import ChanceConstraint, Recommendation, recommend
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place
from botorch_calib.decisions.rows import DecisionAccount, is_outside
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.models import CalibratedModelList, stand_ins
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.posteriors.prediction import EXCESS

#: Under which Xopt stores them.
CONSTRUCTOR, GENERATOR = "calibrated", "chance_constrained"
# Our ids start with it. Other programs have their own, and no table may take ours for numbers.
_OURS = "decision-"
# The name of the books is that of Xopt's file with this at its end.
_BOOKS = ".decisions"
# The least distance from candidates that are out, relative to the widths of the bounds.
_APART = 0.01


class CalibratedModelConstructor(StandardModelConstructor):
    """Xopt's standard model constructor, with each outcome calibrated.

    It has the fields of ``StandardModelConstructor`` and the following; all are given by name.
    The model is a `CalibratedModelList`, with an outcome for each objective and constraint. Xopt's
    generators evaluate it by joint samples, except where a single candidate is asked for without
    constraints: BoTorch's analytic functions, used there, read its mean and variance alone.

    Args:
        calibrator: The class of the calibrator, by its name if it is one of this package. Each fit
            makes a new one for each outcome.
        calibrator_options: Arguments of the calibrator, plain values; ``alpha=0.2`` if there are
            none and it is a `LocalizedConformal`.
        denoise, residuals, excess: As in `CalibratedModel.from_history`.

    Raises:
        InputDataError: If an argument is unknown, or an option of the calibrator not a plain value.

    Example:
        >>> constructor = CalibratedModelConstructor(calibrator_options={"alpha": 0.2})
        >>> generator = ExpectedImprovementGenerator(vocs=vocs, gp_constructor=constructor)
    """

    name: str = Field(CONSTRUCTOR, frozen=True)
    calibrator: Any = Field("LocalizedConformal", description="class of the calibrators")
    calibrator_options: dict[str, Any] = Field({}, description="arguments of a calibrator")
    denoise: bool = Field(True, description="whether posteriors are of noise-free outcomes")
    residuals: str = Field("prequential", description="which residuals are replayed")
    excess: str = Field("noise", description="whose is the spread that the model does not state")

    @field_validator("calibrator")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return stored.stored_name(value) if isinstance(value, type) else value

    @field_validator("calibrator_options")
    @classmethod
    def _with_infinities(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Xopt writes an infinite number as a string."""
        return {k: math.inf if value == "inf" else value for k, value in options.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_one_of("residuals", self.residuals, RESIDUALS)
        check_one_of("excess", self.excess, EXCESS)
        stored.checked_options(stored.calibrator_class(self.calibrator), self.calibrator_options)
        return self

    def build_model(self, *args: Any, **kwargs: Any) -> CalibratedModelList:
        """The models that Xopt would have used, fitted by it and then calibrated."""
        kind = stored.calibrator_class(self.calibrator)
        return CalibratedModelList.from_history(
            super().build_model(*args, **kwargs),
            kind(**stored.checked_options(kind, self.calibrator_options)),
            denoise=self.denoise,
            residuals=self.residuals,
            excess=self.excess,
        )


class ChanceConstrainedGenerator(BayesianGenerator):
    """Candidates that meet the constraints of ``vocs`` with a stated probability, kept true.

    Each is the best one by the upper confidence bound of the objective among the points that
    a `ChanceConstraint` certifies, on the models of ``gp_constructor``. The generator has the
    fields of Xopt's Bayesian generators and the following; all are given by name. Trust regions,
    largest travel distances, fixed features and discrete variables hold as in these; contextual
    variables are expected to stay as in the latest row. Candidates keep apart from those that are
    out, which have their expected values.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified candidates violate a
    constraint, see `ChanceConstraint`. A certified candidate counts as a violation until the data
    have a row with its ``"_id"``, whatever settings were read back, or else one with its inputs;
    `withdraw` takes back candidates that were never run. Evaluate some 8 points for each variable
    first.

    Xopt writes ``decisions`` to its files after an evaluation. With ``books``, each decision is on
    the disk before the candidate is handed out. Processes that share a file wait for each other,
    and candidates of another one are out until their rows are added.

    An evaluation that knows only that an outcome is above a bound returns the bound, and 1 by the
    name of the outcome and ``_beyond``, -1 if it is below: see `ChanceConstraint.observe`.

    Args:
        level: Probability, in (0, 1), with which a candidate shall meet all constraints.
        budget: As in `ChanceConstraint`.
        max_half_widths: Largest half-width, by output, of the interval that holds the noise-free
            value with probability ``level``, so that candidates stay near the data, unless there
            is no such certified candidate.
        beta: Squared multiplier of the standard deviation in the upper confidence bound.
        raw_samples, num_restarts: As in `optimize_chance_constrained`.
        decisions: Those taken so far.
        books: Path of a file for the decisions, which the first one makes (default: the name of
            Xopt's ``xopt_dump_file`` with ``.decisions`` after it, or none without such a file).
        on_violation: Called with `last_safe` once new data violate a constraint; not stored.
        returns_id: Whether candidates have an ``"_id"`` (default: True). Without it rows are found
            by their settings: for evaluators that set whatever a candidate names.

    Raises:
        InputDataError: If a field is out of its range, ``vocs`` has no constraint or not one
            objective, or ``books`` cannot be read or written.
        ValueError: If new data have ids of decisions that are not among those taken.

    Warns:
        CalibrationWarning: If decisions are of another level or other constraints; if data have
            ids, and no decision was taken; if rows without ids are those of no candidate.
        NotCertifiedWarning: If a candidate is not certified.

    Example:
        >>> generator = ChanceConstrainedGenerator(vocs=vocs, level=0.9)
        >>> evaluator = Evaluator(function=lambda run: {"current": run["a"], "loss": run["a"]})
        >>> X = Xopt(generator=generator, evaluator=evaluator)
        >>> data = X.random_evaluate(16, seed=0)
        >>> X.step()
    """

    name = GENERATOR
    supports_batch_generation: bool = True
    supports_single_objective: bool = True
    supports_constraints: bool = True
    _compatible_turbo_controllers = [OptimizeTurboController, SafetyTurboController]
    level: float = Field(0.9, description="probability of meeting all constraints")
    budget: float = Field(SIZE, description="violations beyond the stated share")
    max_half_widths: dict[str, float] = Field({}, description="largest half-widths by output")
    beta: float = Field(4.0, description="squared multiplier of the upper confidence bound")
    raw_samples: int = Field(512, description="number of points sampled for the search")
    num_restarts: int = Field(4, description="number of points from which it climbs")
    decisions: list[dict[str, Any]] = Field([], description="decisions taken so far")
    books: str | None = Field(None, description="file of the decisions")
    on_violation: Callable[[dict[str, Any] | None], object] | None = Field(
        None, description="called with the last safe setting", exclude=True
    )
    _num_violating: int = PrivateAttr(0)

    @field_serializer("decisions")
    def _as_json(self, decisions: list[dict[str, Any]]) -> list[str]:
        return [*map(json.dumps, decisions)]  # which keeps None, that Xopt drops when it loads

    @field_validator("decisions", mode="before")
    @classmethod
    def _from_json(cls, decisions: list[Any]) -> list[Any]:
        return [json.loads(row) if isinstance(row, str) else row for row in decisions]

    @field_validator("books")
    @classmethod
    def _in_place(cls, books: str | None) -> str | None:
        """The same file, whatever the working directory becomes."""
        return books and os.path.abspath(os.path.expanduser(os.path.expandvars(books)))

    @model_validator(mode="before")
    @classmethod
    def _with_ids(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Candidates have ids by default, unlike those of Xopt's own generators."""
        return {"returns_id": True, **settings}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_open_unit("level", self.level)
        check_positive("budget", self.budget, allow_inf=True)
        if not self.vocs.constraint_names or len(self.vocs.objectives) != 1:
            raise InputDataError("`vocs` must have at least one constraint, and one objective.")
        for name, width in self.max_half_widths.items():
            check_positive(f"max_half_widths[{name!r}]", width)
            if name not in self.model_output_names:
                raise InputDataError(f"`max_half_widths` names {name!r}, which is no output.")
        return self

    def model_post_init(self, context: Any, /) -> None:
        """Read the books."""
        super().model_post_init(context)
        self.decisions = stored.with_books(self.books, self.decisions)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy, as Xopt makes one, but with the same ``on_violation``."""
        return super().__deepcopy__({**(memo or {}), id(self.on_violation): self.on_violation})

    def suggest(self, num_points: int | None = None) -> list[dict[Any, Any]]:
        """Xopt's `generate`; a single candidate by default."""
        return self.generate(1 if num_points is None else num_points)

    def generate(self, n_candidates: int) -> list[dict[Any, Any]]:
        """Xopt's, with the id of the decision about each candidate as its ``"_id"``."""
        self._call_if_violated()
        self._keep_books_beside_dump()
        candidates = super().generate(n_candidates)
        # The last ones, after points that Xopt interpolates.
        decided = self.decisions[-n_candidates:]
        for candidate, row in zip(candidates[-n_candidates:], decided, strict=True):
            candidate |= {stored.ID: row[stored.ID]} if self.returns_id else {}
        return candidates

    def _keep_books_beside_dump(self) -> None:
        """Name the ``books`` after the file that Xopt dumps to, if there are none.

        Xopt tells no generator about that file, so the caller's frames are asked.
        """
        frame = sys._getframe()
        while self.books is None and frame.f_back is not None:
            frame = frame.f_back
            owner = frame.f_locals.get("self")
            if isinstance(owner, Xopt) and owner.xopt_dump_file:
                self.books, num = owner.xopt_dump_file + _BOOKS, len(self.decisions)
                self.decisions = stored.with_books(self.books, self.decisions)
                if len(self.decisions) > num:
                    warnings.warn(
                        f"{self.books} has {len(self.decisions) - num} decisions that are not in "
                        "the dump. They count. If they are of another run, start with other "
                        "`books`.",
                        CalibrationWarning,
                        stacklevel=level_of_caller(),
                    )

    def add_data(self, new_data: pd.DataFrame) -> None:
        """Xopt's, which looks for the decisions that the rows belong to."""
        ours = [each for each in new_data.get(stored.ID, []) if str(each).startswith(_OURS)]
        self._check_known({*ours})
        before = sum(row["certified"] for row in self._out())
        super().add_data(new_data)
        is_own = before == 0 or before > sum(row["certified"] for row in self._out())
        if not is_own and len(ours) < len(new_data):
            warnings.warn(
                f"The new rows belong to none of the {before} certified candidates that are out, "
                f"which count as violations: a row needs the `{stored.ID}` that `generate` gave "
                "its candidate, or the same inputs. `withdraw` candidates that were never run.",
                CalibrationWarning,
                stacklevel=level_of_caller(),
            )
        self._call_if_violated()

    def outstanding(self) -> list[dict[str, Any]]:
        """The candidates without any outcome, as `generate` gave them."""
        names = {*self.model_input_names} - {*self.contextual_variables}
        rows = [({name: row["inputs"][name] for name in names}, row) for row in self._out()]
        return [{**inputs, stored.ID: row[stored.ID]} for inputs, row in rows]

    def withdraw(self, candidates: pd.DataFrame | Sequence[Mapping[str, Any] | str]) -> None:
        """Take back candidates that were never run: the bound then holds for the others.

        One that is run after all counts again. `outstanding` also lists candidates whose rows were
        removed from the data; those were run, so leave them out.

        Args:
            candidates: What `generate` gave, or the ids.

        Raises:
            InputDataError: If one of them is not out.
        """
        given: Any = candidates
        if isinstance(candidates, pd.DataFrame):
            given = candidates.to_dict("records")
        ids = [each if isinstance(each, str) else each.get(stored.ID) for each in given]
        if unknown := {*ids} - {row[stored.ID] for row in self._out()}:
            raise InputDataError(
                f"`candidates` have ids that are not out, {unknown}: give those of `outstanding`. "
                "With any outcome a candidate was run, and counts."
            )
        with stored.in_books(self.books, self.decisions) as decisions:
            for row in decisions:
                row |= {"withdrawn": True} if row[stored.ID] in ids else {}
        self.decisions = decisions

    def last_safe(self) -> dict[str, Any] | None:
        """The variables of the latest row within all limits, None if there is no such row."""
        safe = [i for i, violates in enumerate(self._violations()) if violates is False]
        return dict(self.data[self.vocs.variable_names].iloc[safe[-1]]) if safe else None

    def recommendation(
        self, confidence: float = 0.95, baseline: Mapping[str, float] | None = None
    ) -> tuple[dict[str, float], Recommendation]:
        """The setting to stop at, and what can be said of it, see `recommend`.

        ``get_optimum`` and the best row of the data prefer lucky settings. This one compares
        settings all over ``vocs`` by models of all data, with fixed features, and contexts as in
        the latest row.

        Args:
            confidence: Confidence of each statement, in (0, 1).
            baseline: A setting to compare with.

        Warns:
            NotCertifiedWarning: If no setting is safe with this confidence.
        """
        model, names = self.train_model(update_internal=False), self.model_input_names
        constraint, (objective, maximize) = self.chance_constraint(model), self._objective(model)
        space = self._space(self._get_torch_bounds())
        place, choices, at = space.place, None, None
        if space.values:
            choices = space.choices(objective, constraint, confidence, maximize)
        if baseline is not None:
            at = torch.tensor([[baseline[name] for name in names]], dtype=torch.double)
        stated = recommend(
            objective,
            constraint,
            bounds=place.bounds if choices is None else None,
            choices=choices,
            confidence=confidence,
            baseline=at,
            maximize=maximize,
            raw_samples=self.raw_samples,
            fixed_features_list=[place.fixed_features] if place.fixed_features else None,
        )
        return dict(zip(names, stated.candidate.squeeze(0).tolist(), strict=True)), stated

    def train_model(self, data: pd.DataFrame | None = None, update_internal: bool = True) -> Module:
        """Xopt's; if outcomes are only known to be beyond a bound, trained again on `stand_ins`."""
        model = super().train_model(data, update_internal)
        data = (self.get_training_data(self.data) if data is None else data).copy()
        bounds = [name for name in self.vocs.constraint_names if name + stored.BEYOND in data]
        for name in bounds:
            side = name + stored.BEYOND
            known = data[[*self.model_input_names, name]].notna().all(axis=1)
            own = data[known].fillna({side: 0.0})
            columns = self.model_input_names, [name], [side]
            told = (torch.tensor(own[each].to_numpy(dtype=float)) for each in columns)
            data.loc[known, name] = stand_ins(self._model_of(model, name), *told).flatten().numpy()
        return super().train_model(data, update_internal) if bounds else model

    def chance_constraint(self, model: Module | None = None) -> ChanceConstraint:
        """The constraint as it stands: its decisions, and models of all data, fitted if None."""
        model = self.train_model() if model is None else model
        models = {name: self._model_of(model, name) for name in self.vocs.constraint_names}
        return stored.constraint_of(self._account(), models)

    def propose_candidates(self, model: Module, n_candidates: int = 1) -> Tensor:
        """Certified candidates ``n x d``, each with the decision about it in ``decisions``."""
        if self.turbo_controller is not None:
            self.turbo_controller.update_state(self, n_candidates)
        names, (objective, maximize) = self.model_input_names, self._objective(model)
        space, inputs = self._space(self._get_optimization_bounds()), self.data[names]
        with stored.in_books(self.books, self.decisions) as decisions:  # none if it fails
            self.decisions = decisions
            out = torch.tensor([row["point"] for row in self._out()]).view(-1, len(names))
            pending = [out.to(space.place.bounds)]
            decided_in_turn = stored.decide_in_turn(
                partial(self._best, model, space, pending),
                self.chance_constraint(model),
                objective,
                pending[0],
                self.beta,
                maximize,
                names,
            )
            for point, row in islice(decided_in_turn, n_candidates):
                pending.append(point)
                row[stored.ID] = _OURS + uuid4().hex[:16]
                row["earlier"] = stored.num_near(row["point"], inputs)
                decisions.append(row)
        self.decisions = decisions
        columns = [names.index(name) for name in self._candidate_names]
        return torch.cat(pending[1:])[:, columns]

    def _get_acquisition(self, model: Module) -> AcquisitionFunction:
        objective, maximize = self._objective(model)
        return UpperConfidenceBound(objective, beta=self.beta, maximize=maximize)

    def _objective(self, model: Module) -> tuple[Model, bool]:
        """The model of the objective, and whether it is maximised."""
        ((name, objective),) = self.vocs.objectives.items()
        return self._model_of(model, name), isinstance(objective, MaximizeObjective)

    def _best(
        self,
        model: Module,
        space: MixedSpace,
        pending: list[Tensor],
        acqf: AcquisitionFunction,
        constraint: ChanceConstraint,
    ) -> tuple[Tensor, bool]:
        """The best point ``1 x d`` of the model's inputs, and whether it is certified."""
        score = NormalDist().inv_cdf(0.5 * (1.0 + self.level))
        widths = self.max_half_widths.items()
        deviations = [(self._model_of(model, name), width / score) for name, width in widths]
        (lower, upper), out = space.region.bounds, torch.cat(pending)
        found, certified = space.best(acqf, _Allowed(constraint, deviations, out, upper - lower))
        if certified or not len(out):
            return found, certified
        return space.best(acqf, _Allowed(constraint, deviations, out[:0], upper - lower))

    def _space(self, free: Tensor) -> MixedSpace:
        """The inputs of the model: candidates' within these bounds, the others held fixed."""
        names = self.model_input_names
        columns = [names.index(name) for name in self._candidate_names]
        bounds = free.new_zeros(2, len(names))
        bounds[:, columns] = free
        held = {**(self.fixed_features or {})}
        held |= {name: float(self.data[name].iloc[-1]) for name in self.contextual_variables}
        fixed = {names.index(name): value for name, value in held.items()}
        bounds = with_features(bounds, fixed)
        discrete = self._get_active_discrete_variable_values()
        values = {columns[place]: of_variable for place, of_variable in discrete.items()}
        for column, of_variable in values.items():  # some of which a trust region may exclude
            bounds[0, column], bounds[1, column] = of_variable[0], of_variable[-1]
        place = Place(bounds, None, fixed, None, None, self.num_restarts, self.raw_samples)
        return MixedSpace(place, values)

    def _model_of(self, model: Module, name: str) -> Model:
        assert isinstance(model, ModelList)
        return model.models[self.model_output_names.index(name)]

    def _account(self) -> DecisionAccount:
        remedy = (
            f"add their rows to the data, with the `{stored.ID}` that `generate` gave, and "
            "`generator.withdraw(...)` those of `generator.outstanding()` that were never run"
        )
        return stored.account_of(self._limits(), self.level, self.budget, self._trials(), remedy)

    def _limits(self) -> dict[str, Sequence[float | None]]:
        limits: dict[str, Sequence[float | None]] = {}
        for name, constraint in self.vocs.constraints.items():
            if isinstance(constraint, LessThanConstraint):
                limits[name] = None, constraint.value
            elif isinstance(constraint, GreaterThanConstraint):
                limits[name] = constraint.value, None
            else:
                limits[name] = constraint.range
        return limits

    def _trials(self) -> list[tuple[dict[str, Any], dict[str, float]]]:
        """Rows of decisions, and what came of each."""
        inputs, ids = self._table(self.model_input_names), self._table([stored.ID])[stored.ID]
        return stored.trials_in_table(self.decisions, inputs, self._outcomes(), ids)

    def _outcomes(self) -> pd.DataFrame:
        names = self.vocs.constraint_names
        return self._table([*names, *(name + stored.BEYOND for name in names)])

    def _table(self, columns: list[str]) -> pd.DataFrame:
        return (pd.DataFrame() if self.data is None else self.data).reindex(columns=columns)

    def _out(self) -> list[dict[str, Any]]:
        """Rows of decisions about candidates of which nothing is known."""
        names = self.vocs.constraint_names
        trials = self._trials()
        return [row for row, came in trials if all(pd.isna(came.get(name)) for name in names)]

    def _check_known(self, ids: set[str]) -> None:
        """Raise or warn if the generator does not know the decisions with these ids."""
        if not ids <= {row[stored.ID] for row in self.decisions}:
            self.decisions = stored.with_books(self.books, self.decisions)
        if unknown := ids - {row[stored.ID] for row in self.decisions}:
            message = (
                f"{len(unknown)} rows have the `{stored.ID}` of decisions that this generator does "
                "not know, so the count of violations starts without them. Load the file that Xopt "
                f"wrote, give the `books`, or leave the column `{stored.ID}` out."
            )
            if self.decisions:
                raise ValueError(message)
            warnings.warn(message, CalibrationWarning, stacklevel=level_of_caller())

    def _violations(self) -> list[bool | None]:
        """Whether each line of the data violates a limit, None if its outcomes do not say."""
        limits, lines = self._limits(), self._outcomes().to_dict("records")
        came = (stored.known_outcomes(limits, line, stored.sides_of(line)) for line in lines)
        return [is_outside(limits, **each) for each in came]

    def _call_if_violated(self) -> None:
        """Call ``on_violation`` if more rows violate a limit than at the last look."""
        if self.on_violation is None:
            return
        num, before = self._violations().count(True), self._num_violating
        self._num_violating = num
        if num > before:
            self.on_violation(self.last_safe())


class _Allowed(LeastMargin):
    """The least margin, negative where a noise-free value deviates by more than it may.

    It is also negative close to points ``n x d`` that are pending: noise apart, the same outcomes
    would come twice. Distances are relative to ``width``.
    """

    def __init__(
        self,
        constraint: ChanceConstraint,
        deviations: list[tuple[Any, float]],
        pending: Tensor,
        width: Tensor,
    ) -> None:
        super().__init__(constraint)
        self.deviations, self.pending, self.width = deviations, pending, width

    def forward(self, X: Tensor) -> Tensor:
        margin = super().forward(X)
        for model, largest in self.deviations:
            deviation = mean_and_deviation(model, X)[1].squeeze(-1).squeeze(-1)
            margin = torch.minimum(margin, 1.0 - deviation / largest)
        if len(self.pending):
            free = self.width > 0.0
            apart = ((X - self.pending)[..., free] / self.width[free]).norm(dim=-1).amin(dim=-1)
            margin = torch.minimum(margin, apart / _APART - 1.0)
        return margin


def load_xopt(file: str | Path) -> Xopt:
    """Load what ``Xopt.dump`` has written, also with the classes of this package.

    ``Xopt.from_file`` knows Xopt's own model constructors alone. A `ChanceConstrainedGenerator`
    without ``books`` gets ``FILE.decisions``, next to the file.

    Warns:
        CalibrationWarning: If the data have ids of decisions, and the generator knows none.

    Example:
        >>> generator = ChanceConstrainedGenerator(vocs=vocs)
        >>> run = Xopt(generator=generator, evaluator=Evaluator(function=deepcopy))  # or yours
        >>> run.dump("run.yaml")
        >>> run = load_xopt("run.yaml")
    """
    config = remove_none_values(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    generator = config["generator"]
    if generator["name"] == GENERATOR:
        generator.setdefault("books", f"{file}{_BOOKS}")
    constructor = generator.get("gp_constructor")
    if constructor is not None and constructor["name"] == CONSTRUCTOR:
        generator["gp_constructor"] = CalibratedModelConstructor(**constructor)
    return Xopt.model_validate(config)


generators[GENERATOR] = ChanceConstrainedGenerator

"""Calibrated models for Xopt's Bayesian generators, and a generator with chance constraints.

The module needs Xopt (``pip install botorch_calib[xopt]``). Xopt's ``StandardModelConstructor``
fits the Gaussian processes. Then the calibrator of each outcome replays the rows of the data, in
order. Importing this module registers the generator, so that ``Xopt.from_file`` can load it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self
from uuid import uuid4

try:
    import yaml
    from gest_api.vocs import (
        GreaterThanConstraint,
        LessThanConstraint,
        MaximizeObjective,
        MinimizeObjective,
    )
    from pydantic import Field, PrivateAttr, field_serializer, field_validator, model_validator
    from xopt import Xopt
    from xopt.generators import generators
    from xopt.generators.bayesian.bayesian_generator import BayesianGenerator
    from xopt.generators.bayesian.models.standard import StandardModelConstructor
    from xopt.generators.bayesian.turbo import OptimizeTurboController, SafetyTurboController
    from xopt.numerical_optimizer import GridOptimizer
    from xopt.pydantic import remove_none_values
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.xopt needs Xopt 3.2, or a later version with the names that "
        f"it imports ({error}): pip install botorch_calib[xopt]"
    ) from error
import pandas as pd
import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model, ModelList
from gpytorch import Module
from torch import Tensor

from botorch_calib._validation import check_count, check_nonnegative, check_positive
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.decisions import ChanceConstraint, Recommendation
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place
from botorch_calib.decisions.rows import is_outside
from botorch_calib.exceptions import warn
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.models import CalibratedModelList, stand_ins
from botorch_calib.models.predict import mean_and_deviation

#: The names under which Xopt stores these classes.
CONSTRUCTOR, GENERATOR = "calibrated", "chance_constrained"
# Prefix of the ids of decisions, which distinguishes them from ids of other programs and from
# numbers in a table.
_OURS = "decision-"
# Suffix that is appended to the name of Xopt's dump file to name the file of decisions.
_BOOKS = ".decisions"
# The least distance of a new candidate from pending candidates, relative to the widths of the
# bounds. A smaller distance is allowed only if no candidate at this distance is certified.
_APART = 0.01


class CalibratedModelConstructor(StandardModelConstructor):
    """Xopt's standard model constructor, followed by a calibration of each outcome.

    It has the fields of ``StandardModelConstructor`` and the following fields, all given by name.
    The model is a `CalibratedModelList`, with an outcome for each objective and constraint. Xopt's
    generators draw joint samples from this model. For a single candidate without constraints, they
    use BoTorch's analytic functions, which read only the mean and variance.

    Args:
        calibrator: The class of the calibrator, or the name of a class of this package. Each fit
            creates a new calibrator for each outcome.
        calibrator_options: Arguments of the calibrator by name, which must be numbers, strings,
            None or lists of these (default: ``alpha=0.2`` for a `LocalizedConformal`).
        denoise, residuals, excess: See `CalibratedModel.from_history`.

    Raises:
        InputDataError: If an argument is unknown, or an option is not a plain value.

    Example:
        >>> constructor = CalibratedModelConstructor(calibrator_options={"alpha": 0.2})
        >>> generator = ExpectedImprovementGenerator(vocs=vocs, gp_constructor=constructor)
    """

    name: str = Field(CONSTRUCTOR, frozen=True)
    calibrator: Any = Field("LocalizedConformal", description="class of the calibrators")
    calibrator_options: dict[str, Any] = Field({}, description="arguments of a calibrator")
    denoise: bool = Field(True, description="whether posteriors are of noise-free outcomes")
    residuals: str = Field("prequential", description="which residuals are replayed")
    excess: str = Field("noise", description="source of the spread beyond the model's")

    @field_validator("calibrator")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return stored.stored_name(value) if isinstance(value, type) else value

    @field_validator("calibrator_options")
    @classmethod
    def _with_infinities(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Restore infinite numbers, which Xopt writes as strings."""
        return {k: math.inf if value == "inf" else value for k, value in options.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        stored.settings_of(self.denoise, self.residuals, self.excess)
        stored.checked_options(stored.calibrator_class(self.calibrator), self.calibrator_options)
        return self

    def build_model(self, *args: Any, **kwargs: Any) -> CalibratedModelList:
        """Build and fit the models as Xopt does, then calibrate them."""
        kind = stored.calibrator_class(self.calibrator)
        return CalibratedModelList.from_history(
            super().build_model(*args, **kwargs),
            kind(**stored.checked_options(kind, self.calibrator_options)),
            **stored.settings_of(self.denoise, self.residuals, self.excess),
        )


class ChanceConstrainedGenerator(BayesianGenerator):
    """A generator of candidates that meet the constraints of ``vocs`` with a stated probability.

    A `ChanceConstraint` on the models of ``gp_constructor`` certifies points. Each candidate has
    the best upper confidence bound of the objective among certified points. The generator has the
    fields of Xopt's Bayesian generators and the following fields, all given by name. The settings
    ``numerical_optimizer`` and ``n_monte_carlo_samples`` are not used. Trust regions,
    largest travel distances, fixed features and discrete variables work as in Xopt's generators.
    Contextual variables are assumed to have the values of the latest row. Candidates keep a
    distance from pending candidates, which are assumed to yield their expected values.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified candidates violate a
    constraint, see `ChanceConstraint`. A certified candidate counts as a violation until the data
    contain its row. A candidate's row is a row with the candidate's ``"_id"``, even if the settings
    that were read back differ, or else a row with the candidate's inputs. `withdraw` takes back
    candidates that were never run. Evaluate about 8 points for each variable first.

    Xopt writes ``decisions`` to its files after an evaluation. With ``books``, each decision is
    written to disk before the candidate is returned. Processes that share a file wait for each
    other. The candidates of one process are pending in the other processes until their rows are
    added.

    If an evaluation shows only that an outcome is above a bound, the evaluator must return the
    bound. It must also return 1 (-1 for below) under the outcome's name with the suffix
    ``_beyond``: see `ChanceConstraint.observe`.

    Args:
        level: Probability, in (0, 1), with which a candidate shall meet all constraints.
        budget: See `ChanceConstraint`.
        max_half_widths: Largest half-width, by output, of the interval that contains the noise-free
            value with probability ``level``. This setting keeps candidates near the data. If no
            certified candidate meets it, the most informative point is chosen.
        beta: Squared multiplier of the standard deviation in the upper confidence bound.
        raw_samples, num_restarts: See `optimize_chance_constrained`.
        decisions: The decisions so far, one dictionary each.
        books: Path of a file for the decisions, which the first decision creates (default: Xopt's
            ``xopt_dump_file`` with the suffix ``.decisions``; without a dump file, decisions are
            not written to disk).
        on_violation: Function that is called if new data violate a constraint, with the result of
            `last_safe` as its argument. Data that are given to a new ``Xopt`` are new, too. Xopt's
            files do not contain the function.
        returns_id: Whether candidates have an ``"_id"`` (default: True). Without ids, rows are
            matched by settings. Use False if the evaluator applies each entry as a setting.

    Raises:
        InputDataError: If a field is out of its range, ``vocs`` has no constraint or not exactly
            one objective to be minimised or maximised, there is a ``custom_objective`` or a
            ``GridOptimizer``, or ``books`` cannot be read or written.
        ValueError: If new data have ids of decisions, and these decisions are not among the
            generator's ``decisions``.

    Warns:
        CalibrationWarning: If decisions have another level or other constraints; if data have ids,
            but there are no decisions; if rows without ids belong to no candidate.
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
    num_restarts: int = Field(4, description="number of starting points of the search")
    decisions: list[dict[str, Any]] = Field([], description="decisions taken so far")
    books: str | None = Field(None, description="file of the decisions")
    on_violation: Callable[[dict[str, Any] | None], object] | None = Field(
        None, description="called with the last safe setting", exclude=True
    )
    _violating: Counter[int] | None = PrivateAttr(None)  # hashes of rows that violate a limit
    _decided: list[str] = PrivateAttr([])  # ids of the candidates of the current or latest call

    @field_serializer("decisions")
    def _as_json(self, decisions: list[dict[str, Any]]) -> list[str]:
        return [*map(json.dumps, decisions)]  # keeps None, which Xopt would drop when it loads

    @field_validator("decisions", mode="before")
    @classmethod
    def _from_json(cls, decisions: list[Any]) -> list[Any]:
        return [json.loads(row) if isinstance(row, str) else row for row in decisions]

    @field_validator("books")
    @classmethod
    def _in_place(cls, books: str | None) -> str | None:
        """Return the absolute path, since the working directory may change."""
        return books and os.path.abspath(os.path.expanduser(os.path.expandvars(books)))

    @model_validator(mode="before")
    @classmethod
    def _with_ids(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Set ``returns_id`` to True by default, unlike Xopt's own generators."""
        return {"returns_id": True, **settings}

    @model_validator(mode="after")
    def _check(self) -> Self:
        stored.terms_of(self.level, self.budget)
        check_nonnegative("beta", self.beta)
        check_count("num_restarts", self.num_restarts)
        check_count("raw_samples", self.raw_samples)
        objectives = [*self.vocs.objectives.values()]
        has_direction = [isinstance(o, MinimizeObjective | MaximizeObjective) for o in objectives]
        if not self.vocs.constraint_names or has_direction != [True]:
            raise InputDataError(
                "`vocs` must have at least one constraint, and one objective to be minimised or "
                "maximised."
            )
        if self.custom_objective is not None:
            raise InputDataError(
                "`custom_objective` would be ignored: let the evaluator return its value, and make "
                "this outcome the objective in `vocs`."
            )
        if isinstance(self.numerical_optimizer, GridOptimizer):
            raise InputDataError(
                "`numerical_optimizer` would be ignored: set `raw_samples` and `num_restarts`."
            )
        for name, width in self.max_half_widths.items():
            check_positive(f"max_half_widths[{name!r}]", width)
            if name not in self.model_output_names:
                raise InputDataError(f"`max_half_widths` names {name!r}, which is not an output.")
        return self

    def model_post_init(self, context: object, /) -> None:
        """Read the decisions from the file ``books``."""
        super().model_post_init(context)
        self.decisions = stored.with_books(self.books, self.decisions)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy the generator as Xopt does, but do not copy the function ``on_violation``."""
        return super().__deepcopy__({**(memo or {}), id(self.on_violation): self.on_violation})

    def suggest(self, num_points: int | None = None) -> list[dict[Any, Any]]:
        """Return ``num_points`` candidates of `generate`; one candidate by default."""
        return self.generate(1 if num_points is None else num_points)

    def generate(self, n_candidates: int) -> list[dict[Any, Any]]:
        """Generate candidates; the ``"_id"`` of each candidate is the id of its decision."""
        self._call_if_violated()
        self._keep_books_beside_dump()
        self._decided = []
        try:
            candidates = super().generate(n_candidates)
        except Exception:
            if self._decided:  # after the decisions, Xopt checks discrete values and interpolation
                self.withdraw(self._decided)
            raise
        # Xopt may interpolate points before the decided candidates, so the decided candidates are
        # the last ones in the list.
        for candidate, own in zip(candidates[-n_candidates:], self._decided, strict=True):
            candidate |= {stored.ID: own} if self.returns_id else {}
        return candidates

    def _keep_books_beside_dump(self) -> None:
        """If ``books`` is None, derive its name from Xopt's dump file, and read the decisions.

        Xopt does not pass the name of its dump file to generators, so the method searches the call
        stack for the ``Xopt`` object.
        """
        frame = sys._getframe()
        while self.books is None and frame.f_back is not None:
            frame = frame.f_back
            owner = frame.f_locals.get("self")
            # While Xopt loads a file, it adds data before all fields of the `Xopt` object exist.
            file = vars(owner).get("xopt_dump_file") if isinstance(owner, Xopt) else None
            if file:
                self.books, num = file + _BOOKS, len(self.decisions)
                self.decisions = stored.with_books(self.books, self.decisions)
                if len(self.decisions) > num:
                    warn(
                        f"{self.books} has {len(self.decisions) - num} decisions that are not in "
                        "the dump. They count. If they belong to another run, use other "
                        "`books`."
                    )

    def add_data(self, new_data: pd.DataFrame) -> None:
        """Add rows to the data, and check that they belong to pending candidates.

        For the errors and warnings see the class.
        """
        self._call_if_violated()
        self._keep_books_beside_dump()
        ours = [each for each in new_data.get(stored.ID, []) if str(each).startswith(_OURS)]
        self._check_known({*ours})
        # The first data are those of a loaded run. They need not have rows of pending candidates.
        before = 0 if self.data is None else sum(row["certified"] for row in self._out())
        super().add_data(new_data)
        is_own = before == 0 or before > sum(row["certified"] for row in self._out())
        if not is_own and len(ours) < len(new_data):
            warn(
                f"The new rows belong to none of the {before} certified pending candidates, which "
                f"count as violations: a row needs the `{stored.ID}` of its candidate, or the same "
                "inputs. `withdraw` candidates that were never run."
            )
        self._call_if_violated()

    def outstanding(self) -> list[dict[str, Any]]:
        """Return the candidates without any outcome that were not withdrawn.

        They have the format of `generate`.
        """
        names = {*self.model_input_names} - {*self.contextual_variables}
        rows = [({name: row["inputs"][name] for name in names}, row) for row in self._out()]
        return [{**inputs, stored.ID: row[stored.ID]} for inputs, row in rows]

    def withdraw(self, candidates: pd.DataFrame | Sequence[Mapping[str, Any] | str]) -> None:
        """Take back candidates that were never run, so that they do not count as violations.

        If a withdrawn candidate is run after all, it counts again. `outstanding` also lists
        candidates whose rows were removed from the data. Do not withdraw such candidates, since
        they were run.

        Args:
            candidates: Candidates of `generate`, or their ids.

        Raises:
            InputDataError: If a candidate is not pending.
        """
        if isinstance(candidates, pd.DataFrame):
            candidates = candidates.to_dict("records")
        ids = [each.get(stored.ID) if isinstance(each, Mapping) else each for each in candidates]
        if unknown := {*ids} - {row[stored.ID] for row in self._out()}:
            raise InputDataError(
                f"`candidates` have ids that are not pending, {unknown}: see `outstanding`. A "
                "candidate with any outcome was run, and counts."
            )
        with stored.in_books(self.books, self.decisions) as decisions:
            for row in decisions:
                row |= {"withdrawn": True} if row[stored.ID] in ids else {}
        self.decisions = decisions

    def last_safe(self) -> dict[str, Any] | None:
        """Return the variables of the latest row within all limits; None without such a row."""
        safe = [i for i, violates in enumerate(self._violations()) if violates is False]
        return dict(self.data[self.vocs.variable_names].iloc[safe[-1]]) if safe else None

    def recommendation(
        self, confidence: float = 0.95, baseline: Mapping[str, float] | None = None
    ) -> tuple[dict[str, float], Recommendation]:
        """Recommend a final setting, and return it with the `Recommendation`.

        ``get_optimum`` and the best row of the data are biased towards settings with favourable
        noise. This method compares settings of the whole space by models of all data. Fixed
        features keep their values, and contexts have the values of the latest row.

        Args:
            confidence: Confidence of each statement in the `Recommendation`, in (0, 1).
            baseline: A setting to compare with: the value of each model input, by name.

        Raises:
            InputDataError: If ``baseline`` lacks an input.

        Warns:
            NotCertifiedWarning: If no setting is safe with this confidence.
        """
        model, names = self.train_model(update_internal=False), self.model_input_names
        constraint, (objective, maximize) = self.chance_constraint(model), self._objective(model)
        at = None
        if baseline is not None:
            if missing := [name for name in names if name not in baseline]:
                raise InputDataError(
                    f"`baseline` lacks {missing}: give the value of each model input, {names}."
                )
            at = torch.tensor([[baseline[name] for name in names]], dtype=torch.double)
        space = self._space(self._get_torch_bounds())
        stated = space.recommended(objective, constraint, confidence, maximize, at)
        return dict(zip(names, stated.candidate.squeeze(0).tolist(), strict=True)), stated

    def train_model(self, data: pd.DataFrame | None = None, update_internal: bool = True) -> Module:
        """Train the model as Xopt does.

        If some outcomes are known only to be beyond a bound, the model is trained again, with the
        values that `stand_ins` returns in place of these outcomes.
        """
        model = super().train_model(data, update_internal)
        data = (self.get_training_data(self.data) if data is None else data).copy()
        bounds = [name for name in self.vocs.constraint_names if name + stored.BEYOND in data]
        data = data.astype(dict.fromkeys(bounds, float))  # columns of integers take no other values
        for name in bounds:
            side = name + stored.BEYOND
            known = data[[*self.model_input_names, name]].notna().all(axis=1)
            own = data[known].fillna({side: 0.0})
            columns = self.model_input_names, [name], [side]
            given = (torch.tensor(own[each].to_numpy(dtype=float)) for each in columns)
            data.loc[known, name] = stand_ins(self._model_of(model, name), *given).flatten().numpy()
        return super().train_model(data, update_internal) if bounds else model

    def chance_constraint(self, model: Module | None = None) -> ChanceConstraint:
        """Return the current constraint, with all decisions that count.

        Its models are taken from ``model``, a result of ``train_model`` (default: a model of all
        data).
        """
        model = self.train_model() if model is None else model
        models = {name: self._model_of(model, name) for name in self.vocs.constraint_names}
        remedy = (
            f"add their rows to the data, with the `{stored.ID}` of each candidate, and "
            "`generator.withdraw(...)` candidates of `generator.outstanding()` that never ran"
        )
        limits, trials = self._limits(), self._trials()
        account = stored.account_of(limits, self.level, self.budget, trials, remedy)
        return stored.constraint_of(account, models)

    def propose_candidates(self, model: Module, n_candidates: int = 1) -> Tensor:
        """Choose candidates ``n x d``, and append the decisions about them to ``decisions``."""
        if self.turbo_controller is not None:
            self.turbo_controller.update_state(self, n_candidates)
        names, (objective, maximize) = self.model_input_names, self._objective(model)
        space = self._space(self._get_optimization_bounds())
        inputs = self.data[names].drop(columns=self.contextual_variables)
        with stored.in_books(self.books, self.decisions) as decisions:  # unchanged after an error
            self.decisions = decisions
            out = torch.tensor([row["point"] for row in self._out()]).view(-1, len(names))
            pending = [out.to(space.place.bounds)]
            for point, row in stored.decide_in_turn(
                n_candidates,
                partial(self._best, model, space, pending),
                self.chance_constraint(model),
                objective,
                pending[0],
                self.beta,
                maximize,
                names,
            ):
                pending.append(point)
                row[stored.ID] = _OURS + uuid4().hex[:16]
                row["earlier"] = int(stored.near(row["inputs"], inputs, precision=1)[0].sum())
                decisions.append(row)
        self.decisions = decisions
        self._decided = [row[stored.ID] for row in decisions[-n_candidates:]]
        columns = [names.index(name) for name in self._candidate_names]
        return torch.cat(pending[1:])[:, columns]

    def _get_acquisition(self, model: Module) -> AcquisitionFunction:
        objective, maximize = self._objective(model)
        return UpperConfidenceBound(objective, beta=self.beta, maximize=maximize)

    def _objective(self, model: Module) -> tuple[Model, bool]:
        """Return the model of the objective, and whether to maximise it."""
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
        """Return the best point ``1 x d`` of the model's inputs, and whether it is certified.

        The point must keep a distance from ``pending`` points. The search is repeated without this
        condition if no point is certified under it.
        """
        score = NormalDist().inv_cdf(0.5 * (1.0 + self.level))
        widths = self.max_half_widths.items()
        deviations = [(self._model_of(model, name), width / score) for name, width in widths]
        (lower, upper), out = space.region.bounds, torch.cat(pending)
        found, certified = space.best(acqf, _Allowed(constraint, deviations, out, upper - lower))
        if certified or not len(out):
            return found, certified
        return space.best(acqf, _Allowed(constraint, deviations, out[:0], upper - lower))

    def _space(self, free: Tensor) -> MixedSpace:
        """Return the space of the model's inputs, with ``2 x d`` bounds ``free`` of the variables.

        The other inputs, which are fixed features and contexts, are fixed at their values.
        """
        names = self.model_input_names
        columns = [names.index(name) for name in self._candidate_names]
        bounds = free.new_zeros(2, len(names))
        bounds[:, columns] = free
        held = {**(self.fixed_features or {})}
        held |= {name: float(self.data[name].iloc[-1]) for name in self.contextual_variables}
        bounds = with_features(bounds, {names.index(name): own for name, own in held.items()})
        discrete = self._get_active_discrete_variable_values()
        values = {columns[place]: of_variable for place, of_variable in discrete.items()}
        for column, of_variable in values.items():  # a trust region may exclude some values
            bounds[0, column], bounds[1, column] = of_variable[0], of_variable[-1]
        place = Place(bounds, num_restarts=self.num_restarts, raw_samples=self.raw_samples)
        return MixedSpace(place, values)

    def _model_of(self, model: Module, name: str) -> Model:
        assert isinstance(model, ModelList)
        return model.models[self.model_output_names.index(name)]

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
        """Return the row of each decision, and its outcomes by column; empty without a line."""
        inputs, ids = self._table(self.model_input_names), self._table([stored.ID])[stored.ID]
        contexts = self.contextual_variables
        return stored.trials_in_table(self.decisions, inputs, self._outcomes(), ids, contexts)

    def _outcomes(self) -> pd.DataFrame:
        names = self.vocs.constraint_names
        return self._table([*names, *(name + stored.BEYOND for name in names)])

    def _table(self, columns: list[str]) -> pd.DataFrame:
        return (pd.DataFrame() if self.data is None else self.data).reindex(columns=columns)

    def _out(self) -> list[dict[str, Any]]:
        """Return the rows of decisions about pending candidates, which have no outcome in the data.

        Withdrawn candidates without a row in the data are left out.
        """
        names = self.vocs.constraint_names
        return [row for row, came in self._trials() if all(pd.isna(came.get(n)) for n in names)]

    def _check_known(self, ids: set[str]) -> None:
        """Raise ``ValueError`` if the generator does not know the decisions with these ids.

        If the generator has no decisions at all, warn instead.
        """
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
            warn(message)

    def _violations(self) -> list[bool | None]:
        """Return, for each row of the data, whether it violates a limit; None if not known yet."""
        limits, lines = self._limits(), self._outcomes().to_dict("records")
        came = (stored.known_outcomes(limits, line, stored.sides_of(line)) for line in lines)
        return [is_outside(limits, **each) for each in came]

    def _call_if_violated(self) -> None:
        """Call ``on_violation`` if the data have new rows, since the last check, beyond a limit.

        Its argument is the result of `last_safe`. The first check only notes the rows. Clients may
        write outcomes into the data without `add_data`, so `generate` checks the data, too.
        """
        if self.on_violation is None:
            return
        inputs = self._table(self.model_input_names).astype(float)
        rows = pd.util.hash_pandas_object(inputs, index=False)
        before, known = self._violating, zip(rows.tolist(), self._violations(), strict=True)
        self._violating = Counter(row for row, violates in known if violates)
        if before is not None and self._violating - before:
            self.on_violation(self.last_safe())


class _Allowed(LeastMargin):
    """The least margin, which is also negative where one of two other conditions is violated.

    First, the standard deviation must not exceed the limit for each pair of a model and a limit in
    ``deviations``. Second, the point must not be close to ``pending`` points ``n x d``, since there
    it would repeat an outcome apart from noise. Distances are relative to ``width``, the widths
    ``d`` of the bounds.
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
    """Load an ``Xopt`` object, which may have classes of this package, from a file of its ``dump``.

    ``Xopt.from_file`` can load only Xopt's own model constructors. If a
    `ChanceConstrainedGenerator` has no ``books``, it gets the name of ``file`` with the suffix
    ``.decisions``.

    Raises:
        InputDataError: If the file has no generator, like one whose ``dump`` was interrupted.

    Warns:
        CalibrationWarning: If the data have ids of decisions, but the generator has no decisions.

    Example:
        >>> generator = ChanceConstrainedGenerator(vocs=vocs)
        >>> run = Xopt(generator=generator, evaluator=Evaluator(function=deepcopy))  # or yours
        >>> run.dump("run.yaml")
        >>> run = load_xopt("run.yaml")
    """
    config = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("generator"), dict):
        raise InputDataError(
            f"`file` must be a complete dump of an `Xopt`, but {str(file)!r} has no generator. Was "
            "the process killed while it wrote the file? Load an earlier dump."
        )
    config = remove_none_values(config)
    generator = config["generator"]
    if generator.get("name") == GENERATOR:
        generator.setdefault("books", f"{file}{_BOOKS}")
    constructor = generator.get("gp_constructor")
    if constructor is not None and constructor["name"] == CONSTRUCTOR:
        generator["gp_constructor"] = CalibratedModelConstructor(**constructor)
    return Xopt.model_validate(config)


generators[GENERATOR] = ChanceConstrainedGenerator

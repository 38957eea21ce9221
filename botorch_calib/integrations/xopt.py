"""Xopt: calibrated models for its Bayesian generators, and a generator under chance constraints.

It needs Xopt (``pip install botorch_calib[xopt]``). Xopt's ``StandardModelConstructor`` fits the
Gaussian processes. Then the calibrator of each outcome replays the rows of the data in their order.
Importing this module registers the generator, so that ``Xopt.from_file`` loads it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

try:
    from xopt import Xopt
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.xopt needs Xopt: pip install botorch_calib[xopt]"
    ) from error
import pandas as pd
import torch
import yaml
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model, ModelList
from gest_api.vocs import GreaterThanConstraint, LessThanConstraint, MaximizeObjective
from gpytorch import Module
from pydantic import Field, field_serializer, field_validator, model_validator
from torch import Tensor
from xopt.generators import generators
from xopt.generators.bayesian.bayesian_generator import BayesianGenerator
from xopt.generators.bayesian.models.standard import StandardModelConstructor
from xopt.pydantic import remove_none_values

from botorch_calib._validation import check_one_of, check_open_unit, check_positive
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.decisions import ChanceConstraint
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place
from botorch_calib.decisions.rows import DecisionAccount
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.models import CalibratedModelList, stand_ins
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.residuals import RESIDUALS
from botorch_calib.posteriors.prediction import EXCESS

#: Under which Xopt stores them.
CONSTRUCTOR, GENERATOR = "calibrated", "chance_constrained"


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
    largest travel distances, fixed features and discrete variables hold as in these.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified candidates violate a
    constraint, see `ChanceConstraint`. Xopt writes ``decisions`` to its files. A certified
    candidate counts as a violation until the data have a row with its inputs. Evaluate some 8
    points for each variable first.

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

    Raises:
        InputDataError: If a field is out of its range, or ``vocs`` has no constraint.

    Warns:
        CalibrationWarning: If decisions are of another level or other constraints.
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
    supports_contextual_variables: bool = False
    level: float = Field(0.9, description="probability of meeting all constraints")
    budget: float = Field(SIZE, description="violations beyond the stated share")
    max_half_widths: dict[str, float] = Field({}, description="largest half-widths by output")
    beta: float = Field(4.0, description="squared multiplier of the upper confidence bound")
    raw_samples: int = Field(512, description="number of points sampled for the search")
    num_restarts: int = Field(4, description="number of points from which it climbs")
    decisions: list[dict[str, Any]] = Field([], description="decisions taken so far")

    @field_serializer("decisions")
    def _as_json(self, decisions: list[dict[str, Any]]) -> list[str]:
        return [*map(json.dumps, decisions)]  # which keeps None, that Xopt drops when it loads

    @field_validator("decisions", mode="before")
    @classmethod
    def _from_json(cls, decisions: list[Any]) -> list[Any]:
        return [json.loads(row) if isinstance(row, str) else row for row in decisions]

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_open_unit("level", self.level)
        check_positive("budget", self.budget, allow_inf=True)
        if not self.vocs.constraint_names:
            raise InputDataError("`vocs` must have at least one constraint.")
        for name, width in self.max_half_widths.items():
            check_positive(f"max_half_widths[{name!r}]", width)
            if name not in self.model_output_names:
                raise InputDataError(f"`max_half_widths` names {name!r}, which is no output.")
        return self

    def train_model(self, data: pd.DataFrame | None = None, update_internal: bool = True) -> Module:
        """Xopt's, trained once more on `stand_ins` where outcomes are only known to be beyond."""
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
        decided_in_turn = stored.decide_in_turn(
            partial(self._best, model),
            self.chance_constraint(model),
            objective,
            self._get_optimization_bounds().new_zeros(0, len(names)),
            self.beta,
            maximize,
            names,
            len(self.data),
        )
        chosen = list(islice(decided_in_turn, n_candidates))
        self.decisions = [*self.decisions, *(row for _, row in chosen)]  # none if it fails
        columns = [names.index(name) for name in self._candidate_names]
        return torch.cat([point for point, _ in chosen])[:, columns]

    def _get_acquisition(self, model: Module) -> AcquisitionFunction:
        objective, maximize = self._objective(model)
        return UpperConfidenceBound(objective, beta=self.beta, maximize=maximize)

    def _objective(self, model: Module) -> tuple[Model, bool]:
        """The model of the objective, and whether it is maximised."""
        ((name, objective),) = self.vocs.objectives.items()
        return self._model_of(model, name), isinstance(objective, MaximizeObjective)

    def _best(
        self, model: Module, acqf: AcquisitionFunction, constraint: ChanceConstraint
    ) -> tuple[Tensor, bool]:
        """The best point ``1 x d`` of the model's inputs, and whether it is certified."""
        score, names = NormalDist().inv_cdf(0.5 * (1.0 + self.level)), self.model_input_names
        widths = self.max_half_widths.items()
        deviations = [(self._model_of(model, name), width / score) for name, width in widths]
        margin = _WithinDeviations(constraint, deviations)
        free = self._get_optimization_bounds()
        bounds = free.new_zeros(2, len(names))
        columns = [names.index(name) for name in self._candidate_names]
        bounds[:, columns] = free
        fixed = {names.index(name): value for name, value in (self.fixed_features or {}).items()}
        bounds = with_features(bounds, fixed)
        discrete = self._get_active_discrete_variable_values()
        values = {columns[place]: of_variable for place, of_variable in discrete.items()}
        for column, of_variable in values.items():  # some of which a trust region may exclude
            bounds[0, column], bounds[1, column] = of_variable[0], of_variable[-1]
        place = Place(bounds, None, fixed, None, None, self.num_restarts, self.raw_samples)
        return MixedSpace(place, values).best(acqf, margin)

    def _model_of(self, model: Module, name: str) -> Model:
        assert isinstance(model, ModelList)
        return model.models[self.model_output_names.index(name)]

    def _account(self) -> DecisionAccount:
        limits: dict[str, Sequence[float | None]] = {}
        for name, constraint in self.vocs.constraints.items():
            if isinstance(constraint, LessThanConstraint):
                limits[name] = None, constraint.value
            elif isinstance(constraint, GreaterThanConstraint):
                limits[name] = constraint.value, None
            else:
                limits[name] = constraint.range
        told = [each for each in self.data if str(each).removesuffix(stored.BEYOND) in limits]
        inputs, outcomes = self.data[self.model_input_names], self.data[told]
        trials = stored.trials_in_table(self.decisions, inputs, outcomes)
        return stored.account_of(limits, self.level, self.budget, trials)


class _WithinDeviations(LeastMargin):
    """The least margin, negative where a model's noise-free value deviates by more than it may."""

    def __init__(self, constraint: ChanceConstraint, deviations: list[tuple[Any, float]]) -> None:
        super().__init__(constraint)
        self.deviations = deviations

    def forward(self, X: Tensor) -> Tensor:
        margin = super().forward(X)
        for model, largest in self.deviations:
            deviation = mean_and_deviation(model, X)[1].squeeze(-1).squeeze(-1)
            margin = torch.minimum(margin, 1.0 - deviation / largest)
        return margin


def load_xopt(file: str | Path) -> Xopt:
    """Load what ``Xopt.dump`` has written, also with the classes of this package.

    ``Xopt.from_file`` knows Xopt's own model constructors alone.

    Warns:
        CalibrationWarning: If a `ChanceConstrainedGenerator` has data and no decisions in its file.

    Example:
        >>> generator = ChanceConstrainedGenerator(vocs=vocs)
        >>> run = Xopt(generator=generator, evaluator=Evaluator(function=deepcopy))  # or yours
        >>> run.dump("run.yaml")
        >>> run = load_xopt("run.yaml")
    """
    config = remove_none_values(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    generator = config["generator"]
    decides = generator["name"] == GENERATOR
    if decides and config.get("data") and not generator.get("decisions"):
        warnings.warn(
            "The file holds data and no decisions: the count of violations starts at 0.",
            CalibrationWarning,
            stacklevel=level_of_caller(),
        )
    constructor = generator.get("gp_constructor")
    if constructor is not None and constructor["name"] == CONSTRUCTOR:
        generator["gp_constructor"] = CalibratedModelConstructor(**constructor)
    return Xopt.model_validate(config)


generators[GENERATOR] = ChanceConstrainedGenerator

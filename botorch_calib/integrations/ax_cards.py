"""Analysis cards for Ax: the account of certified trials, calibration reports, noise diagnoses.

``client.compute_analyses([CertifiedTrials(), CalibrationReports(), NoiseDiagnoses()])`` shows the
cards. The client stores them with Ax's own cards.
"""

from __future__ import annotations

from typing import Any

from botorch_calib.integrations import ax_decisions as decisions

# isort: split
import pandas as pd
from ax.adapter.base import Adapter
from ax.adapter.torch import TorchAdapter
from ax.analysis.analysis import Analysis
from ax.analysis.utils import extract_relevant_adapter
from ax.core.analysis_card import AnalysisCard
from ax.core.experiment import Experiment
from ax.generation_strategy.generation_strategy import GenerationStrategy
from botorch.exceptions.errors import InputDataError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model

from botorch_calib._validation import check_open_unit
from botorch_calib.decisions.rows import Row, decision_of
from botorch_calib.diagnostics import calibration_report, noise_diagnosis
from botorch_calib.models.process import observed_process, raw_train_inputs


class _Card(Analysis):
    """Base class of cards with a table; if there are no models yet, the card shows an error.

    By default the table has the rows that ``_rows`` returns for the model of each metric.
    """

    title: str
    subtitle: str

    def validate_applicable_state(self, *args: Any, **kwargs: Any) -> str | None:
        return None

    def compute(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> AnalysisCard:
        fitted = extract_relevant_adapter(experiment, generation_strategy, adapter)
        if not isinstance(fitted, TorchAdapter):
            raise InputDataError("There are no models yet: run the initial trials first.")
        models = decisions.models_by_metric(fitted).items()
        rows = [{"metric": name, **row} for name, model in models for row in self._rows(model)]
        return self._create_analysis_card(self.title, self.subtitle, pd.DataFrame(rows))

    def _rows(self, model: Model) -> list[Row]:
        raise NotImplementedError


class CertifiedTrials(_Card):
    """A table of the trials that a chance constraint decided about, certified or not.

    It has the limits, predicted quantiles and outcomes of each trial. The subtitle gives the number
    of violations, its bound and the remaining budget. The client needs a
    `chance_constrained_generation_strategy`.

    Example:
        >>> client.configure_optimization("y", outcome_constraints=["heat <= 2"])
        >>> client.set_generation_strategy(chance_constrained_generation_strategy(client))
        >>> (card,) = client.compute_analyses([CertifiedTrials()], display=False)
    """

    title = "Certified trials and their outcomes"

    def compute(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> AnalysisCard:
        assert experiment is not None
        spec = decisions.certifying_spec(generation_strategy)
        settings, config = spec.generator_kwargs, decisions.absolute_config(spec, experiment)
        account = decisions.account_of(experiment, settings["acquisition_options"], config)
        decided = (each for each in decisions.decided_trials(experiment) if each.decision)
        rows = pd.DataFrame([_row(experiment, each) for each in decided])
        return self._create_analysis_card(self.title, account.summary(), rows)


def _row(experiment: Experiment, decided: decisions.DecidedArm) -> Row:
    assert decided.trial is not None
    row: Row = {
        "trial_index": decided.trial,
        "arm_name": decided.arm.name,
        "status": experiment.trials[decided.trial].status.name,
        "certified": decided.decision["certified"],
    }
    outcomes = {name: decided.outcomes.get(name) for name in decided.decision["limits"]}
    for name, limits in decided.decision["limits"].items():
        row[name] = outcomes[name]
        quantiles = decided.decision["quantiles"][name]
        for side, limit, quantile in zip(("lower", "upper"), limits, quantiles, strict=True):
            if limit is not None:
                row[f"{name}: {side} limit"] = limit
                row[f"{name}: {side} quantile"] = quantile
    row["open"] = None in outcomes.values()
    row["violated"] = decision_of({**decided.decision, "outcomes": outcomes}).violated
    return row


class CalibrationReports(_Card):
    """A table of each metric's `calibration_report`: the stated and actual coverage of intervals.

    Each observation is predicted from the observations of earlier trials.

    Args:
        alpha: Miscoverage, in (0, 1): the report scores central ``1 - alpha`` intervals.

    Example:
        >>> client.set_generation_strategy(calibrated_generation_strategy(client))
        >>> for x, c in torch.rand(8, 2).tolist():
        ...     status = client.complete_trial(client.attach_trial({"x": x, "c": c}), {"y": x - c})
        >>> cards = client.compute_analyses([CalibrationReports()], display=False)
    """

    title = "Calibration of the models"

    def __init__(self, alpha: float = 0.2) -> None:
        self.alpha = check_open_unit("alpha", alpha)
        self.subtitle = (
            f"The share of observations in the models' central {1.0 - alpha:.4g} intervals, each "
            "predicted from earlier observations."
        )

    def _rows(self, model: Model) -> list[Row]:
        report = calibration_report(model, alpha=self.alpha)
        return [
            {
                "stated by": name,
                "observations": report.num_observations,
                "stated coverage": 1.0 - self.alpha,
                "coverage": scores.coverage,
                "coverage, 95 % from": scores.coverage_interval[0],
                "to": scores.coverage_interval[1],
                "calibration error": scores.calibration_error,
            }
            for name, scores in report.forecasts.items()
        ]


class NoiseDiagnoses(_Card):
    """A table of each metric's noise: the value in its model, and the value that the data support.

    The supported value has the largest likelihood, see `noise_diagnosis`. A model of several tasks,
    such as sources of data or earlier experiments, has a row for each task. Noise is a standard
    deviation, in the units in which Ax passes the metric to its model. The metric is usually
    standardized, so that 1 is the standard deviation of all observations. ``multiplier``, which has
    no unit, applies to variances: multiply standard errors by its square root.

    Args:
        level: Confidence level of the intervals, in (0, 1).

    Example:
        >>> analyses = [NoiseDiagnoses()]  # pass them to `client.compute_analyses`
    """

    title = "Noise of the metrics"
    subtitle = (
        "If the stated noise is outside of the interval, the standard errors are too small or too "
        "large, or the model's fit has missed the noise: see the guide to diagnosis."
    )

    def __init__(self, level: float = 0.95) -> None:
        self.level = check_open_unit("level", level)

    def _rows(self, model: Model) -> list[Row]:
        gp = observed_process(model)
        tasks: list[int | None] = [None]
        if isinstance(gp, MultiTaskGPyTorchModel):
            inputs: Any = raw_train_inputs(gp)
            tasks = inputs[:, gp._task_feature].round().long().unique().tolist()
        found = [(task, noise_diagnosis(model, self.level, task)) for task in tasks]
        return [
            {
                "task": task,
                "given": noise.given,
                "observations": noise.num_observations,
                "stated": noise.stated,
                "supported": noise.supported,
                "from": noise.interval[0],
                "to": noise.interval[1],
                "multiplier": noise.multiplier,
            }
            for task, noise in found
        ]

"""Analysis cards for Ax, beside its own: books of certified trials, calibration reports, the noise.

``client.compute_analyses([CertifiedTrials(), CalibrationReports(), NoiseDiagnoses()])`` shows them,
and stores them where the client stores its own.
"""

from __future__ import annotations

from typing import Any

try:
    from ax.analysis.analysis import Analysis
    from ax.analysis.utils import extract_relevant_adapter
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.ax_cards needs Ax: pip install botorch_calib[ax]"
    ) from error
import pandas as pd
from ax.adapter.base import Adapter
from ax.core.analysis_card import AnalysisCard
from ax.core.experiment import Experiment
from ax.generation_strategy.generation_strategy import GenerationStrategy
from botorch.models.gpytorch import MultiTaskGPyTorchModel

from botorch_calib._validation import check_open_unit
from botorch_calib.diagnostics import calibration_report, noise_diagnosis
from botorch_calib.integrations.ax_decisions import (
    DecidedArm,
    certifying_spec,
    decided_trials,
    fitted_adapter,
    models_by_metric,
)
from botorch_calib.models.inspection import observed_process, raw_train_inputs


class _Card(Analysis):
    """An analysis for any state: where there is nothing to show, an error says so on its card."""

    def validate_applicable_state(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> str | None:
        """Ax's, which asks before it computes."""
        return None


class CertifiedTrials(_Card):
    """A row for each trial that was decided about: what was stated, and what came.

    ``quantile`` columns hold the quantiles that were compared with the limits. The subtitle counts
    violations, and says how many there may be and what is left of the budget. It is for a
    `chance_constrained_generation_strategy`, which is fitted to the data for it where limits are
    relative to a baseline.
    """

    def compute(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> AnalysisCard:
        """The card; errors become cards of their own."""
        assert experiment is not None
        spec = certifying_spec(generation_strategy)
        books = fitted_adapter(spec, experiment).books()
        rows = [_row(experiment, each) for each in decided_trials(experiment) if each.decision]
        title = "Certified trials, and what came of them"
        return self._create_analysis_card(title, str(books), pd.DataFrame(rows))


def _row(experiment: Experiment, decided: DecidedArm) -> dict[str, Any]:
    """What was stated of a trial, and what came."""
    assert decided.trial is not None
    row: dict[str, Any] = {
        "trial_index": decided.trial,
        "arm_name": decided.arm.name,
        "status": experiment.trials[decided.trial].status.name,
        "certified": decided.decision["certified"],
    }
    violated = []
    for name, stated in decided.decision["outcomes"].items():
        row[name] = y = decided.outcomes.get(name)
        sides = zip(("lower", "upper"), stated["limits"], strict=True)
        quantiles = iter(stated["quantiles"])
        for side, limit in sides:
            if limit is not None:
                row[f"{name}: {side} limit"] = limit
                row[f"{name}: {side} quantile"] = next(quantiles)
                if y is not None:
                    violated.append(y < limit if side == "lower" else y > limit)
    row["violated"] = any(violated) if violated else None
    return row


class CalibrationReports(_Card):
    """Whether what the models of the metrics state is true: a row of `calibration_report` each.

    Each observation is predicted from those of the trials before it.

    Args:
        alpha: The central ``1 - alpha`` intervals are judged, in (0, 1).
    """

    def __init__(self, alpha: float = 0.2) -> None:
        self.alpha = check_open_unit("alpha", alpha)

    def compute(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> AnalysisCard:
        """The card; errors become cards of their own."""
        fitted: Any = extract_relevant_adapter(experiment, generation_strategy, adapter)
        rows = []
        for metric, model in models_by_metric(fitted).items():
            report = calibration_report(model, alpha=self.alpha)
            for name, scores in report.forecasts.items():
                low, high = scores.coverage_interval
                rows.append(
                    {
                        "metric": metric,
                        "stated by": name,
                        "observations": report.num_observations,
                        "stated coverage": 1.0 - self.alpha,
                        "coverage": scores.coverage,
                        "coverage, 95 % from": low,
                        "to": high,
                        "calibration error": scores.calibration_error,
                    }
                )
        subtitle = (
            f"How many observations lay in the central {1.0 - self.alpha:.4g} intervals that the "
            "models state, each of them predicted from those before it."
        )
        return self._create_analysis_card("Calibration of the models", subtitle, pd.DataFrame(rows))


class NoiseDiagnoses(_Card):
    """The noise of each metric: stated by its model, and supported by the data (`noise_diagnosis`).

    Of a model of several tasks, such as sources of data or earlier experiments, there is a row for
    each. Noises are standard deviations, in the units in which Ax hands the metric to its model:
    standardized, as a rule, so that 1 is the spread of all observations. ``multiplier``, which has
    no unit, is for variances: multiply standard errors by its square root.

    Args:
        level: Level of the intervals, in (0, 1).
    """

    def __init__(self, level: float = 0.95) -> None:
        self.level = check_open_unit("level", level)

    def compute(
        self,
        experiment: Experiment | None = None,
        generation_strategy: GenerationStrategy | None = None,
        adapter: Adapter | None = None,
    ) -> AnalysisCard:
        """The card; errors become cards of their own."""
        fitted: Any = extract_relevant_adapter(experiment, generation_strategy, adapter)
        rows = []
        for metric, model in models_by_metric(fitted).items():
            for task in _tasks(model):
                found = noise_diagnosis(model, self.level, task).to_dict()
                low, high = found["interval"]
                row = {"metric": metric, "task": task, "given": found["given"]}
                row |= {"observations": found["num_observations"], "stated": found["stated"]}
                row |= {"supported": found["supported"], "from": low, "to": high}
                rows.append({**row, "multiplier": found["multiplier"]})
        subtitle = (
            "Where the stated noise lies outside of the interval, standard errors are too small or "
            "too large, or the model's fit has missed the noise: see the guide to diagnosis."
        )
        return self._create_analysis_card("Noise of the metrics", subtitle, pd.DataFrame(rows))


def _tasks(model: Any) -> list[int | None]:
    """The values of a model's task feature, or None alone."""
    gp: Any = observed_process(model)
    inputs: Any = raw_train_inputs(gp)
    if not isinstance(gp, MultiTaskGPyTorchModel):
        return [None]
    place: Any = gp._task_feature
    tasks: list[int | None] = inputs[:, place].round().long().unique().tolist()
    return tasks

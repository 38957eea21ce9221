"""Delay-aware proposals in Ax: its pending trials become those of a `CensoredDelayModel`.

It needs Ax (``pip install botorch_calib[ax]``). `DelayedUpperConfidenceBound` and
`DelayedThompsonSampling` condition their model on the pending points that Ax hands them, and the
model that is built here says how: by censoring or by hallucination. Candidates, trials that are
staged or run, and *abandoned* ones are pending to Ax; the latter keep the search away only if they
are censored. Ax hands over no times, so trials that hang stay pending until somebody abandons them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from botorch_calib.integrations.ax import (
    ReplayedModel,
    Replays,
    calibrated_or_plain,
    configured_experiment,
    model_within,
    strategy_with,
)

# isort: split
from ax.api.client import Client
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.experiment import Experiment
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular.surrogate import submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_model
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model

from botorch_calib._validation import check_flag, check_nonnegative, check_one_of
from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.asynchronous.delay_strategy import STRATEGIES
from botorch_calib.integrations._ax_acquisition import PendingAtEdges
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import observed_process

# Pending values have to be imputed, or the search would repeat itself.
IMPUTATIONS = ("censor", "hallucinate")

ACQUISITION_CLASSES: dict[str, type[AcquisitionFunction]] = {
    "ucb": DelayedUpperConfidenceBound,
    "ts": DelayedThompsonSampling,
}


class PendingAwareModel(Replays, CensoredDelayModel):
    """A model of the observed trials that knows how to be conditioned on pending ones.

    By itself nothing is pending, so Ax's predictions and its cross-validation are those of the
    model within. Censored values are the worst one observed so far.
    """

    def __init__(self, model: Model, imputation: str = "censor", maximize: bool = True) -> None:
        Y = raw_train_targets(observed_process(model))
        worst = Y.min() if maximize else Y.max()
        super().__init__(model, censor_value=worst.item(), imputation=imputation)
        if isinstance(model, Replays):
            self.residuals = model.residuals


def delayed_model_config(
    imputation: str = "censor", *, maximize: bool = True, calibrated: ModelConfig | None = None
) -> ModelConfig:
    """A configuration that has Ax model an outcome by its own Gaussian process, aware of delays.

    It is for `DelayedUpperConfidenceBound` and `DelayedThompsonSampling`;
    `delay_aware_generation_strategy` puts both together.

    Args:
        imputation: What replaces values of pending trials: ``"censor"`` for the worst one observed,
            ``"hallucinate"`` for the posterior mean.
        maximize: Whether the outcome is maximised.
        calibrated: A `calibrated_model_config`, or the configuration of a Gaussian process of
            Ax's; None for Ax's own.

    Example:
        >>> config = delayed_model_config("hallucinate", calibrated=calibrated_model_config())
    """
    check_one_of("imputation", imputation, IMPUTATIONS)
    inner = calibrated_or_plain(calibrated)
    return replace(
        inner,
        botorch_model_class=PendingAwareModel,
        model_options={
            "imputation": imputation,
            "maximize": check_flag("maximize", maximize),
            "calibrated": inner.botorch_model_class is ReplayedModel,
            "inner": dict(inner.model_options),
        },
        name="+".join(filter(None, [imputation, inner.name])),
    )


@submodel_input_constructor.register(PendingAwareModel)
def _pending_aware_inputs(
    botorch_model_class: type[Model], *, model_config: ModelConfig, **given: Any
) -> dict[str, Any]:
    """Arguments of `PendingAwareModel`: Ax's own model, or a calibrated one, not fitted yet."""
    options = dict(model_config.model_options)
    inner, is_calibrated = options.pop("inner"), options.pop("calibrated")
    kind = ReplayedModel if is_calibrated else None
    return {"model": model_within(kind, inner, model_config, **given), **options}


def delay_aware_generation_strategy(
    client: Client | Experiment,
    imputation: str = "hallucinate",
    calibrated: ModelConfig | None = None,
    beta: float | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
    acquisition: str = "ucb",
) -> GenerationStrategy:
    """Ax's generation strategy for one objective while other trials are pending.

    With ``imputation="censor"`` it is GP-UCB-SDF [Verma2022]_, with ``"hallucinate"`` GP-BUCB; with
    ``acquisition="ts"`` GP-TS-SDF and GP-BTS. ``max_censored`` and ``spread_beyond`` of a
    `DelayStrategy` do not apply.

    Mark trials *abandoned* whose points cannot be evaluated, or that hang. The point of a *failed*
    one may be tried again: if nothing has been observed meanwhile, the next trial is there.

    Args:
        client: A client or an experiment, whose optimisation has been configured.
        imputation: As of `delayed_model_config`. Where points cannot be evaluated, whose trials are
            abandoned, censor them.
        calibrated: A `calibrated_model_config`, to calibrate the model by the trials observed.
        beta: Factor of the posterior variance if nothing is pending, as in BoTorch's
            ``UpperConfidenceBound`` (default: that of `DelayAwareProposer`, 4 for
            ``"hallucinate"`` with ``"ucb"`` and 1 otherwise).
        struct: Ax's further choices, as of the initial trials, with the method ``"custom"``.
        acquisition: ``"ucb"`` for `DelayedUpperConfidenceBound`, ``"ts"`` for
            `DelayedThompsonSampling`, which needs a kernel with random features, as Ax's own.

    Raises:
        InputDataError: If nothing has been configured, or an argument is out of its range.
        UnsupportedError: If there is more than one objective, or draws are to be of observations.

    Example:
        >>> client.set_generation_strategy(delay_aware_generation_strategy(client))
        >>> running = client.get_next_trials(max_trials=3)
    """
    check_one_of("acquisition", acquisition, ACQUISITION_CLASSES)
    _, config = configured_experiment(client)
    if not config.objective.is_single_objective or config.outcome_constraints:
        raise UnsupportedError(
            "Delay-aware proposals are for one objective without outcome constraints: "
            "`calibrated_generation_strategy` takes account of pending trials too."
        )
    denoised = calibrated_or_plain(calibrated).model_options.get("denoise", True)
    if acquisition == "ts" and not denoised:
        raise UnsupportedError(
            "A draw of observations is no function of the parameters, as noise is drawn anew each "
            'time: use `acquisition="ucb"`, or a `calibrated_model_config` with `denoise=True`.'
        )
    maximize = not config.objective.minimize
    model_config = delayed_model_config(imputation, maximize=maximize, calibrated=calibrated)
    strategy, options = strategy_with(model_config, ACQUISITION_CLASSES[acquisition], struct)
    options["acquisition_class"] = PendingAtEdges
    if beta is None:
        widened = imputation == "hallucinate" and acquisition == "ucb"
        beta = STRATEGIES["hallucinate" if widened else acquisition].beta
    options["botorch_acqf_options"] = {"beta": check_nonnegative("beta", beta)}
    return strategy


register_model(PendingAwareModel)

"""Calibrated models in Ax, through its modular BoTorch generator.

It needs Ax (``pip install botorch_calib[ax]``). The Gaussian process of a calibrated model is the
one that Ax would have used: its choice of class, its transforms, data and fit. After the fit the
calibrator replays the trials in the order of their creation.

Importing this module teaches Ax to build and store these models: import it before loading an
experiment.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

try:
    from ax.api.client import Client
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.ax needs Ax: pip install botorch_calib[ax]"
    ) from error
from ax.adapter.registry import MBM_X_trans, Y_trans
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.winsorize import Winsorize
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.data_utils import ExperimentData
from ax.core.experiment import Experiment
from ax.core.optimization_config import OptimizationConfig
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.transform_registry import register_transform
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning

from botorch_calib._validation import check_instance
from botorch_calib.exceptions import level_of_caller
from botorch_calib.integrations._ax_acquisition import (
    ConstrainedClosedForm,
    SampledSums,
    check_acquisition,
)
from botorch_calib.integrations._ax_models import ReplayedModel, calibrated_model_config
from botorch_calib.integrations._stored_decisions import INFINITE

__all__ = [
    "ConstrainedClosedForm",
    "ReplayedModel",
    "SampledSums",
    "calibrated_generation_strategy",
    "calibrated_model_config",
]


class LeaveOutInfinite(Transform):
    """Leaves infinite values, which no model can be fitted to, out of the data as Ax does NaN."""

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        """The data, with NaN in place of infinite means."""
        observed = experiment_data.observation_data
        for metric, means in observed["mean"].items():
            infinite = means.abs() >= INFINITE
            if not infinite.any():
                continue
            trials = sorted({*means.index[infinite].get_level_values("trial_index")})
            warnings.warn(
                f"The metric {metric!r} is infinite in the trials {trials}: models leave these "
                "values out, and so do not learn to keep away. Report a finite value, such as the "
                "worst one possible, if they should.",
                InputDataWarning,
                stacklevel=level_of_caller(),
            )
            observed["mean", metric] = means.mask(infinite)
        return experiment_data


register_transform(LeaveOutInfinite)
# Ax's own, whose `Winsorize` leaves values infinite that are beyond all others on the good side.
TRANSFORMS: list[type[Transform]] = [*MBM_X_trans, *Y_trans]
TRANSFORMS.insert(TRANSFORMS.index(Winsorize) + 1, LeaveOutInfinite)


def calibrated_generation_strategy(
    client: Client | Experiment,
    model_config: ModelConfig | None = None,
    metric_configs: Mapping[str, ModelConfig] | None = None,
    botorch_acqf_class: type[AcquisitionFunction] | None = None,
    struct: GenerationStrategyDispatchStruct | None = None,
) -> GenerationStrategy:
    """Ax's generation strategy with calibrated models, checked against the experiment.

    Unless ``botorch_acqf_class`` is given Ax chooses the acquisition function. One objective under
    outcome constraints then has a closed form, `ConstrainedClosedForm`; a sum of metrics as the
    objective, and several objectives, are sampled. Pass ``qLogNoisyExpectedImprovement`` to sample
    in any case.

    Args:
        client: A client or an experiment, whose optimisation has been configured.
        model_config: Configuration of the models (default: `calibrated_model_config`).
        metric_configs: Other configurations for some of the metrics, by name. So a constraint can
            be on observations, ``calibrated_model_config(denoise=False)``, while the objective is
            noise-free.
        botorch_acqf_class: The acquisition function.
        struct: Ax's further choices, as of the initial trials, with the method ``"custom"``.

    Raises:
        InputDataError: If nothing has been configured, or ``metric_configs`` do not fit.
        UnsupportedError: If the objectives or constraints do not go with ``botorch_acqf_class``, a
            constraint is on several metrics, or the baseline has not been attached yet.

    Example:
        >>> client.set_generation_strategy(calibrated_generation_strategy(client))
        >>> trials = client.get_next_trials(max_trials=2)
    """
    experiment, optimization = configured_experiment(client)
    check_acquisition(optimization, botorch_acqf_class)
    for constraint in optimization.all_constraints:  # Ax would raise after the initial trials
        if constraint.relative and experiment.status_quo is None:
            raise UnsupportedError(
                f"{constraint} is relative to a baseline, and there is none: call "
                "`client.attach_baseline` first."
            )
    model_config = calibrated_model_config() if model_config is None else model_config
    check_instance("model_config", model_config, ModelConfig, "calibrated_model_config()")
    strategy, options = strategy_with(model_config, botorch_acqf_class, struct)
    by_signature = {}
    for name, config in (metric_configs or {}).items():
        if name not in experiment.metrics:
            known = ", ".join(map(repr, sorted(experiment.metrics)))
            raise InputDataError(f"`metric_configs` names {name!r}; the metrics are {known}.")
        given = f"metric_configs[{name!r}]"
        check_instance(given, config, ModelConfig, "calibrated_model_config()")
        by_signature[experiment.metrics[name].signature] = [config]
    options["surrogate_spec"] = SurrogateSpec(
        model_configs=[model_config], metric_to_model_configs=by_signature
    )
    options["acquisition_class"] = (
        ConstrainedClosedForm if botorch_acqf_class is None else SampledSums
    )
    return strategy


def strategy_with(
    model_config: ModelConfig,
    botorch_acqf_class: type[AcquisitionFunction] | None,
    struct: GenerationStrategyDispatchStruct | None,
) -> tuple[GenerationStrategy, dict[str, Any]]:
    """Ax's generation strategy, and the options of its generator after the initial trials."""
    strategy = choose_generation_strategy(
        GenerationStrategyDispatchStruct(method="custom") if struct is None else struct,
        model_config=model_config,
        botorch_acqf_class=botorch_acqf_class,
    )
    (spec,) = strategy.nodes_by_name["MBM"].generator_specs
    spec.generator_kwargs["transforms"] = TRANSFORMS
    return strategy, spec.generator_kwargs


def fitted_adapter(spec: GeneratorSpec, experiment: Experiment) -> Any:
    """The adapter of a part of a strategy, with models of all data."""
    _, config = configured_experiment(experiment)
    if missing := config.metric_names - experiment.lookup_data().metric_names:
        raise InputDataError(
            f"{sorted(missing)} have not been observed yet: complete a trial first."
        )
    spec.fit(experiment)
    return spec.fitted_adapter


def configured_experiment(client: Client | Experiment) -> tuple[Experiment, OptimizationConfig]:
    """The experiment and its objectives and constraints, which must have been configured."""
    experiment = client._experiment if isinstance(client, Client) else client
    if experiment.optimization_config is None:
        raise InputDataError(
            "`client` has nothing to optimise yet: call `client.configure_optimization` first."
        )
    return experiment, experiment.optimization_config

"""`RemainingGainStoppingStrategy`: when to stop an experiment of Ax."""

from __future__ import annotations

from typing import Any

from botorch_calib.integrations.ax import (
    calibrated_model_config,
    configured_experiment,
    experiment_with_one_objective,
    fitted_adapter,
)

# isort: split
import torch
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.core.experiment import Experiment
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.global_stopping.strategies.base import BaseGlobalStoppingStrategy
from ax.utils.common.constants import Keys
from ax.utils.common.random import with_rng_seed
from torch import Tensor

from botorch_calib._validation import check_count, check_positive
from botorch_calib.decisions import RemainingGain, remaining_gain
from botorch_calib.decisions.remaining_gain import check_paths
from botorch_calib.integrations._ax_acquisition import ConstrainedClosedForm
from botorch_calib.integrations._ax_own_search import OwnSearch
from botorch_calib.integrations._mixed_spaces import MixedSpace
from botorch_calib.integrations.ax_decisions import TRANSFORMS, in_own_units, models_by_metric


class _GainSearch(OwnSearch, ConstrainedClosedForm):
    """An acquisition of Ax that chooses the point to stop at, and keeps the remaining gain."""

    gain: RemainingGain

    @torch.enable_grad()
    def _chosen(self, n: int, space: MixedSpace) -> tuple[Tensor, Tensor]:
        region, place = space.region, dict[str, Any](bounds=space.region.bounds)
        if space.discrete or region.linear or region.equal:
            place = {"choices": space.points(self.surrogate.Xs[0].unsqueeze(-2))}
        self.gain = remaining_gain(**place, **self.options["gain"])
        return self.gain.candidate, torch.zeros(1)


class RemainingGainStoppingStrategy(BaseGlobalStoppingStrategy):
    """Stops an experiment once less than ``eps`` is to be gained, by a calibrated model of it.

    The model of all data of the objective states the `remaining_gain` over the search space, or
    over many points of it if there are discrete parameters or parameter constraints. The message
    names the parameters to stop at: Ax's best trial may merely have been lucky.

    Args:
        eps: In units of the objective's metric.
        delta: Probability of the model, in (0, 1), with which more may be gained.
        min_trials: Number of completed trials before which it does not stop: ten for each
            parameter, say.
        inactive_when_pending_trials: Whether it does not stop while trials run.
        model_config: Configuration of the model, with ``denoise=True`` if calibrated (default: a
            `calibrated_model_config` with ``excess="objective"``).
        num_paths: As in `remaining_gain`: at least ``3 / delta``.

    Attributes:
        gain: The last `RemainingGain`; its candidate is in Ax's transformed space.
        recommended: The parameters of that candidate; None before.

    Raises:
        InputDataError: If an argument is malformed.
        UnsupportedError: When asked, if the experiment has several objectives or constraints on
            outcomes.

    Example:
        >>> strategy = RemainingGainStoppingStrategy(eps=0.05, min_trials=8)
        >>> strategy.should_stop_optimization(client)[0]  # there are no trials yet
        False
    """

    gain: RemainingGain | None = None
    recommended: dict[str, Any] | None = None

    def __init__(
        self,
        eps: float,
        min_trials: int,
        delta: float = 0.05,
        inactive_when_pending_trials: bool = True,
        model_config: ModelConfig | None = None,
        num_paths: int = 128,
    ) -> None:
        super().__init__(check_count("min_trials", min_trials, 2), inactive_when_pending_trials)
        self.eps = check_positive("eps", eps)
        self.delta, self.num_paths = check_paths(delta, num_paths)
        if model_config is None:
            model_config = calibrated_model_config(excess="objective")
        self.model_config = in_own_units(model_config)

    def should_stop_optimization(
        self, experiment: Experiment | Client, **kwargs: Any
    ) -> tuple[bool, str]:
        """Ax's, of a client too: whether to stop, and why."""
        return super().should_stop_optimization(configured_experiment(experiment)[0], **kwargs)

    def _should_stop_optimization(self, experiment: Experiment) -> tuple[bool, str]:
        _, config = experiment_with_one_objective(
            experiment, "The remaining gain is that of one objective without constraints."
        )
        spec = GeneratorSpec(
            Generators.BOTORCH_MODULAR,
            generator_kwargs={
                "surrogate_spec": SurrogateSpec(
                    model_configs=[self.model_config], allow_batched_models=False
                ),
                "acquisition_class": _GainSearch,
                "transforms": TRANSFORMS,
            },
        )
        with with_rng_seed(0):
            adapter = fitted_adapter(spec, experiment)
            options = {
                "objective": models_by_metric(adapter)[config.objective.metric_names[0]],
                "maximize": not config.objective.minimize,
                "num_paths": self.num_paths,
            }
            run = adapter.gen(
                1, model_gen_options={Keys.AX_ACQUISITION_KWARGS.value: {"gain": options}}
            )
        gain: RemainingGain = adapter.generator._acquisition.gain
        self.gain, self.recommended = gain, run.arms[0].parameters
        bound = gain.bound(self.delta)
        return bound <= self.eps, (
            f"At most {bound:.4g} is to be gained over {self.recommended}, with a probability of "
            f"{1.0 - self.delta:g} of the model."
        )

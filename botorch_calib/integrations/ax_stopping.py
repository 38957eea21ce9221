"""`RemainingGainStoppingStrategy`: when to stop an experiment of Ax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from ax.global_stopping.strategies.base import BaseGlobalStoppingStrategy
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.ax_stopping needs Ax: pip install botorch_calib[ax]"
    ) from error
import torch
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.core.experiment import Experiment
from ax.core.search_space import SearchSpaceDigest
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.utils.common.constants import Keys
from ax.utils.common.random import with_rng_seed
from torch import Tensor

from botorch_calib._validation import check_count, check_open_unit, check_positive
from botorch_calib.decisions import RemainingGain, remaining_gain
from botorch_calib.integrations._ax_acquisition import ConstrainedClosedForm
from botorch_calib.integrations._ax_search_space import SearchedSpace
from botorch_calib.integrations.ax import (
    calibrated_model_config,
    configured_experiment,
    experiment_with_one_objective,
)
from botorch_calib.integrations.ax_decisions import TRANSFORMS, in_own_units, models_by_metric
from botorch_calib.optim.region import LinearConstraints


class _GainSearch(ConstrainedClosedForm):
    """An acquisition of Ax that answers by the point to stop at, and keeps what is left to gain."""

    gain: RemainingGain

    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: LinearConstraints | None = None,
        equality_constraints: LinearConstraints | None = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Callable[[Tensor], Tensor] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The point ``1 x d``, and no values."""
        space = SearchedSpace(
            search_space_digest,
            self.surrogate.Xs[0],
            inequality_constraints,
            equality_constraints,
            fixed_features or {},
            rounding_func,
        )
        choices = space.points() if space.discrete or space.linear or space.equal else None
        box = space.bounds if choices is None else None
        with torch.enable_grad():
            self.gain = remaining_gain(bounds=box, choices=choices, **self.options["gain"])
        return self.gain.candidate, torch.zeros(1), torch.ones(1)


class RemainingGainStoppingStrategy(BaseGlobalStoppingStrategy):
    """Stops an experiment once less than ``eps`` is to be gained, by a calibrated model of it.

    It fits the model to all data of the objective and asks `remaining_gain` over the search space,
    of spaces with discrete parameters or parameter constraints over many points of it. The message
    names the parameters to stop at: Ax's best trial may merely have been lucky.

    Args:
        eps: In units of the objective's metric.
        delta: Probability of the model, in (0, 1), with which more may be gained.
        min_trials: Number of completed trials before which it does not stop: ten for each
            parameter, say.
        inactive_when_pending_trials: Whether it does not stop while trials run.
        model_config: Configuration of the model, with ``denoise=True`` if calibrated (default: a
            `calibrated_model_config` with ``excess="objective"``).
        num_paths: As in `remaining_gain`.

    Attributes:
        gain: What `remaining_gain` said last; its candidate is in Ax's transformed space.
        recommended: The parameters of that candidate; None before.

    Raises:
        InputDataError: If an argument is malformed.
        UnsupportedError: When asked, if the experiment has several objectives or constraints on
            outcomes.
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
        self.eps, self.delta = check_positive("eps", eps), check_open_unit("delta", delta)
        if model_config is None:
            model_config = calibrated_model_config(excess="objective")
        self.model_config = in_own_units(model_config)
        self.num_paths = check_count("num_paths", num_paths)

    def should_stop_optimization(
        self, experiment: Experiment | Client, **kwargs: Any
    ) -> tuple[bool, str]:
        """Ax's, of a client too: whether to stop, and why."""
        return super().should_stop_optimization(configured_experiment(experiment)[0], **kwargs)

    def _should_stop_optimization(self, experiment: Experiment) -> tuple[bool, str]:
        _, config = experiment_with_one_objective(
            experiment, "What is left to gain is stated of one objective without constraints."
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
            spec.fit(experiment)
            adapter: Any = spec.fitted_adapter
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

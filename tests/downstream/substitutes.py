"""What takes the place of a client's own classes: a function for each client.

Each has to run before the client's tests are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any


def substitute_in_ax() -> None:
    """Each ``SingleTaskGP`` that Ax makes is calibrated."""
    from ax.generators.torch.botorch_modular import utils
    from ax.generators.torch.botorch_modular.surrogate import submodel_input_constructor
    from botorch.models import SingleTaskGP

    from botorch_calib.integrations.ax import ReplayedModel, calibrated_model_config

    class Calibrated(ReplayedModel):
        """By the default settings, whatever the configuration of the test."""

    ours, own_choice = calibrated_model_config(), utils.choose_model_class

    def choose_model_class(*args: Any, **kwargs: Any) -> Any:
        chosen = own_choice(*args, **kwargs)
        return Calibrated if chosen is SingleTaskGP else chosen

    @submodel_input_constructor.register(Calibrated)
    def _inputs(model_class: Any, model_config: Any, **kwargs: Any) -> Any:
        options = {**ours.model_options, **model_config.model_options}
        config = replace(model_config, model_options=options)
        return submodel_input_constructor(ReplayedModel, model_config=config, **kwargs)

    utils.choose_model_class = choose_model_class


def substitute_in_optuna() -> None:
    """The functions of optuna-integration that improve upon the best trials are calibrated."""
    import optuna_integration.botorch as public
    from optuna_integration.botorch import botorch as private

    from botorch_calib.integrations.optuna import calibrated_candidates_func

    for kind in ("logei", "qei", "qlogei", "qnei", "ehvi", "qehvi", "qnehvi"):
        # Another one for each, since tests compare their identities.
        function = calibrated_candidates_func(num_restarts=2, raw_samples=32)
        for module in (public, private):
            setattr(module, f"{kind}_candidates_func", function)


def substitute_in_xopt() -> None:
    """Generators whose models are by Xopt's standard constructor have calibrated ones."""
    from xopt.generators.bayesian import bayesian_generator
    from xopt.generators.bayesian.models.standard import StandardModelConstructor

    from botorch_calib.integrations.xopt import CalibratedModelConstructor

    Generator: Any = bayesian_generator.BayesianGenerator
    initialize = Generator.__init__

    def __init__(self: Any, **kwargs: Any) -> None:
        default = type(self).model_fields["gp_constructor"].default
        if type(default) is StandardModelConstructor:
            kwargs.setdefault("gp_constructor", CalibratedModelConstructor())
        initialize(self, **kwargs)

    Generator.__init__ = __init__


def substitute_in_baybe() -> None:
    """BayBE's Gaussian processes are calibrated, and those of several targets joined."""
    from baybe.surrogates import CompositeSurrogate, GaussianProcessSurrogate

    from botorch_calib import CalibratedModel, CalibratedModelList, LocalizedConformal

    own, joined = GaussianProcessSurrogate.to_botorch, CompositeSurrogate.to_botorch

    def to_botorch(self: Any) -> Any:
        return CalibratedModel.from_history(own(self), LocalizedConformal(0.2))

    def all_to_botorch(self: Any) -> Any:
        return CalibratedModelList(*joined(self).models)

    patched: Any = GaussianProcessSurrogate
    patched.to_botorch = to_botorch
    patched = CompositeSurrogate
    patched.to_botorch = all_to_botorch


SUBSTITUTES: dict[str, Callable[[], None]] = {
    "ax": substitute_in_ax,
    "optuna": substitute_in_optuna,
    "xopt": substitute_in_xopt,
    "baybe": substitute_in_baybe,
}

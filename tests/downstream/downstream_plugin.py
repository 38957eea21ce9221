"""A plugin of pytest that puts our classes in the place of a client's, and knows what differs.

``deviations.toml`` lists the tests that must fail, each with its reason. One of them that passes
fails the run, and so does an entry that no test matches, or a run without a calibrated model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

DEVIATIONS = Path(__file__).with_name("deviations.toml")


def substitute_in_ax() -> None:
    """Each ``SingleTaskGP`` that Ax makes is calibrated, and several are sampled together."""
    from ax.generators.torch.botorch_modular import acquisition, generator, utils
    from ax.generators.torch.botorch_modular.surrogate import submodel_input_constructor
    from ax.utils.common.testutils import TestCase
    from botorch.models import SingleTaskGP

    from botorch_calib.integrations.ax import ReplayedModel, SampledSums, calibrated_model_config

    class Acquisition(SampledSums):
        """By the name of Ax's own, by which tests patch it."""

        __module__ = acquisition.__name__

    for module in (acquisition, generator):
        vars(module)["Acquisition"] = Acquisition

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
    TestCase.MAX_TEST_SECONDS = 1200  # of 120, which is for a machine of one's own


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
    "blop": substitute_in_xopt,
    "baybe": substitute_in_baybe,
}


made = 0  # calibrated models so far


def count_models() -> None:
    """Count the calibrated models that are made of a history, as all substitutes make theirs."""
    from botorch_calib import CalibratedModel

    patched: Any = CalibratedModel
    own = patched.from_history.__func__

    def from_history(cls: Any, *args: Any, **kwargs: Any) -> Any:
        global made
        made += 1
        return own(cls, *args, **kwargs)

    patched.from_history = classmethod(from_history)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--client", required=True, choices=[*SUBSTITUTES])


def pytest_configure(config: pytest.Config) -> None:
    count_models()
    SUBSTITUTES[config.getoption("--client")]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that must fail, by ends of their names, parameters left out or not.

    They come last, as some that fail leave what they have patched.
    """
    client, last = config.getoption("--client"), []
    for entry in tomllib.loads(DEVIATIONS.read_text(encoding="utf-8")).get(client, []):
        for test in entry["tests"]:
            found = [
                item
                for item in items
                if item.nodeid.endswith(test) or item.nodeid.partition("[")[0].endswith(test)
            ]
            if not found:
                raise pytest.UsageError(f"{DEVIATIONS.name} lists {test}, which {client} has not.")
            for item in found:
                item.add_marker(pytest.mark.xfail(strict=True, reason=entry["reason"]))
            last += found
    items[:] = [item for item in items if item not in last] + last


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not made:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"{made} calibrated models were made.")

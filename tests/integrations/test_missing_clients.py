"""Without the client an integration says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("client", "package"),
    [
        ("ax", "ax.api.client"),
        ("optuna", "optuna_integration"),
        ("optuna", "optuna.trial"),
        ("xopt", "xopt"),
    ],
)
def test_the_error_says_what_to_install(
    client: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"botorch_calib.integrations.{client}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install botorch_calib\[{client}\]"):
        importlib.import_module(f"botorch_calib.integrations.{client}")


@pytest.mark.parametrize("module", ["optuna", "optuna_delays", "optuna_decisions"])
def test_an_earlier_optuna_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trials have no constraints."""
    trial = pytest.importorskip("optuna.trial")
    monkeypatch.setattr(trial, "FrozenTrial", object)
    for name in ("optuna", "optuna_delays", "optuna_decisions"):
        monkeypatch.delitem(sys.modules, f"botorch_calib.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match="needs Optuna 5, or a later version"):
        importlib.import_module(f"botorch_calib.integrations.{module}")

"""Without the client an integration says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("client", "package"),
    [("ax", "ax.api.client"), ("optuna", "optuna_integration"), ("xopt", "xopt")],
)
def test_the_error_says_what_to_install(
    client: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"botorch_calib.integrations.{client}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install botorch_calib\[{client}\]"):
        importlib.import_module(f"botorch_calib.integrations.{client}")

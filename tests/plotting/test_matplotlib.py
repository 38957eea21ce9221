"""Without matplotlib the error names the remedy, and no module imports it in advance."""

from __future__ import annotations

import importlib
import sys
from unittest.mock import patch

import pytest

from botorch_calib import plotting


def test_missing_matplotlib_is_explained(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install botorch_calib\\[plot\\]"):
        plotting.plot_regret({"a": [[1.0]]})


def test_the_package_and_the_module_do_not_import_matplotlib():
    with patch.dict(sys.modules):
        for name in [m for m in sys.modules if m.split(".")[0] in ("botorch_calib", "matplotlib")]:
            del sys.modules[name]
        importlib.import_module("botorch_calib.plotting")
        assert "matplotlib" not in sys.modules

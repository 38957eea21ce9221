"""Without matplotlib the error says what to do, and nothing imports it unasked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from botorch_calib import plotting


def test_missing_matplotlib_is_explained(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install botorch_calib\\[plot\\]"):
        plotting.plot_regret({"a": [[1.0]]})


def test_the_package_and_the_module_do_not_import_matplotlib():
    code = "import sys, botorch_calib.plotting; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0

"""Figures are drawn without a screen and closed after each test."""

import matplotlib
import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _agg():
    with matplotlib.rc_context():
        matplotlib.use("Agg", force=True)
        yield
        plt.close("all")

"""Only why a search stops is not shown."""

from __future__ import annotations

import warnings

from botorch.exceptions.warnings import OptimizationWarning

from botorch_calib.optim.search_warnings import without_search_warnings


def test_other_warnings_are_passed_on() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with without_search_warnings():
            warnings.warn("at its limit", OptimizationWarning, stacklevel=1)
            warnings.warn("of the model", UserWarning, stacklevel=1)
    assert [(str(w.message), w.filename) for w in caught] == [("of the model", __file__)]

"""Searches of BoTorch's without a word on why they stop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from botorch.exceptions.warnings import OptimizationWarning


@contextmanager
def without_search_warnings() -> Iterator[None]:
    """Pass on all warnings but those of why a search stops, for callers that check its end.

    BoTorch shows these whatever the filter, so all are caught.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for w in caught:
        if not issubclass(w.category, OptimizationWarning):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)

"""Contexts for callers who have switched autograd off; both serve as decorators too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Make tensors that outlive a call: autograd refuses those of ``inference_mode`` for ever.

    Within it, ``no_grad`` takes its place; elsewhere nothing changes.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    """Search by gradients, whatever the caller has switched off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def usable(X: torch.Tensor) -> torch.Tensor:
    """``X``, or a copy that autograd accepts if it was made in ``inference_mode``."""
    return X.clone() if X.is_inference() else X

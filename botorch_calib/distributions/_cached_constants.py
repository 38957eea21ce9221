"""`cached_constant`: tensors that depend on hashable arguments alone are made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_T = TypeVar("_T")


def cached_constant(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Keep the results of a function, since a copy to a device waits for it.

    They are made outside of inference mode, in which no graph could use them later.
    """
    return lru_cache(maxsize=128)(torch.inference_mode(False)(make))  # type: ignore[return-value]

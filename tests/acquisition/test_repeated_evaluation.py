"""Repeated evaluation of acquisition functions, as in a long search, leaks no memory.

Tests count live tensors instead of bytes, so the count is the same on every machine. Prediction
caches and the like are filled by the first evaluations; later evaluations must not add tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.test_device_discipline import ACQUISITIONS, decisions_of, value_and_gradient

#: Number of evaluations after which all caches are filled, BoTorch's included.
WARM_UP = 3
NUM = 4
#: More evaluations of the functions that most searches use.
MAIN = {"LogCalibratedExpectedImprovement": 30, "qLogCalibratedNoisyExpectedImprovement": 30}


@pytest.fixture(autouse=True)
def only_what_a_test_makes() -> None:
    """Exclude existing objects from garbage collection, which would take most of the time."""
    gc.freeze()


def num_live() -> int:
    """How many tensors are alive: those that cycles keep until they are collected do not count."""
    gc.collect()
    # By type: asking proxies of other modules for their class would import these
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


def num_kept(function: Callable[[Tensor], Tensor], points: Tensor, num: int) -> int:
    """How many tensors more are alive after ``num`` evaluations with gradients, each elsewhere."""
    shift = torch.zeros((), dtype=points.dtype)
    for step in range(WARM_UP + num):
        if step == WARM_UP:
            before = num_live()
        # Points differ each time, so that a cache by their values would grow.
        value_and_gradient(function, (points + shift).clamp(max=1.0))
        with torch.no_grad():
            function((points + shift).clamp(max=1.0))
        shift += 1e-4
    return num_live() - before


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_keeps_nothing(name: str) -> None:
    function = ACQUISITIONS[name]()
    assert num_kept(function, decisions_of(function), MAIN.get(name, NUM)) == 0


def test_other_batches_keep_nothing() -> None:
    """As a search does, whose number of starts shrinks: each size is met again and again."""
    function = ACQUISITIONS["qLogCalibratedNoisyExpectedImprovement"]()
    points = decisions_of(function)

    def several(shifted: Tensor) -> Tensor:
        return torch.cat([function(shifted[:num]) for num in range(1, len(points) + 1)])

    assert num_kept(several, points, 10) == 0

"""Searches side by side: the ends of searches one by one, with fewer evaluations; errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from botorch.generation.gen import gen_candidates_scipy
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.optim.batched_searches import Function, batched_searches

STARTS = torch.tensor([[0.1, 0.2], [0.7, 0.3], [0.2, 0.9], [0.4, 0.4]]).double().unsqueeze(-2)


class Counted:
    """A function that records the sizes and threads of its evaluations."""

    def __init__(self, function: Function) -> None:
        self.function, self.sizes, self.threads = function, [], set()  # type: ignore[var-annotated]

    def __call__(self, X: Tensor) -> Tensor:
        self.sizes.append(len(X))
        self.threads.add(threading.get_ident())
        return self.function(X)


def wavy(X: Tensor) -> Tensor:
    return (5 * X[..., 0, 0]).sin() + (7 * X[..., 0, 1]).cos() - X.square().sum(dim=(-2, -1))


def inside(X: Tensor) -> Tensor:
    """Positive within a circle."""
    return 0.5 - (X - 0.3).square().sum(dim=(-2, -1))


def search(start: Tensor, functions: list[Function]) -> Tensor:
    end, _ = gen_candidates_scipy(
        start,
        functions[0],  # type: ignore[arg-type]
        lower_bounds=0.0,
        upper_bounds=1.0,
        nonlinear_inequality_constraints=[
            (lambda x: functions[1](x.view(1, 1, -1)).squeeze(0), True)
        ],
        options={"maxiter": 50},
    )
    return end


def test_ends_are_those_of_searches_one_by_one() -> None:
    functions = [Counted(wavy), Counted(inside)]
    ends = batched_searches(functions, STARTS, search)
    alone = [Counted(wavy), Counted(inside)]
    expected = torch.cat([search(start, [*alone]) for start in STARTS.split(1)])
    assert_close(ends, expected, rtol=0, atol=1e-9)
    assert torch.equal(batched_searches(functions, STARTS, search), ends)
    for together, one_by_one in zip(functions, alone, strict=True):
        assert max(together.sizes) == 4 and len(together.sizes) < len(one_by_one.sizes)
        assert together.threads == {threading.get_ident()}
    assert_close(batched_searches(functions, STARTS[:1], search), ends[:1], rtol=0, atol=1e-9)


def test_errors_are_passed_on() -> None:
    """Errors of a function, and errors of one search while other searches run."""

    def breaks(X: Tensor) -> Tensor:
        raise ValueError("no value")

    with pytest.raises(ValueError, match="no value"):
        batched_searches([breaks, inside], STARTS, search)
    ended: list[Any] = []

    def second_fails(start: Tensor, functions: list[Function]) -> Tensor:
        functions[0](start)
        if torch.equal(start, STARTS[1:2]):
            raise ArithmeticError("at this start")
        end = search(start, functions)
        ended.append(end)
        return end

    with pytest.raises(ArithmeticError, match="at this start"):
        batched_searches([wavy, inside], STARTS, second_fails)
    assert len(ended) == 3


def test_a_search_that_cannot_be_started_ends_those_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoSecondThread(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if self._threads:
                raise RuntimeError("can't start new thread")
            return super().submit(*args, **kwargs)

    monkeypatch.setattr("botorch_calib.optim.batched_searches.ThreadPoolExecutor", NoSecondThread)
    with pytest.raises(RuntimeError, match="new thread"):
        batched_searches([wavy, inside], STARTS, search)

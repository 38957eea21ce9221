"""Searches that climb side by side: their functions are evaluated at all of their points at once.

SciPy's search under constraints takes one start, and BoTorch runs one search after the other. A
model costs nearly as much at one point as at several. So each search has a thread, all wait for
each other, and one evaluation serves all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

# Maps points ``b x 1 x d`` to values ``b``, row by row.
Function = Callable[[Tensor], Tensor]


def side_by_side(
    functions: Sequence[Function],
    starts: Tensor,
    search: Callable[[Tensor, list[Function]], Tensor],
) -> Tensor:
    """Ends ``b x 1 x d`` of searches, as if each had been run by itself.

    Args:
        functions: What is searched by, evaluated in the calling thread alone.
        starts: Points ``b x 1 x d``.
        search: Maps a start ``1 x 1 x d``, and these functions of one point ``1 x 1 x d``, once
            differentiable, to an end. It runs in a thread.
    """
    exchange = _Exchange(functions, len(starts))

    def run(who: int, start: Tensor) -> Tensor:
        try:
            return search(start, _Asker(exchange, who).functions(len(functions)))
        finally:
            exchange.leave()

    with ThreadPoolExecutor(len(starts)) as threads:
        ends = [threads.submit(run, who, start) for who, start in enumerate(starts.split(1))]
        exchange.serve()
    return torch.cat([end.result() for end in ends])


class _Exchange:
    """Where searches ask for values, and wait until all that still run have asked."""

    def __init__(self, functions: Sequence[Function], num: int) -> None:
        self._functions, self._num_running = functions, num
        self._asked: dict[int, Tensor] = {}
        self._answers: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._changed, self._is_over = threading.Condition(), False

    def ask(self, who: int, X: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Values and gradients of the functions at a point ``1 x 1 x d``."""
        with self._changed:
            self._asked[who] = X
            self._changed.notify_all()
            self._changed.wait_for(lambda: who in self._answers or self._is_over)
            if self._is_over:
                raise RuntimeError("The evaluation has failed.")
            return self._answers.pop(who)

    def leave(self) -> None:
        """A search has ended."""
        with self._changed:
            self._num_running -= 1
            self._changed.notify_all()

    def serve(self) -> None:
        """Answer, in the calling thread, until all searches have ended."""
        try:
            while self._num_running:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._asked) == self._num_running)
                    # In the order of the searches, whatever that of the threads is.
                    asked = sorted(self._asked)
                    points = [self._asked.pop(who) for who in asked]
                if asked:
                    answers = self._evaluated(torch.cat(points))
                    with self._changed:
                        self._answers.update(zip(asked, answers, strict=True))
                        self._changed.notify_all()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    @torch.enable_grad()
    def _evaluated(self, X: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        """For each row of ``b x 1 x d`` the value ``1`` and gradient ``1 x 1 x d`` of each."""
        found = []
        for function in self._functions:
            Z = X.clone().requires_grad_()
            values = function(Z)
            (gradients,) = torch.autograd.grad(values.sum(), Z)
            found.append(zip(values.detach().split(1), gradients.split(1), strict=True))
        return [list(of_point) for of_point in zip(*found, strict=True)]


class _Asker:
    """The functions of one search, which are asked for together at each new point."""

    def __init__(self, exchange: _Exchange, who: int) -> None:
        self._exchange, self._who = exchange, who
        self._point: Tensor | None = None
        self._answers: list[tuple[Tensor, Tensor]] = []

    def functions(self, num: int) -> list[Function]:
        """The functions, in their order."""
        return [partial(self._at, place) for place in range(num)]

    def _at(self, place: int, X: Tensor) -> Tensor:
        """The value ``1`` at ``1 x 1 x d``, with its gradient."""
        point = X.detach()
        if self._point is None or not torch.equal(point, self._point):
            self._point, self._answers = point.clone(), self._exchange.ask(self._who, point)
        value, gradient = self._answers[place]
        return value + ((X - point) * gradient).sum(dim=(-2, -1))

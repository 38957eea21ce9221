"""Searches that climb side by side: their functions are evaluated at all of their points at once.

SciPy's search under constraints takes one start, and BoTorch runs one search after the other. A
model costs nearly as much at one point as at several. So each search has a thread, all wait for
each other, and one evaluation serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor

# Maps points ``b x 1 x d`` to values ``b``, row by row.
Function = Callable[[Tensor], Tensor]
# The value ``1`` and the gradient ``1 x 1 x d`` of each function.
Answer = Sequence[tuple[Tensor, Tensor]]


def batched_searches(
    functions: Sequence[Function],
    starts: Tensor,
    search: Callable[[Tensor, list[Function]], Tensor],
) -> Tensor:
    """Ends ``b x 1 x d`` of searches from ``starts``, as if each had been run by itself.

    A search runs in a thread, from one start and with functions of one point, once differentiable.
    The ``functions`` of several are evaluated in the calling thread alone.
    """
    asked: SimpleQueue[tuple[int, Tensor | None]] = SimpleQueue()
    answers: list[SimpleQueue[Answer | None]] = [SimpleQueue() for _ in starts]

    def run(who: int, start: Tensor) -> Tensor:
        asker = _Asker(lambda X: asked.put((who, X)), answers[who])
        try:
            return search(start, [partial(asker.value, place) for place in range(len(functions))])
        finally:
            asked.put((who, None))

    with ThreadPoolExecutor(len(starts)) as threads:
        running = set(range(len(starts)))
        try:
            ends = [threads.submit(run, who, start) for who, start in enumerate(starts.split(1))]
            while running:
                points: dict[int, Tensor] = {}
                while points.keys() != running:
                    who, X = asked.get()
                    if X is None:
                        running.discard(who)
                    else:
                        points[who] = X
                if running:
                    order = sorted(points)  # of the searches, not of the threads
                    found = _evaluated(functions, torch.cat([points[who] for who in order]))
                    for who, answer in zip(order, found, strict=True):
                        answers[who].put(answer)
        finally:  # an error ends those that still wait
            for each in answers:
                each.put(None)
    return torch.cat([end.result() for end in ends])


@torch.enable_grad()
def _evaluated(functions: Sequence[Function], X: Tensor) -> list[Answer]:
    """For each row of ``b x 1 x d`` the value ``1`` and gradient ``1 x 1 x d`` of each."""
    found = []
    for function in functions:
        Z = X.clone().requires_grad_()
        values = function(Z)
        (gradients,) = torch.autograd.grad(values.sum(), Z)
        found.append(zip(values.detach().split(1), gradients.split(1), strict=True))
    return list(zip(*found, strict=True))


class _Asker:
    """The functions of one search, which are asked for together at each new point."""

    def __init__(self, ask: Callable[[Tensor], None], answers: SimpleQueue[Answer | None]) -> None:
        self._ask, self._answers = ask, answers
        self._point: Tensor | None = None
        self._answer: Answer | None = None

    def value(self, place: int, X: Tensor) -> Tensor:
        """The value ``1`` of a function at ``1 x 1 x d``, with its gradient."""
        point = X.detach()
        if self._point is None or not torch.equal(point, self._point):
            self._point = point.clone()
            self._ask(self._point)
            self._answer = self._answers.get()
        if self._answer is None:
            self._answers.put(None)  # for whatever is asked next
            raise RuntimeError("The evaluation has failed.")
        value, gradient = self._answer[place]
        return value + ((X - point) * gradient).sum(dim=(-2, -1))

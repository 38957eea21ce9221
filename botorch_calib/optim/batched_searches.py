"""Parallel searches whose functions are evaluated together, at the current points of all searches.

SciPy's constrained search has a single start, so BoTorch runs several searches in sequence. An
evaluation of a model at several points takes little longer than an evaluation at one point. Here
each search runs in its own thread, and each evaluation is at the current points of all threads.
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
# The value, of shape ``1``, and the gradient ``1 x 1 x d`` of each function at one point.
Answer = Sequence[tuple[Tensor, Tensor]]


def batched_searches(
    functions: Sequence[Function],
    starts: Tensor,
    search: Callable[[Tensor, list[Function]], Tensor],
) -> Tensor:
    """Search from each of ``starts``, ``b x 1 x d``, and return the points found, ``b x 1 x d``.

    The points are the same as with separate searches. ``search`` takes a start ``1 x 1 x d`` and a
    list of functions, and returns the point found, ``1 x 1 x d``. The list contains a counterpart
    of each of ``functions``, which maps a point ``1 x 1 x d`` to a value of shape ``1``, and can be
    differentiated once. ``search`` runs in one thread per start. The calling thread evaluates
    ``functions`` at the current points of all threads together.
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
                    order = sorted(points)  # so that the order of rows does not depend on timing
                    found = _evaluated(functions, torch.cat([points[who] for who in order]))
                    for who, answer in zip(order, found, strict=True):
                        answers[who].put(answer)
        finally:  # after an error, None makes the searches that still wait fail
            for each in answers:
                each.put(None)
    return torch.cat([end.result() for end in ends])


@torch.enable_grad()
def _evaluated(functions: Sequence[Function], X: Tensor) -> list[Answer]:
    """Return the `Answer` for each row of ``X``, ``b x 1 x d``."""
    found = []
    for function in functions:
        Z = X.clone().requires_grad_()
        values = function(Z)
        (gradients,) = torch.autograd.grad(values.sum(), Z)
        found.append(zip(values.detach().split(1), gradients.split(1), strict=True))
    return list(zip(*found, strict=True))


class _Asker:
    """Sends each new point of one search to the calling thread, and waits for its `Answer`."""

    def __init__(self, ask: Callable[[Tensor], None], answers: SimpleQueue[Answer | None]) -> None:
        self._ask, self._answers = ask, answers
        self._point: Tensor | None = None
        self._answer: Answer | None = None

    def value(self, place: int, X: Tensor) -> Tensor:
        """Return the value, of shape ``1``, of function number ``place`` at ``X``, ``1 x 1 x d``.

        The value can be differentiated once in ``X``.
        """
        point = X.detach()
        if self._point is None or not torch.equal(point, self._point):
            self._point = point.clone()
            self._ask(self._point)
            self._answer = self._answers.get()
        if self._answer is None:
            self._answers.put(None)  # so that the next call fails, too
            raise RuntimeError("The evaluation has failed.")
        value, gradient = self._answer[place]
        return value + ((X - point) * gradient).sum(dim=(-2, -1))

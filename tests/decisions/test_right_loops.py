"""Random loops that follow the guide: no warning, and each measurement counts exactly once.

The loops run one after another in one process, under few different limits, since a constraint also
looks for earlier constraints on its data.
"""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor

from botorch_calib import ChanceConstraint
from tests.random_numbers import normal, uniform

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
NUM_INITIAL, NUM_ROUNDS = 9, 6
# A decision that is out: its point, 1 x 2, and outcomes, 1 x m.
Pending = tuple[Tensor, Tensor]


class Loop:
    """A loop of random habits, with books of its own to compare with."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.grid = self.random.choice([0, 0, 4, 11])  # points a side; 0: any points
        self.step = self.random.choice([0.0, 0.1, 1.0])  # of outcomes; 0: any outcomes
        self.num_outcomes = self.random.choice([1, 1, 2])
        self.batch = self.random.choice([1, 1, 2, 3])
        self.is_late = self.random.random() < 0.4  # outcomes come in later rounds, in any order
        self.always_decides = self.random.random() < 0.4
        self.is_rounded = self.random.random() < 0.3  # points come back in single precision
        self.has_transforms = self.random.random() < 0.5
        self.X = self.points(NUM_INITIAL)
        self.Y = self.measured(self.X)
        self.limits = {name: (None, 2.45) for name in "ab"[: self.num_outcomes]}
        self.constraint = ChanceConstraint(self.models(), limits=self.limits, budget=40.0)
        self.may_have_outcomes = False  # whether the model may have outcomes of pending decisions
        self.pending: list[Pending] = []
        self.partial: list[Pending] = []  # decisions of which the first outcome has come
        self.known: list[Tensor] = []  # points of decisions
        self.told: list[Any] = []  # points and outcomes, as rows will have them
        self.decided: list[Any] = []  # rows that `decide` returned

    def points(self, num: int) -> Tensor:
        if self.grid:
            places = torch.randint(self.grid, (num, 2), generator=self.generator)
            return places.double() / (self.grid - 1)
        return uniform(num, 2, generator=self.generator)

    def measured(self, X: Tensor) -> Tensor:
        noise = normal(len(X), self.num_outcomes, generator=self.generator)
        Y = X.sum(dim=-1, keepdim=True) + 0.4 * noise
        return (Y / self.step).round() * self.step if self.step else Y

    def models(self) -> dict[str, SingleTaskGP]:
        models = {}
        for name, Y in zip("ab", self.Y.split(1, dim=-1), strict=False):
            came = ~Y.isnan().squeeze(-1)
            transforms: dict[str, Any] = {"outcome_transform": None}
            if self.has_transforms:
                transforms["input_transform"] = Normalize(2)
                transforms["outcome_transform"] = Standardize(1)
            models[name] = SingleTaskGP(self.X[came], Y[came], **transforms).eval()
        return models

    def chosen(self) -> Tensor:
        """A new point, ``1 x 2``, or the point of an earlier decision or of the initial data."""
        if self.random.random() < 0.3:
            return self.random.choice([*self.known, *self.X[:NUM_INITIAL].split(1)])
        return self.points(1)

    def must_decide(self, x: Tensor) -> bool:
        """Whether an outcome that is told at once may equal an earlier outcome at the point."""
        earlier = torch.cat([self.X, *self.known])
        is_measured = bool(((earlier - x).abs() < 1e-4).all(dim=-1).any())
        return self.always_decides or (self.step > 0.0 and is_measured)

    def go_on(self) -> None:
        """One round."""
        batch = [self.chosen() for _ in range(self.batch)]
        if self.batch > 1 or self.is_late or self.pending or self.partial:
            self.decide(batch)
            self.withdraw()
            self.observe_pending()
        elif self.must_decide(batch[0]):
            self.decide(batch)
            self.observe_pending()
        else:
            self.known += batch
            self.observe([(x, self.measured(x)) for x in batch])
        self.check()

    def decide(self, batch: list[Tensor]) -> None:
        if self.random.random() < 0.5:
            self.decided += self.constraint.decide(torch.cat(batch))
        else:
            self.decided += [row for x in batch for row in self.constraint.decide(x)]
        self.known += batch
        self.pending += [(x, self.measured(x)) for x in batch]

    def withdraw(self) -> None:
        """Withdraw a point that was never run, and is decided about once."""
        x, _ = self.random.choice(self.pending)
        others = [*self.X.split(1), *self.known, *self.known]
        if self.random.random() < 0.1 and sum(torch.equal(x, other) for other in others) == 2:
            self.constraint.withdraw(x)
            self.pending = [each for each in self.pending if not torch.equal(each[0], x)]
            self.known = [each for each in self.known if not torch.equal(each, x)]
            self.decided = [row for row in self.decided if row["point"] != x.squeeze(0).tolist()]

    def observe_pending(self) -> None:
        """Observe all that is out, or a part if outcomes are late."""
        if self.partial:
            self.complete()
        come = self.pending
        if self.is_late:
            come = [each for each in come if self.random.random() < 0.5]
            self.random.shuffle(come)
        self.pending = [each for each in self.pending if all(each is not own for own in come)]
        is_partial = self.num_outcomes > 1 and self.random.random() < 0.3
        if come:
            self.observe(come, is_partial)

    def complete(self) -> None:
        """Observe the second outcomes."""
        X = torch.cat([self.came_back(x) for x, _ in self.partial])
        Y = torch.cat([y for _, y in self.partial])
        Y[:, 0] = torch.nan
        self.tell(X, Y)
        self.partial = []

    def observe(self, come: list[Pending], is_partial: bool = False) -> None:
        X = torch.cat([self.came_back(x) for x, _ in come])
        Y = torch.cat([y for _, y in come])
        self.told += [(x.squeeze(0).tolist(), y.squeeze(0).tolist()) for x, y in come]
        if is_partial:
            self.partial += come
            Y[:, 1] = torch.nan
        if self.random.random() < 0.5:
            self.tell(X, Y)
        else:
            for each in zip(X.split(1), Y.split(1), strict=True):
                self.tell(*each)

    def came_back(self, x: Tensor) -> Tensor:
        return x.float().double() if self.is_rounded else x

    def tell(self, X: Tensor, Y: Tensor) -> None:
        """Observe, then refit, resume in a new process, or leave the model as it is conditioned."""
        self.X, self.Y = torch.cat([self.X, X]), torch.cat([self.Y, Y])
        then = self.random.choice(["refit", "refit", "resume", "conditioned"])
        self.constraint.observe(X, Y, condition=then == "conditioned" or self.random.random() < 0.5)
        if then == "refit":
            self.constraint = self.constraint.with_model(self.models())
        elif then == "resume":
            rows = json.loads(json.dumps(self.constraint.decisions))
            settings: dict[str, Any] = {"limits": self.limits, "budget": 40.0, "rows": rows}
            self.constraint = ChanceConstraint(self.models(), **settings)
            # The initial data at the point of a pending decision may be its outcome. If its outcome
            # is equal to them, the model is not conditioned on it, so that it is not taught twice.
            is_out = self.constraint.num_observed < self.constraint.num_decisions
            self.may_have_outcomes = self.step > 0.0 and is_out

    def check(self) -> None:
        rows = self.constraint.decisions
        assert len(rows) == len(self.known)
        assert self.constraint.num_observed == len(self.told) - len(self.partial)
        sizes = [len(model.train_targets) for model in self.constraint.models.values()]
        nums = (~self.Y.isnan()).sum(dim=0).tolist()
        if self.may_have_outcomes:
            assert all(size <= num for size, num in zip(sizes, nums, strict=True))
        else:
            assert sizes == nums
        keys = "point", "certified", "quantiles"
        own = [{key: row[key] for key in keys} for row in rows]
        assert all({key: row[key] for key in keys} in own for row in self.decided)

    def check_outcomes(self) -> None:
        """All outcomes have come: each of them is in a row about its point, and in one only."""
        rows = self.constraint.decisions
        entered = [(single(row["point"]), [*row["outcomes"].values()]) for row in rows]
        complete = [each for each in entered if None not in each[1]]
        told = [(single(x), y) for x, y in self.told]
        for k in range(self.num_outcomes):
            # Of equal points that are out at a time, outcomes belong to the decisions in order.
            assert sorted((x, y[k]) for x, y in complete) == sorted((x, y[k]) for x, y in told)


def single(point: list[float]) -> list[float]:
    """A point in single precision: without `decide`, a row holds the point that came back."""
    return torch.tensor(point).float().tolist()


def run_loop(seed: int) -> Loop:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Data .outcome observations. is not standardized")
        loop = Loop(seed)
        for _ in range(NUM_ROUNDS):
            loop.go_on()
        loop.is_late = False
        while loop.pending or loop.partial:
            loop.observe_pending()
            loop.check()
        loop.check_outcomes()
    return loop


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_a_right_loop_is_not_warned(seed: int) -> None:
    assert run_loop(seed).constraint.num_outstanding == 0


@pytest.mark.slow
def test_the_loops_are_of_all_kinds() -> None:
    loops = [Loop(seed) for seed in range(200)]
    kinds = {(bool(loop.grid), bool(loop.step), loop.is_late, loop.batch > 1) for loop in loops}
    assert len(kinds) == 16

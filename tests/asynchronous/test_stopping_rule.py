"""Runs that a rule ends, among them those that ask for the remaining gain."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling
from torch import Tensor

from botorch_calib.asynchronous import DelayAwareProposer, RemainingGainRule
from botorch_calib.decisions import remaining_gain
from botorch_calib.ledger import FeedbackLedger
from tests.asynchronous.runs import Inline, Threads, count_up, make_optimizer

BOX = [[0.0], [1.0]]


def parabola(x: np.ndarray) -> float:
    return float(-((x[0] - 0.3) ** 2))


def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """A model with given hyperparameters, which costs nothing."""
    with validate_input_scaling(False):
        gp = SingleTaskGP(X, Y, torch.full_like(Y, 1e-6), outcome_transform=None)
    gp.covar_module.lengthscale = 0.5
    return gp.eval()


def proposer(**kwargs: object) -> DelayAwareProposer:
    return DelayAwareProposer(BOX, "ucb", fit, maximize=True, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", [Inline, partial(Threads, 1)])
def test_nothing_starts_after_a_stop_and_the_summary_says_so(
    executor: Callable[[], Executor],
) -> None:
    told: list[int] = []

    def stop(ledger: FeedbackLedger) -> bool:
        told.append(len(ledger.to_observations()[1]))
        return told[-1] >= 3

    ledger = FeedbackLedger(1)
    summary = make_optimizer(executor(), lambda x: x[0], ledger, max_parallel=1).run(9, stop=stop)
    assert summary.stopped and summary.num_observed == 3 and told == [1, 2, 3]
    again = make_optimizer(executor(), lambda x: x[0], ledger).run(9, stop=stop)
    assert again.stopped and again.num_observed == 3  # judged at the start
    assert not make_optimizer(executor(), lambda x: x[0], ledger).run(4, stop=len_of_ten).stopped


def len_of_ten(ledger: FeedbackLedger) -> bool:
    return len(ledger) >= 10


def test_an_error_of_the_rule_ends_the_run() -> None:
    def stop(ledger: FeedbackLedger) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_optimizer(Inline(), parabola, FeedbackLedger(1)).run(3, stop=stop)
    with pytest.raises(InputDataError, match="`stop`"):
        make_optimizer(Inline(), parabola, FeedbackLedger(1)).run(3, stop=1)  # type: ignore[arg-type]


def test_the_remaining_gain_stops_a_run_that_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with FeedbackLedger.open(path, dim=1, censor_value=-1.0) as ledger:
        make_optimizer(Inline(), parabola, ledger, proposer()).run(7)
    propose = proposer()
    with FeedbackLedger.open(path, dim=1, censor_value=-1.0) as ledger:
        rule = RemainingGainRule(propose, eps=0.01, every=2, min_values=4)
        summary = make_optimizer(Inline(), parabola, ledger, propose).run(40, stop=rule)
        assert summary.stopped and summary.num_observed < 40
        assert rule.gain is not None and rule.gain.bound() <= 0.01
        assert -parabola(rule.gain.candidate[0].numpy()) <= 0.01
        # The bound is that of a model made by hand.
        model = fit(*ledger.to_observations())
        expected = remaining_gain(model, propose.bounds)
        torch.testing.assert_close(rule.gain.gains, expected.gains, rtol=1e-3, atol=1e-5)


def test_its_turns() -> None:
    """It judges after every so many values, however many arrive between two calls."""
    rule = RemainingGainRule(proposer(), eps=1e-9, delta=0.8, every=4, min_values=5, num_paths=2)
    ledger, judged = FeedbackLedger(1, censor_value=-1.0, maximize=True), []
    for num in range(1, 16):
        ledger.observe(ledger.submit(count_up(ledger) / 15.0), float(num % 3))
        before = rule.gain
        if num != 8:  # two at a time
            assert not rule(ledger)
        if rule.gain is not before:
            judged.append(num)
    assert judged == [5, 9, 12]


def test_choices_and_held_features_are_those_of_the_proposer() -> None:
    ledger = FeedbackLedger(1, censor_value=-1.0, maximize=True)
    for x in (0.0, 0.4, 0.8):
        ledger.observe(ledger.submit(torch.tensor([x])), parabola(np.array([x])))
    ledger.submit(torch.tensor([0.9]))  # pending
    choices = torch.tensor([[0.1], [0.5], [0.6]], dtype=torch.double)
    rule = RemainingGainRule(proposer(choices=choices), eps=1e-9, min_values=2)
    assert not rule(ledger)
    assert rule.gain is not None
    expected = remaining_gain(fit(*ledger.to_observations()), choices=choices)
    assert torch.equal(rule.gain.gains, expected.gains)
    square = DelayAwareProposer(2 * torch.tensor(BOX).repeat(1, 2), fit=fit, fixed_features={1: 3})
    wide = FeedbackLedger(2, maximize=True)
    for x in (0.0, 0.4, 0.8):
        wide.observe(wide.submit(torch.tensor([x, 3.0])), parabola(np.array([x])))
    rule = RemainingGainRule(square, eps=1e-9, min_values=2)
    assert not rule(wide)
    assert (
        rule.gain is not None and rule.gain.candidate[0, 1] == 3.0
    )  # outside of the box, as it may be
    with pytest.raises(UnsupportedError, match="next context"):
        RemainingGainRule(proposer(fixed_features=lambda ledger: {0: 0.7}), eps=0.1)


@pytest.mark.parametrize("name", ["eps", "delta", "every", "min_values", "num_paths"])
def test_arguments(name: str) -> None:
    with pytest.raises(InputDataError, match=f"`{name}`"):
        RemainingGainRule(proposer(), **{"eps": 0.1, name: -1})  # type: ignore[arg-type]

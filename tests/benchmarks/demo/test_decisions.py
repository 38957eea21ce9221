"""The part on decisions: what its loop does, and its numbers and curves from made-up results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms import Standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from matplotlib.colors import to_hex

from benchmarks.demo import decisions as demo_decisions
from benchmarks.demo.decisions import (
    GUARDS,
    LIMIT,
    NUM_EARLIER,
    RISK,
    ScreeningReplicate,
    ScreeningTask,
    at_settings,
    constraint_on,
    process,
    replicate,
    share_certified,
    share_violated,
)
from benchmarks.demo.screening import SETTINGS, Truth
from benchmarks.framework.runner import without_expected_warnings
from botorch_calib.plotting import COLORS

ABOVE, BELOW = LIMIT + 0.01, LIMIT - 0.01


def run(seed: int, missed: list[float], certified: list[float], setting: int) -> Any:
    """What the part reads of a result with one earlier trial, all at one setting."""
    x = SETTINGS[setting].tolist()
    y = [ABOVE, *missed]
    extras = {
        "certified": certified,
        "bound": [27.9],
        "reported_variance": [1e-4] * len(y),
        "alarm": [float(seed)],
        "repeats": [29.0 if seed == 4 else None],
    }
    return SimpleNamespace(seed=seed, num_initial=1, X=[x] * (len(y) + 1), y=y, extras=extras)


@pytest.fixture
def runs() -> dict[str, list[Any]]:
    # Violated: a half and all of the rounds; none and a quarter; of those certified a third and 0.
    return {
        "reported": [run(4, [ABOVE, BELOW] * 2, [1.0] * 4, 3), run(9, [ABOVE] * 4, [1.0] * 4, 3)],
        "fitted": [
            run(9, [ABOVE, BELOW, BELOW, BELOW], [1.0] * 4, 1),
            run(4, [BELOW] * 4, [1.0] * 4, 1),
        ],
        "budget": [
            run(4, [ABOVE, BELOW, BELOW, ABOVE], [1.0, 1.0, 1.0, 0.0], 0),
            run(9, [BELOW] * 4, [1.0] * 4, 2),
        ],
    }


@pytest.fixture
def truth() -> Truth:
    """Precisions of 0.5, 0.6, 0.7, ... at the first settings, and all violate in 10 %."""
    num = len(SETTINGS)
    precision = 0.5 + 0.1 * np.minimum(np.arange(num), 4)
    return Truth(np.full((17, 25), 0.1), precision.reshape(17, 25))


def test_only_certified_rounds_count(runs: Any) -> None:
    first, second = runs["budget"]
    assert share_certified(first) == 0.75
    assert share_violated(first) == pytest.approx(1 / 3)
    assert share_violated(second) == 0.0
    never = run(1, [ABOVE, ABOVE], [0.0, 0.0], 0)
    assert np.isnan(share_violated(never))


def test_report_shows_violations_and_their_price(runs: Any, truth: Truth) -> None:
    text = demo_decisions.decisions_report(runs, truth)
    head, reported, fitted, budget = text.splitlines()[:4]
    assert "violated" in head and "precision" in head
    assert "75.0 ± 25.0 %" in reported and "0.800 ± 0.000" in reported
    assert "12.5 ± 12.5 %" in fitted and "10.0 ± 0.0 %" in fitted
    assert "16.7 ± 16.7 %" in budget and "87.5 ± 12.5 %" in budget
    assert "0.600 ± 0.100" in budget
    # By seed: 33.3 - 50 and 0 - 100 in percent; precisions 0.5 - 0.8 and 0.7 - 0.8.
    first, second = text.splitlines()[5:7]
    assert first.endswith("violations (%) -58.3 ± 41.7 (0.50), precision -0.200 ± 0.100 (0.50).")
    assert second.endswith("violations (%) 4.2 ± 29.2 (1.00), precision 0.000 ± 0.100 (1.00).")
    # Violations are whole: 27.9 allow 27. Of the first run one certified round violated.
    assert "at most 27 violations in 4 certified rounds" in text
    assert "there were 1 at most" in text
    assert "Best precision of a setting that violates in 10 %: 0.900" in text
    assert max(map(len, text.splitlines())) <= 110
    more = demo_decisions.certificates_report(runs)
    assert "in 2 of 2 runs of GP, reported errors, after 9 rounds (median)" in more
    assert "1 of 2 were confirmed within 100 more trials, by 29 trials (mean)" in more


def test_report_admits_what_it_does_not_know(runs: Any, truth: Truth) -> None:
    one = {name: [r for r in found if r.seed == 4] for name, found in runs.items()}
    one["budget"] = [run(4, [ABOVE] * 2, [0.0, 0.0], 0)]
    text = demo_decisions.decisions_report(one, truth)
    assert "0.800 ± ?" in text
    assert "nan" not in text


def test_values_are_those_at_the_settings_tried() -> None:
    result = run(0, [BELOW] * 2, [1.0] * 2, 37)
    values = np.arange(len(SETTINGS), dtype=float).reshape(17, 25)
    assert at_settings(values, result).tolist() == [37.0] * 3


def test_figure_counts_violations(runs: Any, truth: Truth) -> None:
    left, middle, right = demo_decisions.decisions_figure(runs, truth).axes[:3]
    lines = left.get_lines()
    assert [to_hex(line.get_color()) for line in lines] == [
        *(color.lower() for color in COLORS[:3]),
        "#000000",
    ]
    # The uncertified round does not count; as stated, a tenth of the rounds.
    assert np.asarray(lines[0].get_ydata()).tolist() == pytest.approx([1.0, 1.5, 2.5, 3.0])
    assert np.asarray(lines[2].get_ydata()).tolist() == pytest.approx([0.5] * 4)
    assert np.asarray(lines[3].get_ydata())[-1] == pytest.approx(4 * RISK)
    points = np.column_stack([np.asarray(v) for v in right.get_lines()[0].get_data()])
    np.testing.assert_allclose(points, [[0.5, 0.8], [1.0, 0.8]])
    # Thresholds go along, penalties go up.
    offsets = np.asarray(middle.collections[-1].get_offsets())
    assert {tuple(o) for o in offsets} == {tuple(SETTINGS[i].flip(0).tolist()) for i in (0, 2)}


@pytest.fixture(scope="module")
def finished() -> dict[str, ScreeningReplicate]:
    """Two rounds with each method."""
    found = {}
    with without_expected_warnings():
        for name, guard in GUARDS.items():
            found[name] = ScreeningReplicate(ScreeningTask(num_rounds=2), guard, seed=1)
            found[name].run()
    return found


def test_methods_share_their_earlier_data(finished: dict[str, ScreeningReplicate]) -> None:
    first, *others = (
        (replicate.settings[:NUM_EARLIER], replicate.trials[:NUM_EARLIER])
        for replicate in finished.values()
    )
    for settings, trials in others:
        assert torch.equal(settings, first[0]) and trials == first[1]


def test_methods_differ_in_who_says_so(finished: dict[str, ScreeningReplicate]) -> None:
    for name, done in finished.items():
        assert done.models is not None
        given = isinstance(done.models.missed.likelihood, FixedNoiseGaussianLikelihood)
        assert given == (name != "fitted")
        assert not isinstance(done.models.precision.likelihood, FixedNoiseGaussianLikelihood)
        constraint = done.models.constraint
        assert constraint.num_observed == (2 if name == "budget" else 0)
        assert constraint.width == {"reported": 1.0, "fitted": 1.0, "wide": 1.5}.get(name)
        tracked = done.tracked
        assert (tracked is not None and tracked.calibrator.num_updates > NUM_EARLIER) == (
            name == "tracked"
        )
        assert len(done.alarm.history) == 2


def test_a_plain_constraint_states_the_quantile_of_the_process() -> None:
    with without_expected_warnings():
        Y = SETTINGS[:30].sum(dim=-1, keepdim=True).sin()
        gp = process(SETTINGS[:30], Y, None, previous=None)
    X = SETTINGS[40:45].unsqueeze(-2)
    posterior = gp.posterior(X, observation_noise=True)
    quantile = posterior.mean + 1.2815515655446004 * posterior.variance.sqrt()
    margin = constraint_on(gp, width=1.0).margin(X)
    torch.testing.assert_close(margin, LIMIT - quantile.flatten())


def test_hyperparameters_are_carried_on() -> None:
    with without_expected_warnings():
        X, Y = SETTINGS[::12], SETTINGS[::12].sum(dim=-1, keepdim=True).sin()
        first = process(X[:20], Y[:20], None, previous=None)
        second = process(X, 5.0 * Y, None, previous=first)
    for (name, a), (_, b) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    # In units of the new data: at these, the mean is the data's up to the noise.
    assert isinstance(second.outcome_transform, Standardize)
    assert second.outcome_transform.stdvs.tolist() == [[pytest.approx(5.0 * Y.std().item())]]


def test_a_run_is_deterministic_and_says_what_was_kept() -> None:
    with without_expected_warnings():
        first, second = (replicate(ScreeningTask(num_rounds=2), GUARDS["budget"], 3) for _ in "ab")
    assert first.X == second.X and first.y == second.y
    assert len(first.y) == NUM_EARLIER + 2 and len(first.X) == NUM_EARLIER + 3
    assert len(first.extras["certified"]) == 2
    assert (
        (torch.tensor(first.X, dtype=torch.double).unsqueeze(1) == SETTINGS)
        .all(dim=-1)
        .any(dim=-1)
        .all()
    )
    # (1 - level) T + 10.9 is more than there can be.
    assert first.extras["bound"] == [2.0]

"""A bank of trackers compared with single trackers: thresholds, weights, safety net and state."""

import copy
import io
import math
from itertools import product

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib.calibration import AggregatedQuantileTracker, OnlineQuantileTracker
from botorch_calib.calibration.learners.automatic_settings import adahedge, quantile_learner
from tests.calibration.sequences import STRATEGIES, play
from tests.long_grids import mostly_slow

DOUBLE = {"dtype": torch.double}
LEVELS = [0.1, 0.5, 0.8]
BANK = {
    "lengthscales": [0.2, math.inf, 0.5],
    "scales": [0.7, 1.5],
    "step_sizes": [0.05, 0.3],
    "step_decay": 0.2,
}


def make_data(num=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, generator=generator, **DOUBLE)
    return X, torch.rand(num, generator=generator, **DOUBLE) ** 2


def make_members(bank: AggregatedQuantileTracker) -> list[OnlineQuantileTracker]:
    return [
        OnlineQuantileTracker(
            LEVELS, step_size=m.step_size, step_decay=0.2, scale=m.scale, lengthscale=m.lengthscale
        )
        for m in bank.members
    ]


def test_equals_separate_trackers():
    bank = AggregatedQuantileTracker(LEVELS, **BANK)
    assert len(bank.members) == 2 * 2 * 2 + 2  # a scale means nothing without localization
    members = make_members(bank)
    X, u = make_data()
    met = torch.stack([member.update(X, u) for member in members], dim=1)
    above = u.view(-1, 1, 1) - met
    losses = (above * (bank.levels - (above <= 0).double())).sum(dim=-1)
    start = torch.zeros(len(members), **DOUBLE), torch.zeros((), **DOUBLE)
    weights, total, gap = adahedge(losses, *start)
    average = (weights.unsqueeze(-1) * met).sum(dim=1).clamp(0, 1)

    parts = zip(X.split([17, 0, 1, 22]), u.split([17, 0, 1, 22]), strict=True)
    used = torch.cat([bank.update(*part) for part in parts])
    torch.testing.assert_close(used, average)  # the safety net is not needed here
    torch.testing.assert_close(bank.losses, total)
    torch.testing.assert_close(bank.mixability_gap, gap)
    assert bank.weights.sum().item() == pytest.approx(1.0)

    X_new = make_data(6, seed=1)[0].view(3, 2, 2)
    each = torch.stack([member.threshold(X_new) for member in members])
    expected = torch.einsum("k,k...->...", bank.weights, each).clamp(0, 1)
    torch.testing.assert_close(bank.threshold(X_new), expected)


def test_the_net_acts_where_members_cannot_follow():
    """Members with tiny steps cannot follow constantly high scores; the safety net can."""
    bank = AggregatedQuantileTracker(
        [0.8], lengthscales=[math.inf], step_sizes=[1e-6], step_decay=0.0
    )
    T = 400
    X, u = make_data(T)[0], torch.full((T,), 0.95, **DOUBLE)
    outcomes = (u.unsqueeze(-1) <= bank.update(X, u)).double()
    shortfall = (0.8 - outcomes).cumsum(dim=0).squeeze(-1)
    room = 8 + 2 * torch.sqrt(0.16 * torch.arange(1, T + 1, **DOUBLE))
    assert (shortfall.abs() <= room + 3).all()
    torch.testing.assert_close(bank.shortfall, shortfall[-1:])
    tracker = OnlineQuantileTracker([0.8], step_size=1e-6)
    assert not (u.unsqueeze(-1) <= tracker.update(X, u)).any()


@pytest.mark.parametrize(
    ("strategy", "target"),
    mostly_slow(product(STRATEGIES, [0, 2]), [("below", 0)]),
)
def test_bound_holds_for_any_sequence(strategy, target):
    bank = AggregatedQuantileTracker(LEVELS, lengthscales=[0.2, math.inf], step_sizes=[0.01, 0.3])
    outcomes = play(bank, strategy, 300, target).double()
    for T in (1, 10, 50, 100, 300):
        error = (outcomes[:T].mean(dim=0) - bank.levels).abs()
        assert (error <= bank.coverage_bound(T) + 1e-12).all()
    assert (bank.coverage_bound(300) < 0.11).all()


def test_prefers_the_member_that_fits():
    """Localized members follow scores whose quantile depends on the region."""
    generator = torch.Generator().manual_seed(3)
    X = torch.rand(400, 1, generator=generator, **DOUBLE)
    u = torch.rand(400, generator=generator, **DOUBLE)
    local = torch.where(X[:, 0] < 0.5, 0.4 * u, 0.6 + 0.4 * u)
    bank = AggregatedQuantileTracker([0.5], lengthscales=[0.15, math.inf])
    is_local = torch.tensor([math.isfinite(m.lengthscale) for m in bank.members])
    bank.update(X, local)
    assert bank.weights[is_local].sum() > 0.99
    theta = bank.threshold(torch.tensor([[0.2], [0.8]], **DOUBLE)).squeeze(-1)
    assert (theta - torch.tensor([0.2, 0.8], **DOUBLE)).abs().max() < 0.12
    bank.reset()
    bank.update(X, u)
    assert bank.weights[is_local].sum() < 0.9


def test_gradient_reaches_the_inputs():
    bank = AggregatedQuantileTracker(LEVELS, **BANK)
    bank.update(*make_data())
    X = make_data(3, seed=2)[0].requires_grad_()
    assert torch.autograd.gradcheck(bank.threshold, (X,))
    assert torch.autograd.grad(bank.threshold(X).sum(), X)[0].abs().max() > 0


@pytest.mark.parametrize("length", [0, 3, 60])
def test_state_survives_any_length_of_history(length):
    source, target = (AggregatedQuantileTracker(LEVELS, **BANK) for _ in range(2))
    source.update(*make_data())
    target.update(*make_data(length, seed=4))
    stream = io.BytesIO()
    torch.save(source.state_dict(), stream)
    stream.seek(0)
    target.load_state_dict(torch.load(stream))
    X, u = make_data(9, seed=5)
    for tracker in (target, copy.deepcopy(source)):
        torch.testing.assert_close(tracker.threshold(X), source.threshold(X))
    torch.testing.assert_close(target.update(X, u), source.update(X, u))


def test_states_of_another_bank_are_refused():
    bank = AggregatedQuantileTracker(LEVELS, **BANK)
    bank.update(*make_data())
    other = AggregatedQuantileTracker(LEVELS, lengthscales=[0.3])
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(RuntimeError, match="constants"):
        other.load_state_dict(bank.state_dict())
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_reset_and_precision():
    bank = AggregatedQuantileTracker(LEVELS, **BANK)
    fresh = copy.deepcopy(bank)
    X, u = make_data()
    bank.update(X, u)
    bank.reset()
    torch.testing.assert_close(bank.update(X, u), fresh.update(X, u))
    single = AggregatedQuantileTracker(LEVELS, **BANK).float()
    used = single.update(X.float(), u.float())
    assert used.dtype == single.threshold(X.float()).dtype == torch.float
    torch.testing.assert_close(
        single.threshold(X).double(), bank.threshold(X), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"lengthscales": []}, "lengthscales"),
        ({"scales": [0.0]}, "scales"),
        ({"step_sizes": [math.nan]}, "step_sizes"),
        ({"step_decay": -1.0}, "step_decay"),
    ],
)
def test_bad_settings(changes, name):
    with pytest.raises(InputDataError, match=name):
        AggregatedQuantileTracker(LEVELS, **{**BANK, **changes})


def test_numbers_make_a_tracker_and_choices_a_bank():
    def make(*settings, **kwargs):
        return quantile_learner([0.2], [0.2], *settings, **kwargs)

    tracker = make(0.3, 2.0, 0.1, 0.5, 0.4)
    assert isinstance(tracker, OnlineQuantileTracker)
    assert (tracker.scale, tracker.step_decay, tracker.regularization) == (2.0, 0.5, 0.4)
    assert make(math.inf, 2.0).scale == 0.0
    for settings in (("auto",), (0.3, [1.0, 2.0]), (0.3, 1.0, [0.1]), ([0.3, 0.4], 1.0, 0.1)):
        assert isinstance(make(*settings), AggregatedQuantileTracker)
    assert {m.step_size for m in make("auto", 2.0, 0.1).members} == {0.1}
    with pytest.raises(InputDataError, match="lengthscale"):
        make("best")
    with pytest.raises(InputDataError, match="regularization"):
        make("auto", regularization=0.1)


# ------------------------------------------------------------------ loss and weights


def hedge(rounds):
    num = rounds.shape[1]
    return adahedge(rounds, torch.zeros(num, **DOUBLE), torch.zeros((), **DOUBLE))


def naive_weights(rounds):
    """The weights of each round by plain loops over numbers."""
    num = len(rounds[0])
    total, gap, result = [0.0] * num, 0.0, []
    for loss in rounds:
        best = min(total)
        if gap == 0.0:
            w = [1.0 if t == best else 0.0 for t in total]
        else:
            w = [math.exp(-math.log(num) / gap * (t - best)) for t in total]
        w = [a / sum(w) for a in w]
        result.append(w)
        average = sum(a * b for a, b in zip(w, loss, strict=True))
        if gap == 0.0:
            mix = min(b for a, b in zip(w, loss, strict=True) if a > 0)
        else:
            rate = math.log(num) / gap
            mix = (
                -math.log(sum(a * math.exp(-rate * b) for a, b in zip(w, loss, strict=True))) / rate
            )
        gap += max(average - mix, 0.0)
        total = [t + b for t, b in zip(total, loss, strict=True)]
    return result


def test_weights_equal_a_naive_oracle():
    torch.manual_seed(0)
    rounds = torch.rand(60, 5, **DOUBLE) * torch.tensor([1.0, 0.9, 1.1, 0.5, 1.0], **DOUBLE)
    weights, _, _ = hedge(rounds)
    torch.testing.assert_close(
        weights, torch.tensor(naive_weights(rounds.tolist()), **DOUBLE), atol=1e-7, rtol=0
    )


def test_regret_bound_against_a_switching_adversary():
    torch.manual_seed(1)
    T, num = 500, 6
    rounds = torch.rand(T, num, **DOUBLE)
    rounds[:, 0] -= 0.2 * (torch.arange(T) % 100 < 50)
    rounds = rounds.clamp(min=0.0)
    weights, losses, _ = hedge(rounds)
    regret = (weights * rounds).sum() - losses.min()
    # Theorem 8 of de Rooij et al. for losses in [0, 1]: the variance per round is at most 1/4.
    bound = math.sqrt(T * math.log(num)) + (4 / 3) * math.log(num) + 2
    assert 0 < regret < bound


def test_a_leader_with_all_the_weight_can_still_fall():
    """The next expert's weight has underflowed when the leader starts to lose every round."""
    lead = torch.tensor([[0.0, 1e-4]], **DOUBLE).expand(2000, 2)
    fall = torch.tensor([[1.0, 0.0]], **DOUBLE).expand(400, 2)
    rounds = torch.cat([lead, fall])
    weights, losses, gap = hedge(rounds)
    assert gap > 1
    regret = (weights * rounds).sum() - losses.min()
    assert regret < math.sqrt(400 * math.log(2)) + (4 / 3) * math.log(2) + 2

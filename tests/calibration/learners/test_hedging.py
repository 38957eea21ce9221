"""AdaHedge against a plain implementation and its regret bound."""

import math

import torch

from botorch_calib.calibration.learners.hedging import adahedge, adahedge_weights

DOUBLE = {"dtype": torch.double}


def run(rounds):
    num = rounds.shape[1]
    return adahedge(rounds, torch.zeros(num, **DOUBLE), torch.zeros((), **DOUBLE))


def naive(rounds):
    """The weights of each round, one number at a time."""
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


def test_equals_naive_oracle():
    torch.manual_seed(0)
    rounds = torch.rand(60, 5, **DOUBLE) * torch.tensor([1.0, 0.9, 1.1, 0.5, 1.0], **DOUBLE)
    weights, _, _ = run(rounds)
    torch.testing.assert_close(
        weights, torch.tensor(naive(rounds.tolist()), **DOUBLE), atol=1e-7, rtol=0
    )


def test_equal_experts_keep_equal_weights():
    weights, losses, gap = run(torch.rand(20, 1, **DOUBLE).expand(20, 4))
    torch.testing.assert_close(weights, torch.full((20, 4), 0.25, **DOUBLE))
    assert gap == 0 and adahedge_weights(losses, gap).sum() == 1


def test_regret_bound_against_a_switching_adversary():
    torch.manual_seed(1)
    T, num = 500, 6
    rounds = torch.rand(T, num, **DOUBLE)
    rounds[:, 0] -= 0.2 * (torch.arange(T) % 100 < 50)
    rounds = rounds.clamp(min=0.0)
    weights, losses, _ = run(rounds)
    regret = (weights * rounds).sum() - losses.min()
    # Theorem 8 of de Rooij et al. with losses in [0, 1], whose variance is at most 1/4 a round.
    bound = math.sqrt(T * math.log(num)) + (4 / 3) * math.log(num) + 2
    assert 0 < regret < bound


def test_continues_where_it_stopped():
    rounds = torch.rand(30, 3, **DOUBLE)
    whole, losses, gap = run(rounds)
    first, *state = run(rounds[:11])
    second, *state = adahedge(rounds[11:], *state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state[0], losses)
    empty, *same = adahedge(rounds[:0], *state)
    assert empty.shape == (0, 3) and torch.equal(same[1], state[1])


def test_a_leader_with_all_the_weight_can_still_fall():
    """The next expert's weight has underflowed when the leader starts to lose every round."""
    lead = torch.tensor([[0.0, 1e-4]], **DOUBLE).expand(2000, 2)
    fall = torch.tensor([[1.0, 0.0]], **DOUBLE).expand(400, 2)
    rounds = torch.cat([lead, fall])
    weights, losses, gap = run(rounds)
    assert gap > 1
    regret = (weights * rounds).sum() - losses.min()
    assert regret < math.sqrt(400 * math.log(2)) + (4 / 3) * math.log(2) + 2

r"""The deciding quantile: its level, and the factors that scale its distance from the mean.

The deciding quantile of an outcome is the quantile that a chance constraint compares with a limit.
`scores_of_parts` sets the level of each of several limits. `width` follows from the outcomes of
earlier decisions, and `leave_one_out_factor` from the training data. The constants were chosen on
tuning seeds, which differ from the seeds of the reported studies.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from botorch.exceptions.errors import BotorchError
from botorch.models.model import Model
from torch import Tensor
from torch.special import ndtr

from botorch_calib.decisions.budget import Account
from botorch_calib.models.predict import history, slots_of
from botorch_calib.models.process import observed_process

# `START` is the initial width. The logarithm of the width increases by `GAIN` times the excess of
# an `Account`, and decreases by `RELIEF` times its relief.
START, GAIN, RELIEF = 1.05, 0.2, 0.1
# The logarithm of ``width / START`` is clamped to plus or minus `_MOST`: the width stays finite.
_MOST = 20.0
# The width of a statement about a single point, which does not depend on the account.
OF_ONE_POINT = 1.1
# `PRIOR_COUNT` is the weight of the model's own distribution in the leave-one-out factor, in
# observations. `SMOOTHING` is the standard deviation with which each score is smoothed, so that the
# factor is a continuous function of the scores.
PRIOR_COUNT, SMOOTHING = 8.0, 0.15
# Number of bisection steps for the quantile of the scores, and the largest possible quantile.
_STEPS, _MOST_SCORE = 40, 12.0
#: The share of the allowed violations that is divided equally among the limits (`scores_of_parts`).
EQUAL = 0.02
# Scores are clamped to plus or minus `_FARTHEST`, where their squares are finite.
_FARTHEST = 1e3


def width(account: Account) -> float:
    """Return the factor that widens the deciding quantile, ``1.05 exp(0.2 excess - 0.1 relief)``.

    The ``account`` gives the excess and the relief of the decisions so far.

    Example:
        >>> width(Account())
        1.05
    """
    exponent = GAIN * account.excess - RELIEF * account.relief
    return START * math.exp(min(max(exponent, -_MOST), _MOST))


def widened(z: Tensor, k: float) -> Tensor:
    """Return widened normal scores, ``z + (k - 1) max(z, 1)``.

    This is ``k z`` if ``z >= 1``. Smaller scores are shifted, as a factor would hardly change them.
    """
    return z + (k - 1.0) * z.clamp_min(1.0)


def narrowed(score: Tensor, z: Tensor, k: float) -> Tensor:
    """Return normal scores under a distribution that is ``k`` times as wide as the original one.

    The wide distribution is placed so that the ``score`` ``widened(z, k)`` becomes ``z``.
    """
    return z + (score - widened(z, k)) / k


@torch.no_grad()
def leave_one_out_factor(model: Model, level: float = 0.9, sign: float = 1.0) -> float:
    r"""Factor by which leave-one-out scores widen or narrow the quantiles of a model.

    The leave-one-out score ``z_i`` is the normal score of training outcome ``i`` (of ``n``) under
    the model given the other training data, negated for a lower limit. The factor is ``q / z``.
    Here ``z`` is the normal score of the level, and ``q`` is the quantile of the ``z_i`` together
    with 8 pseudo-scores from the model's own distribution::

        8 (1 - Phi(q)) + sum_i Phi((z_i - q) / 0.15) = (1 - level) (8 + n)

    The level is clamped to ``[Phi(1), 1 - 1 / (8 + n)]``: a factor has little effect near the mean,
    and the data say little about more extreme levels. The factor is 1 for a calibrated model, as
    the calibrator has learned from these scores. It is also 1 for a model whose leave-one-out
    predictions would need refits.

    Args:
        model: A model of one outcome.
        level: Probability with which the limit must be kept.
        sign: 1 for an upper limit, -1 for a lower limit.

    Example:
        >>> factor = leave_one_out_factor(gp)  # about 1 if the model is right
    """
    if slots_of(model).calibrator is not None:
        return 1.0
    try:
        scores = sign * history(observed_process(model), "loo").scores.double().flatten()
    except BotorchError:
        return 1.0
    count = PRIOR_COUNT + len(scores)
    share = min(max(1.0 - level, 1.0 / count), NormalDist().cdf(-1.0))
    low, high = scores.new_zeros(()), scores.new_full((), _MOST_SCORE)
    for _ in range(_STEPS):
        q = 0.5 * (low + high)
        above = PRIOR_COUNT * ndtr(-q) + ndtr((scores - q) / SMOOTHING).sum()
        is_below = above > share * count  # whether q is below the quantile
        low, high = torch.where(is_below, q, low), torch.where(is_below, high, q)
    return float(q) / NormalDist().inv_cdf(1.0 - share)


def scores_of_parts(level: float, scores: Tensor) -> Tensor:
    r"""Return the normal scores of the levels ``1 - alpha_s`` of ``S`` limits, ``S x b``.

    Let limit ``s`` be violated with probability ``p_s`` at a point. The argument ``scores``,
    ``S x b``, holds the normal scores of ``1 - p_s`` at ``b`` points. Some limit is violated with
    probability at most ``p_1 + ... + p_S`` (Bonferroni), under any dependence. So each limit gets
    the part

        ``alpha_s = alpha ((1 - c) p_s / (p_1 + ... + p_S) + c / S)``

    of ``alpha = 1 - level``. The parts add up to ``alpha``: if ``p_s <= alpha_s`` for each limit,
    all limits are kept with probability at least ``level``. With equal parts (``c = 1``), a limit
    would get only ``alpha / S`` even if no other limit is likely to be violated. The small equal
    share ``c = 0.02`` keeps all quantiles finite, and reduces the part of a limit by only 1 % of
    ``alpha`` if the other of two limits is unlikely to be violated.

    Example:
        >>> from botorch_calib.decisions.widening import scores_of_parts
        >>> scores_of_parts(0.9, torch.tensor([[1.0], [9.0]]))  # 1.645 each by equal parts
        tensor([[1.2873],
                [3.0902]])
    """
    log_p = torch.special.log_ndtr(-scores.clamp(-_FARTHEST, _FARTHEST))
    parts = (1.0 - EQUAL) * log_p.softmax(dim=0) + EQUAL / len(scores)
    return -torch.special.ndtri((1.0 - level) * parts)

r"""Where the quantile lies that decides: its level, and the factors of its distance from the mean.

`scores_of_parts` gives the level of each of several limits. `width` follows from the outcomes of
the decisions so far, `leave_one_out_factor` from the model's own data. The constants were chosen on
tuning seeds of the studies that report on the rule.
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

# The width at the start; the increase of its logarithm by a violation in excess, and the decrease
# by a round without a certified point.
START, GAIN, RELIEF = 1.05, 0.2, 0.1
# Beyond e^20 deviations, numbers of violations say nothing.
_MOST = 20.0
# The width of a statement about a single point, about which other rounds say nothing.
OF_ONE_POINT = 1.1
# As many observations as the model itself counts for, and the deviation with which each score is
# smoothed, so that the factor is continuous.
PRIOR_COUNT, SMOOTHING = 8.0, 0.15
# Steps by which a quantile among scores is halved down to, and the largest one.
_STEPS, _MOST_SCORE = 40, 12.0
#: The share ``c`` of what may be violated that all limits have equally.
EQUAL = 0.02
# Beyond so many deviations the parts do not change any more, and squares stay finite.
_FARTHEST = 1e3


def width(account: Account) -> float:
    """Factor of the deciding quantile: ``1.05 exp(0.2 excess - 0.1 relief)``.

    Example:
        >>> width(Account())
        1.05
    """
    exponent = GAIN * account.excess - RELIEF * account.relief
    return START * math.exp(min(max(exponent, -_MOST), _MOST))


def widened(z: Tensor, k: float) -> Tensor:
    """Normal scores ``k`` times as far out: ``z + (k - 1) max(z, 1)``.

    ``k z`` from 1 on; nearer to the mean, where a factor would have no effect, a shift.
    """
    return z + (k - 1.0) * z.clamp_min(1.0)


def narrowed(score: Tensor, z: Tensor, k: float) -> Tensor:
    """Scores by the distribution that is ``k`` times as wide: inverse of `widened` around ``z``.

    ``score / k`` if ``z`` is 1 at least.
    """
    return z + (score - widened(z, k)) / k


@torch.no_grad()
def leave_one_out_factor(model: Model, level: float = 0.9, sign: float = 1.0) -> float:
    r"""Factor by which the model's own data call for wider quantiles, or allow narrower ones.

    ``q / z``, with ``z`` the normal score of the level and ``q`` the quantile of the leave-one-out
    scores ``z_i`` on the limit's side, to which the model's own distribution counts as 8 more::

        8 (1 - Phi(q)) + sum_i Phi((z_i - q) / 0.15) = (1 - level) (8 + n)

    A level below ``Phi(1)`` is taken as ``Phi(1)``, as a factor says little next to the mean, and
    one beyond ``1 - 1 / (8 + n)``, of which the data say little, as that. The factor is 1 for a
    calibrated model, whose calibrator has learned from these scores, and for models whose scores
    would take refits.

    Args:
        model: A model of one outcome.
        level: Probability with which the limit is to be kept.
        sign: 1 for an upper limit, -1 for a lower one.

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
        is_below = above > share * count  # q is
        low, high = torch.where(is_below, q, low), torch.where(is_below, high, q)
    return float(q) / NormalDist().inv_cdf(1.0 - share)


def scores_of_parts(level: float, scores: Tensor) -> Tensor:
    r"""Normal scores of the levels ``1 - alpha_s``, from those of ``1 - p_s``, both ``S x b``.

    If limit ``s`` of ``S`` is violated with probability ``p_s``, any is with ``p_1 + ... + p_S`` at
    most (Bonferroni), whatever their dependence. So each is given the part

        ``alpha_s = alpha ((1 - c) p_s / (p_1 + ... + p_S) + c / S)``

    of ``alpha = 1 - level``. The parts add up to ``alpha``: if each limit keeps its own, ``p_s <=
    alpha_s``, so do all together. Equal parts, ``c = 1``, would ask ``alpha / S`` of a limit even
    where no other is in danger. The little that is equal here, ``c = 0.02``, keeps all quantiles
    finite, and costs 1 % of ``alpha`` where one of two limits is in danger.

    Example:
        >>> from botorch_calib.decisions.widening import scores_of_parts
        >>> scores_of_parts(0.9, torch.tensor([[1.0], [9.0]]))  # 1.645 each by equal parts
        tensor([[1.2873],
                [3.0902]])
    """
    log_p = torch.special.log_ndtr(-scores.clamp(-_FARTHEST, _FARTHEST))
    parts = (1.0 - EQUAL) * log_p.softmax(dim=0) + EQUAL / len(scores)
    return -torch.special.ndtri((1.0 - level) * parts)

r"""How limits that hold together share the probability of a violation, point by point.

If limit ``s`` of ``S`` is violated with probability ``p_s``, any is with ``p_1 + ... + p_S`` at
most (Bonferroni), whatever their dependence. So each is given the part

    ``alpha_s = alpha ((1 - c) p_s / (p_1 + ... + p_S) + c / S)``

of ``alpha = 1 - level``. The parts add up to ``alpha``: if each limit keeps its own, ``p_s <=
alpha_s``, so do all together. Equal parts, ``c = 1``, would ask ``alpha / S`` of a limit even where
no other is in danger. The little that is equal here, ``c = 0.02``, keeps all quantiles finite, and
costs 1 % of ``alpha`` where one of two limits is in danger.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The share ``c`` of what may be violated that all limits have equally.
EQUAL = 0.02
# Beyond so many deviations the parts do not change any more, and squares stay finite.
_FARTHEST = 1e3


def scores_of_parts(level: float, scores: Tensor) -> Tensor:
    """Normal scores of the levels ``1 - alpha_s``, from those of ``1 - p_s``, both ``S x b``.

    Example:
        >>> from botorch_calib.decisions.shared_risk import scores_of_parts
        >>> scores_of_parts(0.9, torch.tensor([[1.0], [9.0]]))  # 1.645 each by equal parts
        tensor([[1.2873],
                [3.0902]])
    """
    log_p = torch.special.log_ndtr(-scores.clamp(-_FARTHEST, _FARTHEST))
    parts = (1.0 - EQUAL) * log_p.softmax(dim=0) + EQUAL / len(scores)
    return -torch.special.ndtri((1.0 - level) * parts)

"""Learn from outcomes that are known only to be beyond a bound.

For example, a run that failed for lack of memory needs more than the available 24 GB.
"""

from __future__ import annotations

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib._validation import check_tensor
from botorch_calib.calibration import Calibrator
from botorch_calib.distributions.mixture_scores import score_of_tails
from botorch_calib.models.predict import predict
from botorch_calib.models.process import as_in_training, checked_observations, observed_process
from botorch_calib.posteriors.prediction import MEMBER_DIM


@torch.no_grad()
def stand_ins(model: Model, X: Tensor, Y: Tensor, beyond: Tensor) -> Tensor:
    r"""Return training values for outcomes that are known only to be beyond a bound.

    The training value, called a stand-in, replaces the unknown outcome. It is beyond the bound by
    one standard deviation of the ``model``'s noise, measured after the outcome transform. For a
    model without noise the stand-in is the bound. Use stand-ins to refit a model; ``observe``
    computes stand-ins itself. Compute them with the current model or, before the first fit, with a
    model that was fitted to the bounds.

    Args:
        model: A fitted model of the outcome, calibrated or not.
        X: Points ``n x d``.
        Y: Outcomes or bounds ``n x 1``, in units of the outcome.
        beyond: ``n x 1``: 1 if the outcome is above ``Y``, -1 if it is below ``Y``, and 0 if it
            equals ``Y``. Booleans are read as 1 and 0.

    Returns:
        Outcomes ``n x 1``, with stand-ins in place of the bounds, in the dtype of ``Y``.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.

    Example:
        >>> from botorch_calib.models import stand_ins
        >>> above = Y > 1.0  # suppose that these outcomes are only known to be above 1
        >>> targets = stand_ins(gp, X, Y.clamp(max=1.0), above)  # 20 x 1
    """
    process = observed_process(model)
    points, values, _ = checked_observations(process, X, Y, None)
    sides = checked_beyond(beyond, values)
    is_bound = sides.squeeze(-1) != 0.0
    if not is_bound.any():
        return Y
    with as_in_training(process):
        prediction = predict(process, points[is_bound].unsqueeze(-2), objective=False)
    t = prediction.outcome_map.latent(values[is_bound].double().unsqueeze(-1))
    if prediction.target_noise is not None:
        deviation = prediction.target_noise.expand_as(prediction.target_variance).sqrt()
        deviation = deviation.mean(dim=MEMBER_DIM) if prediction.members else deviation
        t = t + sides[is_bound].unsqueeze(-1) * deviation
    filled = Y.clone()
    filled[is_bound.to(Y.device)] = prediction.outcome_map.outcome(t).squeeze(-1).to(Y)
    return filled


def checked_beyond(beyond: Tensor, Y: Tensor) -> Tensor:
    """Validate ``beyond``, as in `stand_ins`; return it in the dtype and on the device of ``Y``."""
    if check_tensor("beyond", beyond).shape != Y.shape:
        raise BotorchTensorDimensionError(
            f"`beyond` must have the shape {tuple(Y.shape)} of `Y`, got {tuple(beyond.shape)}."
        )
    sides = beyond.to(Y)
    if not ((sides == 0.0) | (sides.abs() == 1.0)).all():
        raise InputDataError(
            "`beyond` must be 1 for outcomes above `Y`, -1 for outcomes below, and 0 otherwise."
        )
    if (Y.isnan() & (sides != 0.0)).any():
        raise InputDataError("`beyond` must be 0 if `Y` is NaN: give the bound in `Y`.")
    return sides


def teach(
    calibrator: Calibrator, inputs: Tensor, z: Tensor, X: Tensor, Y: Tensor, sides: Tensor
) -> None:
    """Update a calibrator with normal scores of outcomes and bounds, in the order of the rows.

    ``z``, ``n``, are the normal scores of ``Y``, ``n x 1``, under the model. ``inputs``, ``n x d``,
    are the points in the form that calibrators take, and ``X`` are the raw points. ``sides``,
    ``n x 1``, are like ``beyond`` of `stand_ins`.

    Let ``F`` be the calibrator's predictive cdf of normal scores after all earlier rows. The score
    ``z`` of a bound is replaced with a draw ``z'`` from ``F`` beyond ``z``: ``F(z')`` is uniform in
    ``[F(z), 1]`` or ``[0, F(z)]``. If ``F`` is correct, the ``F`` of a learned score is therefore
    uniform in ``[0, 1]`` given all earlier rows, whether the row is an outcome or a bound. A row of
    ``X``, ``Y`` and ``sides`` and the number of updates seed a draw, so a replay repeats it.
    """
    first, z = 0, z.clone()
    for i, side in enumerate(sides.flatten().tolist()):
        if side == 0.0:
            continue
        if first < i:
            calibrator.update(inputs[first:i], z[first:i])
        first = i
        key = [*X[i].tolist(), float(Y[i]), side, calibrator.num_updates]
        bits = np.array(key, dtype=np.float64).view(np.uint32)
        share = np.random.default_rng(bits.tolist()).random()
        predictive = calibrator.predictive(inputs[i : i + 1].unsqueeze(0))
        predictive = predictive if side > 0.0 else predictive.mirrored()
        bound = (side * z[i]).double()
        beyond = share * predictive.mirrored().cdf(-bound)
        drawn = predictive.transport(score_of_tails(1.0 - beyond, beyond)).squeeze()
        z[i] = side * torch.maximum(drawn, bound)
    calibrator.update(inputs[first:], z[first:])

"""Samples of where an acquisition function would query next, for estimating density ratios."""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib._validation import check_bounds, check_count, check_nonnegative


@torch.no_grad()
def proposal_samples(
    acq_function: AcquisitionFunction,
    bounds: Tensor,
    num_samples: int,
    raw_samples: int = 1024,
    eta: float = 1.0,
    seed: int = 0,
) -> Tensor:
    """Draw points where an acquisition function is large, for density ratio estimation.

    The next query is a maximizer and has no density. Conformal Bayesian optimization replaces it
    by a distribution that favors large acquisition values, and draws from it by Langevin dynamics
    (Stanton, Maddox and Wilson 2023). Here it is Sobol points of the box with probabilities
    proportional to ``exp(eta * Z)``, where ``Z`` are their standardized acquisition values, as in
    BoTorch's ``initialize_q_batch``, but drawn with replacement.

    Args:
        acq_function: The acquisition function, evaluated at ``raw_samples x 1 x d``. Points with
            value ``-inf`` are not drawn.
        bounds: The box ``2 x d``, in the units of the inputs before any transform.
        num_samples: Number of points to draw, ``num_samples x d``, before any transform.
        raw_samples: Number of Sobol points to draw from.
        eta: Inverse temperature; at 0 the points are uniform in the box.
        seed: Seed of the Sobol points and of the draw.

    Raises:
        InputDataError: If the acquisition function is NaN, infinite or nowhere finite.

    Example:
        >>> acqf = LogExpectedImprovement(gp, best_f=Y.max())
        >>> X_next = proposal_samples(acqf, bounds, num_samples=64)  # 64 x 2
    """
    check_bounds(bounds)
    check_count("num_samples", num_samples)
    check_count("raw_samples", raw_samples)
    points = draw_sobol_samples(bounds, n=raw_samples, q=1, seed=seed)
    values = acq_function(points).double()
    finite = values.isfinite()
    if not (finite | values.isneginf()).all() or not finite.any():
        raise InputDataError("`acq_function` must be finite or -inf, and finite somewhere.")
    spread = values[finite].std(unbiased=False).clamp(min=torch.finfo(torch.double).tiny)
    standard = ((values - values.max()) / spread).nan_to_num(neginf=0.0)
    weights = torch.where(finite, (check_nonnegative("eta", eta) * standard).exp(), 0.0)
    # On the CPU, so that the draw is the same for every device.
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(weights.cpu(), num_samples, replacement=True, generator=generator)
    return points.squeeze(-2)[chosen.to(points.device)]

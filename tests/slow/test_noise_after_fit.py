"""`noise_diagnosis` of a kernel that was fitted with the questionable noise.

The noise has standard deviation 0.3; the given value is 0.3 or a tenth of it. A short lengthscale
can replace missing noise. Run with ``-s`` for the table of the guide on diagnosis.
"""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_calib import noise_diagnosis
from botorch_calib.diagnostics import NoiseDiagnosis

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

NOISE, SEEDS = 0.3, 10
CASES = [(1, 40), (1, 100), (2, 40), (2, 100), (4, 40), (4, 100)]


def observations(dim: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, dim, dtype=torch.double, generator=generator)
    if dim == 1:
        f = (6 * X).sin()
    elif dim == 2:
        f = (6 * X[:, :1]).sin() + (5 * X[:, 1:]).cos()
    else:
        f = (3 * X).sin().sum(dim=-1, keepdim=True)
    return X, f + NOISE * torch.randn(num, 1, dtype=torch.double, generator=generator)


def fitted_noise(X: Tensor, Y: Tensor, stated: float | None) -> NoiseDiagnosis:
    """The diagnosis of a fitted model, whose noise is given or, with None, fitted as well."""
    gp = SingleTaskGP(
        X,
        Y,
        train_Yvar=None if stated is None else torch.full_like(Y, stated**2),
        input_transform=Normalize(X.shape[-1]),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return noise_diagnosis(gp)


@pytest.mark.parametrize(("dim", "num"), CASES)
def test_noise_understated_tenfold_is_pointed_out(dim, num):
    data = [observations(dim, num, seed) for seed in range(SEEDS)]
    given = [fitted_noise(X, Y, NOISE / 10) for X, Y in data]
    free = [fitted_noise(X, Y, None) for X, Y in data]
    outside = sum(not diagnosis.agrees for diagnosis in given)
    found = torch.tensor([diagnosis.supported for diagnosis in given]).median()
    refitted = torch.tensor([diagnosis.stated for diagnosis in free]).median()
    print(f"\n| {dim} | {num} | {outside} of {SEEDS} | {found:.2f} | {refitted:.2f} |", end="")
    # The interval or, if it is wide, the advice shows this.
    assert all(diagnosis.advice is not None for diagnosis in given)
    assert all(
        diagnosis.supported > diagnosis.stated for diagnosis in given if not diagnosis.agrees
    )
    if dim == 1:
        assert outside == SEEDS
    # Fitted noise is consistent.
    assert all(diagnosis.agrees for diagnosis in free)


def test_noise_stated_rightly_is_let_pass():
    alarms = 0
    for dim, num in CASES:
        for seed in range(SEEDS):
            X, Y = observations(dim, num, seed)
            alarms += fitted_noise(X, Y, NOISE).advice is not None
    print(f"\n{alarms} false alarms in {SEEDS * len(CASES)}", end="")
    # With 5 % for each diagnosis, more than this have a probability of 3 %.
    assert alarms <= 6

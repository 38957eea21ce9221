"""Speed of proposals between two fits of hyperparameters, and its growth with the data.

Importing this module registers the comparisons with `perf.measure`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.test_functions import Hartmann
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.perf.measure import Call, Workload, comparison
from botorch_calib import DelayAwareProposer, FeedbackLedger
from botorch_calib.asynchronous import DelayStrategy
from botorch_calib.asynchronous.delay_strategy import STRATEGIES

DIM = 6
LEAST_VALUES, MANY_VALUES = 250, (500, 1000, 2000)
FEW_PENDING, MANY_PENDING = 10, (50, 200)
NUM_FAILED = 1000
# From a fit to 200 values of Hartmann's function; these comparisons do not fit the model.
LENGTHSCALES = (0.28, 0.42, 1.06, 0.42, 0.40, 0.29)
NOISE = 5e-3

STRATEGY = replace(STRATEGIES["hallucinate"], spread_beyond=None)
BOUNDS = torch.tensor([[0.0] * DIM, [1.0] * DIM], dtype=torch.double)


def set_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """The proposer's default model with set hyperparameters, on the device of the bounds."""
    X, Y = X.to(bounds), Y.to(bounds)
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(DIM, bounds=bounds), outcome_transform=Standardize(1)
    )
    gp.covar_module.lengthscale = X.new_tensor(LENGTHSCALES)
    gp.likelihood.noise = NOISE
    return gp.eval()


def proposals(
    num_values: int,
    num_pending: int,
    device: str | torch.device = "cpu",
    num_failed: int = 0,
    strategy: DelayStrategy = STRATEGY,
) -> Call:
    """A call that records one value, chooses the next query and records it.

    The model is on the device and has been fitted before; a call conditions it on later values and
    on pending queries. The bound chooses each query, although by default every second of many
    queries does not come from the model. The first ``num_failed`` queries have failed.
    """
    objective = Hartmann(DIM, negate=True)
    ledger = FeedbackLedger(DIM, censor_value=0.0)
    engine = SobolEngine(DIM, scramble=True, seed=0)
    for x in engine.draw(num_failed + num_values + num_pending, dtype=torch.double):
        number = ledger.submit(x)
        if number < num_failed:
            ledger.fail(number)
    numbers = itertools.count(num_failed)

    def observe() -> None:
        number = next(numbers)
        ledger.observe(number, objective(ledger[number].x.unsqueeze(0)).item())

    for _ in range(num_values):
        observe()
    bounds = BOUNDS.to(device)
    propose = DelayAwareProposer(
        bounds, strategy, fit=partial(set_gp, bounds=bounds), refit_every=num_values - 2
    )
    propose(ledger)

    def call(repetition: int) -> Tensor:
        observe()
        point = propose(ledger)
        ledger.submit(point)
        return point

    return call


def growth(many: tuple[int, int], few: tuple[int, int], work: Workload) -> tuple[Call, Call]:
    """Proposals with many and with few values and pending queries, always on the CPU."""
    return proposals(*many), proposals(*few)


for _values in MANY_VALUES:
    comparison(
        f"proposal between fits, n = {_values} / n = {LEAST_VALUES}, {FEW_PENDING} pending",
        repetitions=11,
        warm_up=1,
    )(partial(growth, (_values, FEW_PENDING), (LEAST_VALUES, FEW_PENDING)))

for _pending in MANY_PENDING:
    comparison(
        f"proposal between fits, {_pending} / {FEW_PENDING} pending, n = {LEAST_VALUES}",
        repetitions=11,
        warm_up=1,
    )(partial(growth, (LEAST_VALUES, _pending), (LEAST_VALUES, FEW_PENDING)))


@comparison(
    f"proposal between fits, n = {LEAST_VALUES}, {NUM_FAILED} failures / the same, ignored",
    repetitions=11,
    warm_up=1,
)
def failure_ratio(work: Workload) -> tuple[Call, Call]:
    """Cost of the model of failures, which grows with the queries; always on the CPU."""
    ignored = replace(STRATEGY, failures="ignore")
    return (
        proposals(LEAST_VALUES, FEW_PENDING, num_failed=NUM_FAILED),
        proposals(LEAST_VALUES, FEW_PENDING, num_failed=NUM_FAILED, strategy=ignored),
    )

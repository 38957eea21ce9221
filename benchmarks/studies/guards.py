"""How often guards are right: alarms for counts, slopes at samples, refusals of smooth models.

python -m benchmarks.studies.guards
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.means import ZeroMean
from scipy.stats import poisson
from torch import Tensor

from benchmarks.framework.markdown import table
from benchmarks.studies.command_line import run_study
from botorch_calib import WassersteinBall
from botorch_calib.diagnostics import CalibrationAlarm
from botorch_calib.distributions.scoring_rules import binomial_interval
from botorch_calib.models.learned_spread import with_learned_spread
from botorch_calib.robust import ContextDistribution
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns

ROUNDS, NUM_SAMPLES, NUM_TERMS = 100, 8, 5
SIZES, TOO_LONG = (20, 40, 80), 3.0
SEEDS = range(30000, 30200)
COMMAND = "python -m benchmarks.studies.guards"


def alarm_of_counts(is_randomised: bool) -> bool:
    """Whether a true Poisson model with means from 2 to 10 raises the alarm."""
    means = (2.0 + 8.0 * torch.rand(ROUNDS)).numpy()
    counts = torch.poisson(torch.from_numpy(means)).numpy()
    less = poisson.cdf(counts - 1.0, means) if is_randomised else None
    return _is_raised(poisson.cdf(counts, means), less)


def alarm_of_jitter() -> bool:
    """Whether a true normal model raises the alarm for rounded values plus a jitter."""
    center = 10.0 * torch.rand(ROUNDS)
    rounded = 2.0 * ((center + torch.randn(ROUNDS)) / 2.0).round()
    jittered = rounded + 2.0 * torch.rand(ROUNDS) - 1.0
    return _is_raised(torch.special.ndtr(jittered - center).numpy(), None)


def _is_raised(at_most: Any, less: Any) -> bool:
    alarm = CalibrationAlarm(false_alarm=0.05)
    for t in range(ROUNDS):
        below = None if less is None else torch.tensor([less[t]])
        alarm.observe(torch.tensor([at_most[t]]), below=below)
    return alarm.raised


def excess_of_slopes() -> float:
    """The bound by slopes at samples minus the worst case, for values in [-1, 1]."""
    frequency, phase = 10.0 * torch.rand(NUM_TERMS).double(), 6.3 * torch.rand(NUM_TERMS).double()
    weight = torch.randn(NUM_TERMS).double().softmax(dim=0)

    def values(joint: Tensor) -> Tensor:
        return (torch.sin(frequency * joint[..., 0, 1:] + phase) * weight).sum(dim=-1)

    function = PointwiseFunction(values, Columns(2, 1))
    samples = ContextDistribution.empirical(torch.rand(NUM_SAMPLES, 1, dtype=torch.double))
    fine = torch.linspace(0.0, 1.0, 1001, dtype=torch.double).unsqueeze(-1)
    radius, X = 0.02 + 0.2 * torch.rand(()).item(), torch.zeros(1, 1, dtype=torch.double)
    bound = WassersteinBall(radius, "lipschitz").evaluate(function, X, samples)
    worst = WassersteinBall(radius).evaluate(function, X, samples.with_candidates(fine))
    return float((bound - worst).squeeze())


def is_refused(num: int, lengthscale: float, factor: float, is_varying: bool) -> bool:
    """Whether a process is refused whose lengthscale is ``factor`` times the right one."""
    X = torch.rand(num, 2, dtype=torch.double)
    kernel = ScaleKernel(MaternKernel(2.5)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 1.0, lengthscale
    covariance = kernel(X).to_dense().detach() + 1e-8 * torch.eye(num, dtype=torch.double)
    deviation = 0.2 * ((2.0 * X[:, :1] - 1.0).exp() if is_varying else torch.ones_like(X[:, :1]))
    f = torch.linalg.cholesky(covariance) @ torch.randn(num, 1, dtype=torch.double)
    Y = f + deviation * torch.randn(num, 1, dtype=torch.double)
    kernel.base_kernel.lengthscale = factor * lengthscale
    gp = SingleTaskGP(X, Y, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None)
    gp.likelihood.noise = 0.04
    try:
        with_learned_spread(gp.eval())
    except UnsupportedError:
        return True
    return False


#: The events, by name. A value above 0 counts as an event.
COUNTED: dict[str, Callable[[], float]] = {
    "alarms of true counts, taken as continuous": partial(alarm_of_counts, False),
    "alarms of true counts, on their grid": partial(alarm_of_counts, True),
    "alarms of rounded values with a jitter": alarm_of_jitter,
    "slopes at eight samples above the worst case": excess_of_slopes,
    **{
        f"refused, lengthscales thrice too long, {num} data": partial(
            is_refused, num, 0.3, TOO_LONG, False
        )
        for num in SIZES
    },
    **{
        f"refused, right lengthscales: {length:g}, {kind} noise, {num} data": partial(
            is_refused, num, length, 1.0, kind == "varying"
        )
        for length in (0.2, 0.5)
        for kind in ("even", "varying")
        for num in SIZES
    },
}


def run(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """The value of one event in one random problem."""
    with manual_seed(seed):
        return {"value": float(COUNTED[cell["what"]]())}


def report(runs: list[dict[str, Any]]) -> str:
    """A table of shares with exact 95 % intervals; for values other than 0 and 1, the largest."""
    rows = []
    for what in dict.fromkeys(each.partition(":")[0] for each in COUNTED):
        values = [each["value"] for each in runs if each["what"].partition(":")[0] == what]
        count = sum(value > 0.0 for value in values)
        low, high = (100 * float(end) for end in binomial_interval(count, len(values)))
        share = f"{100 * count / len(values):.1f} ({low:.1f} to {high:.1f})"
        most = max(values)
        rows.append([what, str(len(values)), share, "" if most in (0.0, 1.0) else f"{most:.2f}"])
    lines = ["# How often guards are right", "", f"Reproduce with `{COMMAND}`.", ""]
    return "\n".join([*lines, *table(["what", "problems", "share, %", "at most"], rows), ""])


def main(argv: list[str] | None = None) -> int:
    """Run what is missing and write the table."""
    cells = [{"what": what} for what in COUNTED]
    return run_study(COMMAND, __doc__, SEEDS, cells, run, report, argv)


if __name__ == "__main__":
    sys.exit(main())

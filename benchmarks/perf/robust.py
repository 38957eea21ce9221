"""Speed of robust acquisition functions, in units of the matrix product that they need.

Value and gradient of a robust confidence bound at ``b`` decisions and ``M`` contexts cost at least
the product ``(b M x n)(n x n)`` of all covariances with the inverse of the training covariance,
which is linear in ``b`` and ``M``. With few decisions, as in a local search, the overhead
dominates. It is compared with BoTorch. Importing this module registers the comparisons with
`perf.measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from benchmarks.perf.calibrated_and_delayed import ALL_CALIBRATORS
from benchmarks.perf.measure import Call, Workload, comparison, value_and_gradient
from benchmarks.problems import ContextualAckley
from botorch_calib import CalibratedModel
from botorch_calib.acquisition import RobustUpperConfidenceBound, WassersteinUpperConfidenceBound
from botorch_calib.calibration import Calibrator
from botorch_calib.optim import optimize_robust
from botorch_calib.robust import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)
from botorch_calib.test_functions import ContextShift, ContextualProblem

# A function that finds the best decision.
Search = Callable[..., Any]

NUM_DECISIONS, FEW_DECISIONS = 64, 4
BETA = 2.25
RADIUS = 0.1
DIM, CONTEXT_DIM = 4, 2

# Numbers of data and of contexts for the Lipschitz constant when a choice is measured.
NUM_ROUNDS, LIPSCHITZ_CONTEXTS = 60, 100

# Numbers of training points and of contexts.
LARGE, SMALL, SMALLEST = (300, 256), (100, 100), (60, 60)
KERNELS: dict[str, Callable[[], Kernel]] = {
    "RBF": lambda: RBFKernel(ard_num_dims=DIM),
    "Matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=DIM),
}
# Radii are neither so small that the centre is the worst case, nor so large that the worst context
# alone is.
SETS: dict[str, AmbiguitySet] = {
    "exact Wasserstein": WassersteinBall(RADIUS, method="exact"),
    "KL ball": KLBall(RADIUS),
    "chi-squared ball": ChiSquaredBall(RADIUS),
    "total variation ball": TotalVariationBall(RADIUS),
    "conditional value at risk": ConditionalValueAtRisk(0.2),
    "worst case": WorstCase(),
}

# Ambiguity sets over which bounds of calibrated and plain models are compared.
CALIBRATED_SETS: dict[str, AmbiguitySet] = {
    "Lipschitz form": WassersteinBall(RADIUS, method="lipschitz"),
    "total variation ball": SETS["total variation ball"],
}


def sobol(num: int, dim: int, seed: int, device: torch.device) -> Tensor:
    """Points of the unit cube, ``num x dim``."""
    bounds = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.double)
    return draw_sobol_samples(bounds, n=num, q=1, seed=seed).squeeze(-2).to(device)


def contextual_gp(num: int, kernel: Callable[[], Kernel], device: torch.device) -> SingleTaskGP:
    """A GP with set hyperparameters, which costs as much as a fitted GP."""
    X = sobol(num, DIM, 0, device)
    Y = (5 * X).sin().sum(dim=-1, keepdim=True)
    Y = (Y - Y.mean()) / Y.std()
    gp = SingleTaskGP(X, Y, covar_module=kernel().to(X), outcome_transform=None)
    covariance: Any = gp.covar_module
    covariance.lengthscale = torch.linspace(0.4, 0.8, DIM, dtype=torch.double, device=device)
    gp.likelihood.noise = 1e-2
    return gp.eval()


def bound_call(
    work: Workload,
    size: tuple[int, int],
    kernel: str,
    build: Callable[[Model, Tensor], AcquisitionFunction],
    num_decisions: int = NUM_DECISIONS,
    calibrator: Calibrator | None = None,
) -> Call:
    """Value and gradient of a robust bound, without the factorisation.

    ``build`` makes the bound from a plain or calibrated model and contexts.
    """
    num, num_contexts = size
    gp = contextual_gp(num, KERNELS[kernel], work.device)
    model = gp if calibrator is None else CalibratedModel.from_history(gp, calibrator)
    acquisition = build(model, sobol(num_contexts, CONTEXT_DIM, 1, work.device))
    X = sobol(num_decisions, DIM - CONTEXT_DIM, 2, work.device).unsqueeze(-2)
    return value_and_gradient(acquisition, X)


def robust_call(
    work: Workload,
    size: tuple[int, int],
    kernel: str,
    radius: float,
    num_decisions: int = NUM_DECISIONS,
) -> Call:
    """`bound_call` of the Wasserstein robust bound."""
    return bound_call(
        work,
        size,
        kernel,
        lambda model, contexts: WassersteinUpperConfidenceBound(model, BETA, radius, contexts),
        num_decisions,
    )


def over(ambiguity: AmbiguitySet) -> Callable[[Model, Tensor], AcquisitionFunction]:
    """The robust bound over an ambiguity set, for `bound_call`."""
    return lambda model, contexts: RobustUpperConfidenceBound(model, BETA, ambiguity, contexts)


def choice_call(work: Workload, problem: ContextualProblem, radius: float, search: Search) -> Call:
    """A choice in the unit cube as in suite `robust`; the seed depends on the repetition."""
    num, device = problem.num_decisions, work.device
    X, first, second = (
        sobol(count, problem.dim, seed, device)
        for seed, count in enumerate((NUM_ROUNDS, NUM_ROUNDS, LIPSCHITZ_CONTEXTS))
    )
    # The problem is on the CPU, since its evaluation is not measured.
    lower, upper = problem.bounds
    Y = problem(lower + (upper - lower) * X.cpu(), noise=False).unsqueeze(-1).to(device)
    gp = SingleTaskGP(X, (Y - Y.mean()) / Y.std(), outcome_transform=None)
    covariance: Any = gp.covar_module
    covariance.lengthscale = X.new_full((problem.dim,), 0.3)
    gp.likelihood.noise = 1e-3
    contexts, others = first[:, num:], second[:, num:]
    acquisition = WassersteinUpperConfidenceBound(
        gp.eval(), BETA, radius, contexts, lipschitz_contexts=others
    )
    decisions = X.new_tensor([[0.0] * num, [1.0] * num])

    def call(repetition: int) -> Tensor:
        with manual_seed(repetition):
            decision: Tensor = search(acquisition, decisions, num_restarts=4, raw_samples=128)[0]
            return decision

    return call


def plain_call(work: Workload, size: tuple[int, int], kernel: str, num_points: int) -> Call:
    """Value and gradient of BoTorch's confidence bound at joint inputs."""
    gp = contextual_gp(size[0], KERNELS[kernel], work.device)
    X = sobol(num_points, DIM, 2, work.device).unsqueeze(-2)
    return value_and_gradient(UpperConfidenceBound(gp, BETA), X)


def product_call(work: Workload, size: tuple[int, int]) -> Call:
    """One product ``(b M x n)(n x n)`` in double precision."""
    num, num_contexts = size
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(
        NUM_DECISIONS * num_contexts, num, dtype=torch.double, generator=generator
    ).to(work.device)
    square = rows[:num] @ rows[:num].mT

    def call(repetition: int) -> Tensor:
        return rows @ square

    return call


def register(name: str, size: tuple[int, int], kernel: str) -> None:
    """Register the cost of the robust bound, and what robustness adds to it."""

    @comparison(f"{name} / one product", repetitions=31, warm_up=3)
    def product_ratio(work: Workload) -> tuple[Call, Call]:
        return robust_call(work, size, kernel, RADIUS), product_call(work, size)

    @comparison(f"{name} / the same with radius 0", repetitions=31, warm_up=3)
    def overhead(work: Workload) -> tuple[Call, Call]:
        return robust_call(work, size, kernel, RADIUS), robust_call(work, size, kernel, 0.0)


def register_growth(size: tuple[int, int], kernel: str) -> None:
    """Register the cost of twice as many decisions and of twice as many contexts."""
    (num, num_contexts), b = size, NUM_DECISIONS
    name = f"robust UCB, n={num}, M={num_contexts}, b={b}, {kernel}"

    @comparison(f"b={2 * b} / {name}", repetitions=15, warm_up=2)
    def decisions(work: Workload) -> tuple[Call, Call]:
        measured = robust_call(work, size, kernel, RADIUS, 2 * b)
        return measured, robust_call(work, size, kernel, RADIUS)

    @comparison(f"M={2 * num_contexts} / {name}", repetitions=15, warm_up=2)
    def contexts(work: Workload) -> tuple[Call, Call]:
        measured = robust_call(work, (num, 2 * num_contexts), kernel, RADIUS)
        return measured, robust_call(work, size, kernel, RADIUS)


def register_overhead(size: tuple[int, int], kernel: str) -> None:
    """Register the overhead with few decisions, with and without robustness."""
    num, num_contexts = size
    end = f", n={num}, M={num_contexts}, b={FEW_DECISIONS}, {kernel}"
    for name, radius in (("WDRBO", RADIUS), ("ERBO", 0.0)):

        @comparison(f"{name}{end} / BoTorch's UCB at b points", repetitions=101, warm_up=10)
        def overhead(work: Workload, radius: float = radius) -> tuple[Call, Call]:
            measured = robust_call(work, size, kernel, radius, FEW_DECISIONS)
            return measured, plain_call(work, size, kernel, FEW_DECISIONS)


def acqf_search(acquisition: AcquisitionFunction, bounds: Tensor, **kwargs: Any) -> Any:
    """BoTorch's search."""
    return optimize_acqf(acquisition, bounds, q=1, **kwargs)


def register_choice(name: str, problem: ContextualProblem) -> None:
    """Register the cost of a choice without its fit, relative to a choice without robustness.

    A run of suite `robust` takes at most 1.8 times as long as with ERBO if the ratio is 2.2.
    """
    for how, search in (("", optimize_robust), (" by optimize_acqf", acqf_search)):

        @comparison(f"WDRBO choice{how}, {name} / ERBO choice", repetitions=31, warm_up=2)
        def choice_ratio(work: Workload, search: Search = search) -> tuple[Call, Call]:
            measured = choice_call(work, problem, 0.1, search)
            return measured, choice_call(work, problem, 0.0, acqf_search)


def register_set(size: tuple[int, int], kernel: str, name: str) -> None:
    """Register the cost of an ambiguity set, relative to the Lipschitz form of the robust bound."""
    num, num_contexts = size
    end = f"n={num}, M={num_contexts}, b={NUM_DECISIONS}, {kernel} / Lipschitz form"

    @comparison(f"{name}, {end}", repetitions=31, warm_up=3)
    def set_ratio(work: Workload) -> tuple[Call, Call]:
        measured = bound_call(work, size, kernel, over(SETS[name]))
        return measured, robust_call(work, size, kernel, RADIUS)


def register_calibrated(
    size: tuple[int, int], calibrator: str, name: str, num_decisions: int = NUM_DECISIONS
) -> None:
    """Register the cost of calibration in the robust bound of an ambiguity set."""
    end = f"n={size[0]}, M={size[1]}, b={num_decisions}, RBF"

    @comparison(f"{calibrator} / plain robust UCB, {name}, {end}", repetitions=31, warm_up=3)
    def calibrated_ratio(work: Workload) -> tuple[Call, Call]:
        build, template = over(CALIBRATED_SETS[name]), ALL_CALIBRATORS[calibrator]()
        return (
            bound_call(work, size, "RBF", build, num_decisions, template),
            bound_call(work, size, "RBF", build, num_decisions),
        )


register_choice("contextual Ackley", ContextualAckley())
register_choice("context shift", ContextShift())

for _name in SETS:
    # Target for the exact Wasserstein bound: at most 3.
    register_set((100, 256), "RBF", _name)

for _name in CALIBRATED_SETS:
    for _calibrator in ALL_CALIBRATORS:
        register_calibrated(SMALL, _calibrator, _name)
    register_calibrated(SMALLEST, "calibrated, lengthscale auto", _name, FEW_DECISIONS)

for _kernel in KERNELS:
    # Targets: at most 3 and 6 products, and at most 1.3 times the cost without robustness.
    register(f"robust UCB, n=300, M=256, b=64, {_kernel}", LARGE, _kernel)
    register(f"robust UCB, n=100, M=100, b=64, {_kernel}", SMALL, _kernel)
    # Target: at most twice the cost.
    register_growth(LARGE, _kernel)
    register_overhead(SMALLEST, _kernel)

"""Calibrated Bayesian optimization in two changed lines.

Maximises a noisy function of two variables whose noise grows away from the optimum. Needs
nothing but ``pip install botorch_calib`` and runs in seconds.
"""

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_calib import CalibratedModel, LocalizedConformal, LogCalibratedExpectedImprovement
from botorch_calib.test_functions import HeteroscedasticAckley

NUM_INITIAL, NUM_ITERATIONS = 8, 5


def propose(X: torch.Tensor, Y: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """The next point to evaluate, ``1 x d``."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(2, bounds=bounds), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))

    # The two lines that change. Without them: LogExpectedImprovement(gp, best_f=Y.max()).
    model = CalibratedModel.from_history(
        gp, LocalizedConformal(alpha=0.2, lengthscale=0.25), num_initial=NUM_INITIAL
    )
    acqf = LogCalibratedExpectedImprovement(model, best_f=Y.max())

    candidate, _ = optimize_acqf(acqf, bounds=bounds, q=1, num_restarts=5, raw_samples=128)
    interval = model.posterior(candidate, observation_noise=True).quantile(
        torch.tensor([0.1, 0.9], dtype=X.dtype)
    )
    low, high = interval.flatten().tolist()
    print(
        f"next point {rounded(candidate[0])}, 80 % interval of its outcome [{low:.2f}, {high:.2f}]"
    )
    return candidate


def rounded(x: torch.Tensor) -> list[float]:
    """Coordinates to print."""
    return [round(value, 2) for value in x.tolist()]


def main() -> None:
    """Run the loop and print the result."""
    torch.manual_seed(0)
    problem = HeteroscedasticAckley()  # its maximum is 0, at the origin
    bounds = problem.bounds
    X = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(NUM_INITIAL, 2, dtype=torch.double)
    Y = problem(X).unsqueeze(-1)
    for _ in range(NUM_ITERATIONS):
        x = propose(X, Y, bounds)
        y = problem(x).unsqueeze(-1)
        print(f"    observed {y.item():.2f}")
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
    best = Y.argmax()
    value = problem(X[best], noise=False).item()
    print(f"best observation {Y[best].item():.2f} at {rounded(X[best])}, without noise {value:.2f}")


if __name__ == "__main__":
    main()

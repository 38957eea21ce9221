"""Theorems about delays and robust contexts, compared with simulations that meet their assumptions.

Each bound is compared with a simulated value: the regret of 100 or 60 rounds, the width of a
confidence interval, or a slope. Objectives are drawn from the kernel's space, and the search knows
the kernel, the norm and the bounds of the noise.

    python -m benchmarks.studies.proven_bounds
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.framework.markdown import number, table
from benchmarks.studies.command_line import run_study
from benchmarks.theory.delayed_regret import DelayedRegret
from benchmarks.theory.information_gain import maximal_gains
from benchmarks.theory.robust_regret import (
    cumulative,
    instantaneous,
    learning_slack,
    norm_bound_of_mean,
)
from benchmarks.theory.wasserstein_radius import log_covering_number, wasserstein_radius

COMMAND = "python -m benchmarks.studies.proven_bounds"
SEEDS = range(10000, 10010)
DELTA = 0.1

# Delays: rounds, bound of the noise, maximum waiting time, mean of the delays.
DELAYED_ROUNDS, NOISE, WAIT, MEAN_DELAY = 100, 0.1, 6, 3.0

# Contexts: rounds, points per axis, lengthscale, norm, standard deviation of the noise, shift.
ROBUST_ROUNDS, AXIS, LENGTHSCALE, NORM, DEVIATION, SHIFT = 60, 12, 0.3, 2.0, 0.1, 0.1
LAMBDA = 1.0

STATEMENTS = {
    "SDF Theorem 2": "GP-UCB-SDF: cumulative regret",
    "SDF Theorem 3": "GP-TS-SDF: cumulative regret, with the constants of eq. 23",
    "SDF Theorem 4": "width that holds $\\rho_m g$ at all contexts and rounds: used share",
    "SDF Proposition 1": "GP-UCB-SDF in batches: cumulative regret",
    "SDF Proposition 2": "GP-TS-SDF in batches: cumulative regret",
    "WDRBO Lemma 3": "slope of the upper confidence bound: $2 L \\bar B_t$",
    "WDRBO Theorem 4": "expected regret of a round, stated distribution",
    "WDRBO Theorem 5": "the same, summed",
    "WDRBO Corollary 6": "the same, slopes by Lemma 3",
    "WDRBO Theorem 8": "expected regret of a round, contexts met",
    "WDRBO Theorem 9": "the same, summed",
}


HEADER = ("statement", "quantity", "bound", "observed", "largest ratio", "worst search")


class Comparison(NamedTuple):
    """An observed value, its bound, and the value of the worst possible search, if known."""

    observed: float
    bound: float
    worst: float = math.nan

    def tighter(self, other: Comparison) -> Comparison:
        """The comparison with the larger ratio of the observed value to the bound."""
        return max(self, other, key=lambda each: each.observed / each.bound)


def squared_exponential(X: np.ndarray, lengthscale: float) -> np.ndarray:
    gaps = X[:, None] - X[None]
    kernel: np.ndarray = np.exp(-0.5 * np.square(gaps / lengthscale).sum(axis=-1))
    return kernel


def objective(K: np.ndarray, norm: float, rng: np.random.Generator) -> np.ndarray:
    """Values of a random function with a given norm in the kernel's space."""
    weights = rng.normal(size=8)
    points = rng.choice(len(K), 8, replace=False)
    f: np.ndarray = K[:, points] @ weights
    return f * norm / math.sqrt(weights @ K[np.ix_(points, points)] @ weights)


def posterior(
    K: np.ndarray, queries: Sequence[int], y: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance at all points of the domain."""
    rows = K[list(queries)]
    solved = np.linalg.solve(rows[:, list(queries)] + noise * np.eye(len(queries)), rows)
    return solved.T @ y, K - rows.T @ solved


def delayed(thompson: bool, batch: bool, contexts: int, seed: int) -> tuple[Comparison, float]:
    """Run one search; return its regret with the bound, and the largest used share of the width.

    Args:
        thompson: Whether to use Thompson sampling instead of an upper confidence bound.
        batch: Whether all delays are ``WAIT`` instead of random.
        contexts: Number of contexts; each round has a random context.
        seed: The seed.
    """
    rng = np.random.default_rng(seed)
    line = np.linspace(0.0, 1.0, 40 // contexts)
    X = np.array([(z, x) for z in np.linspace(0.0, 1.0, contexts) for x in line])
    K, T = squared_exponential(X, 0.2), DELAYED_ROUNDS
    f = objective(K, 1.0, rng)
    noise = 1.0 + 2.0 / T
    gains = maximal_gains(K, T, noise)
    delays = np.full(T, WAIT) if batch else rng.poisson(MEAN_DELAY, T)
    most = math.exp(-MEAN_DELAY) * sum(MEAN_DELAY**k / math.factorial(k) for k in range(WAIT + 1))
    theory = DelayedRegret(
        norm_bound=1.0,
        outcome_bound=float(np.abs(f).max()) + NOISE,
        noise_bound=NOISE,
        noise=noise,
        delta=DELTA,
        max_wait=WAIT,
        arrival=1.0 if batch else most,
    )
    queries: list[int] = []
    outcomes: list[float] = []
    regret = used = 0.0
    for t in range(T):
        age = t - np.arange(t)
        arrived = delays[:t] <= np.minimum(WAIT, age)
        mean, covariance = posterior(K, queries, np.where(arrived, outcomes, 0.0), noise)
        sigma = np.sqrt(covariance.diagonal().clip(1e-14))
        delta = 0.5 * DELTA if thompson else DELTA
        width = theory.width(gains[t], sigma[queries[-WAIT:]], delta)
        used = max(used, float((np.abs(mean - theory.arrival * f) / (width * sigma)).max()))
        if thompson:
            root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(K)))
            value = mean + width * root @ rng.normal(size=len(K))
        else:
            value = mean + width * sigma
        offered = slice(None)
        if contexts > 1:
            first = int(rng.integers(contexts)) * len(line)
            offered = slice(first, first + len(line))
        chosen = (offered.start or 0) + int(value[offered].argmax())
        regret += float(f[offered].max() - f[chosen])
        queries.append(chosen)
        outcomes.append(f[chosen] + rng.uniform(-NOISE, NOISE))
    bound = theory.thompson(gains, len(K)) if thompson else theory.ucb(gains)
    return Comparison(regret, bound, T * float(np.ptp(f))), used


def robust(learned: bool, seed: int) -> dict[str, Comparison]:
    """Run one search and compare it with the bounds, by statement.

    A statement about single rounds is compared in the round with the largest ratio.

    Args:
        learned: Whether the center is the empirical distribution of observed contexts, with the
            radius of eq. 16, instead of a stated distribution, which is not the true one.
        seed: The seed.
    """
    rng = np.random.default_rng(seed)
    line = np.linspace(0.0, 1.0, AXIS)
    X = np.array([(x, c) for x in line for c in line])
    K, T, L = squared_exponential(X, LENGTHSCALE), ROBUST_ROUNDS, 1.0 / LENGTHSCALE
    f = objective(K, NORM, rng).reshape(AXIS, AXIS)
    gamma = 2.0 * maximal_gains(K, T, LAMBDA)[-1]
    center, true = (distribution(line, mean) for mean in (0.5, 0.5 + SHIFT))
    limits = {"B": NORM, "R": DEVIATION, "noise": LAMBDA, "delta": DELTA}
    expected = f @ true
    best = int(expected.argmax())
    queries: list[int] = []
    outcomes: list[float] = []
    met: list[int] = [int(rng.choice(AXIS, p=true))]
    radii: list[float] = []
    slopes: list[float] = []
    regrets: list[float] = []
    slack: list[float] = []
    tightest = steepest = Comparison(0.0, 1.0)
    worst = float(np.ptp(expected))
    for _ in range(T):
        mean, covariance = posterior(K, queries, np.array(outcomes), LAMBDA)
        sigma = np.sqrt(covariance.diagonal().clip(0.0) / LAMBDA).reshape(AXIS, AXIS)
        gram = K[np.ix_(queries, queries)] / LAMBDA
        norm = norm_bound_of_mean(np.linalg.slogdet(np.eye(len(gram)) + gram)[1], **limits)
        beta = math.sqrt(LAMBDA) * norm
        upper = mean.reshape(AXIS, AXIS) + beta * sigma
        by_decision = np.abs(np.diff(upper, axis=1)).max(axis=1) * (AXIS - 1)
        if learned:
            center = np.bincount(met, minlength=AXIS) / len(met)
            covering = log_covering_number(len(met), max(norm, 1.0), 2)
            radius = wasserstein_radius(
                len(met),
                DELTA,
                context_diameter=1.0,
                decision_diameter=1.0,
                decision_dim=1,
                log_covering_number=covering,
            )
        else:
            radius = float(np.abs(np.cumsum(center - true)).sum() / (AXIS - 1))
        slack.append(learning_slack(len(met), L, norm) if learned else 0.0)
        chosen = int((upper @ center - radius * by_decision).argmax())
        regret = float(expected[best] - expected[chosen])
        bound = instantaneous(beta, sigma[chosen], true, radius, by_decision[best]) + 2 * slack[-1]
        tightest = tightest.tighter(Comparison(regret, float(bound), worst))
        steepest = steepest.tighter(Comparison(float(by_decision.max()), 2.0 * norm * L))
        for values, value in ((radii, radius), (slopes, by_decision[best]), (regrets, regret)):
            values.append(value)
        met.append(int(rng.choice(AXIS, p=true)))
        queries.append(chosen * AXIS + met[-1])
        outcomes.append(f[chosen, met[-1]] + rng.normal(scale=DEVIATION))
    norm = norm_bound_of_mean(gamma, **limits)
    total, beta = float(np.sum(regrets)), math.sqrt(LAMBDA) * norm
    bounds = [
        cumulative(beta, gamma, np.array(radii), slope, DELTA) + 2.0 * float(np.sum(slack))
        for slope in (np.array(slopes), np.array(2.0 * norm * L))
    ]
    if learned:
        return {
            "WDRBO Theorem 8": tightest,
            "WDRBO Theorem 9": Comparison(total, bounds[0], T * worst),
        }
    return {
        "WDRBO Lemma 3": steepest,
        "WDRBO Theorem 4": tightest,
        "WDRBO Theorem 5": Comparison(total, bounds[0], T * worst),
        "WDRBO Corollary 6": Comparison(total, bounds[1], T * worst),
    }


def distribution(line: np.ndarray, mean: float) -> np.ndarray:
    weights: np.ndarray = np.exp(-0.5 * np.square((line - mean) / 0.15))
    return weights / weights.sum()


def statements(seed: int) -> dict[str, Comparison]:
    """All comparisons of a seed, by statement."""
    found = {}
    for name, thompson, batch in (
        ("Theorem 2", False, False),
        ("Theorem 3", True, False),
        ("Proposition 1", False, True),
        ("Proposition 2", True, True),
    ):
        found[f"SDF {name}"] = delayed(thompson, batch, 1, seed)[0]
    found["SDF Theorem 4"] = Comparison(delayed(False, False, 4, seed)[1], 1.0)
    return {**found, **robust(False, seed), **robust(True, seed)}


def kept(cell: Mapping[str, str], seed: int) -> dict[str, Any]:
    """The stored results of a seed."""
    found = statements(seed)
    # JSON has no NaN.
    return {"found": {k: [v if v == v else None for v in each] for k, each in found.items()}}


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """The report, with a row for each statement."""
    rows = []
    for name, text in STATEMENTS.items():
        found = np.array([each["found"][name] for each in runs], dtype=float)
        observed, bound, worst = found.mean(axis=0)
        ratio = (found[:, 0] / found[:, 1]).max()
        cells = [number(bound), number(observed), number(ratio, 2), number(worst)]
        rows.append([name, text, *cells])
    return "\n".join(
        [
            f"Reproduce with `{COMMAND}`.",
            "",
            f"Means over {len(runs)} seeds, and the largest ratio of an observed value to its "
            "bound among the seeds. The last column is the regret of the worst possible search. A "
            "statement about single rounds is compared in the round with the largest ratio. "
            f"Delays: {DELAYED_ROUNDS} rounds on 40 points, Poisson delays of mean {MEAN_DELAY:g} "
            f"(batches: always {WAIT}), m = {WAIT}, noise uniform within {NOISE:g}. Contexts: "
            f"{ROBUST_ROUNDS} rounds on {AXIS} x {AXIS} points, normal noise of deviation "
            f"{DEVIATION:g}. $\\delta$ is {DELTA:g}: WDRBO's Theorems 5 and 8 and Corollary 6 may "
            "fail with probability $2\\delta$, Theorem 9 with $3\\delta$, and all others with "
            "$\\delta$.",
            "",
            *table(HEADER, rows),
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run_study(COMMAND, __doc__, SEEDS, [{}], kept, markdown, argv)


if __name__ == "__main__":
    sys.exit(main())

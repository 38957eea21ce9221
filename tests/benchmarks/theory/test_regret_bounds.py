"""Bounds of regret: by hand, by brute force, and in searches that meet their assumptions."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel

from benchmarks.studies import proven_bounds
from benchmarks.theory import confidence_multiplier
from benchmarks.theory.delayed_regret import DelayedRegret
from benchmarks.theory.information_gain import GREEDY, maximal_gains
from benchmarks.theory.robust_regret import (
    cumulative,
    instantaneous,
    learning_slack,
    norm_bound_of_mean,
)

X = np.array([[0.0], [0.3], [0.35], [1.0]])
K = proven_bounds.squared_exponential(X, 0.4)


def log_det(queries: tuple[int, ...], noise: float) -> float:
    gram = K[np.ix_(queries, queries)]
    return float(np.linalg.slogdet(np.eye(len(queries)) + gram / noise)[1])


@pytest.mark.parametrize("noise", [0.05, 1.5])
def test_gains_by_all_queries(noise: float) -> None:
    found = maximal_gains(K, 5, noise)
    assert found[0] == 0.0
    for n in range(1, 6):
        largest = max(
            0.5 * log_det(queries, noise)
            for queries in combinations_with_replacement(range(len(K)), n)
        )
        assert largest <= found[n] <= largest / GREEDY + 1e-12


# B_f, B_y, R, lambda, delta, m and rho: simple numbers.
THEORY = DelayedRegret(1.0, 2.0, 0.5, 1.0 / (math.e - 1.0), 2.0 / math.e, 3, 0.5)
GAINS = np.array([0.0, 1.5, 2.5, 4.0])


def test_delays_by_hand() -> None:
    """For these numbers ``log(1 + 1 / lambda) = 1`` and ``log(2 / delta) = 1``."""
    assert THEORY.root(6.0) == pytest.approx(1.0 + 2.5 * 4.0)  # 2 (6 + 1 + 1) = 16
    assert THEORY.width(6.0, np.array([0.5, 0.25])) == pytest.approx(2.0 * 0.75 + 11.0)
    # T = 3: C_1^2 = 2, gamma_2 = 2.5 in beta_3 and gamma_3 = 4 elsewhere.
    beta = 1.0 + 2.5 * math.sqrt(2.0 * 4.5)
    assert THEORY.ucb(GAINS) == pytest.approx(4.0 * (beta * math.sqrt(24.0) + 3 * 2.0 * 2.0 * 4.0))
    # Eq. 23, term by term, for a domain of 7 points; beta with log(4 / delta) = 1 + log 2.
    p, delta = 1.0 / (4.0 * math.e * math.sqrt(math.pi)), THEORY.delta
    beta = 1.0 + 2.5 * math.sqrt(2.0 * (2.5 + 1.0 + 1.0 + math.log(2.0)))
    spread = 1.0 + math.sqrt(2.0 * math.log(7 * 9))
    largest = (3 * 2.0 + beta) * spread
    terms = (
        11.0 / (0.5 * p) * spread * (beta * math.sqrt(2.0 * 3 * 4.0) + 3 * 2.0 * 2.0 * 4.0),
        (4.0 + 11.0 * largest) / (0.5 * p) * math.sqrt(2.0 * 3 * math.log(2.0 / delta)),
        math.pi**2 / 3.0,
    )
    assert THEORY.thompson(GAINS, 7) == pytest.approx(sum(terms))


def test_contexts_by_hand() -> None:
    weights, deviations = np.array([0.25, 0.75]), np.array([1.0, 0.2])
    assert instantaneous(3.0, deviations, weights, 0.1, 5.0) == pytest.approx(6 * 0.4 + 1.0)
    radii, slopes = np.array([0.1, 0.2, 0.3, 0.4]), np.array([4.0, 3.0, 2.0, 1.0])
    first = 4.0 * 3.0 * math.sqrt(4 * (5.0 + 4.0 * math.log(60.0)))
    assert cumulative(3.0, 5.0, radii, slopes, 0.1) == pytest.approx(first + 2.0 * 2.0)
    assert learning_slack(5, 2.0, 1.5) == pytest.approx(7.0 / 5)


def test_the_norm_of_lemma_3_is_the_root_of_the_multiplier() -> None:
    inputs, y = torch.from_numpy(X), torch.linspace(-1.0, 1.0, 4, dtype=torch.double)
    kernel = RBFKernel()
    kernel.lengthscale = 0.4
    scaled = (y / y.std()).unsqueeze(-1)
    gp = SingleTaskGP(
        inputs, scaled, torch.full_like(scaled, 0.3), covar_module=kernel, outcome_transform=None
    )
    expected = confidence_multiplier(gp, 0.1, 0.2, 1.7).sqrt().item()
    found = norm_bound_of_mean(log_det((0, 1, 2, 3), 0.3), B=1.7, R=0.2, noise=0.3, delta=0.1)
    assert found == pytest.approx(expected)


def test_norms_of_posterior_means() -> None:
    """In 300 data sets the bound of lemma 3 fails at most as often as its probability allows."""
    rng, noise, failures = np.random.default_rng(0), 0.04, 0
    points = np.linspace(0.0, 1.0, 30)[:, None]
    gram = proven_bounds.squared_exponential(points, 0.2)
    inverse = np.linalg.inv(gram + noise * np.eye(30))
    bound = norm_bound_of_mean(
        float(np.linalg.slogdet(np.eye(30) + gram / noise)[1]), B=1.0, R=0.2, noise=noise, delta=0.1
    )
    for _ in range(300):
        y = proven_bounds.objective(gram, 1.0, rng) + rng.normal(scale=0.2, size=30)
        weights = inverse @ y
        failures += math.sqrt(weights @ gram @ weights) > bound
    assert failures <= 30


def test_a_step_of_the_proof_needs_a_large_regularization() -> None:
    """Step ii of WDRBO's eq. 59, for variances as large as eq. 5 allows: ``1 / lambda``."""

    def holds(noise: float) -> bool:
        return 1.0 / noise <= 2.0 * math.log1p(1.0 / noise)

    assert holds(0.4)
    assert not holds(0.39)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_searches_keep_the_bounds(seed: int) -> None:
    found = proven_bounds.statements(seed)
    assert found.keys() == proven_bounds.STATEMENTS.keys()
    for name, each in found.items():
        assert 0.0 < each.observed <= each.bound, name
        assert not each.observed > each.worst, name


def test_the_report(tmp_path, capsys) -> None:
    argv = ["--seeds", "1:3", "--tables", str(tmp_path), "--results", str(tmp_path / "runs.jsonl")]
    assert proven_bounds.main(argv) == 0
    text = (tmp_path / "proven_bounds.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(text)
    for name in proven_bounds.STATEMENTS:
        assert f"| {name} |" in text

"""The initial points of Ackley's function."""

from __future__ import annotations

import torch

from benchmarks.calibration.ackley import one_sided_design


def test_one_sided_points_are_seeded_and_far_from_the_optimum() -> None:
    X = one_sided_design(400, seed=0)
    assert torch.equal(X, one_sided_design(400, seed=0))
    assert not torch.equal(X, one_sided_design(400, seed=1))
    right = X[:, 0] > 0.0
    assert 0.4 < right.double().mean() < 0.6
    # Each point lies on one side in both coordinates.
    assert torch.equal(right, X[:, 1] > 0.0)
    assert (X.abs() >= 2.0).all() and (X.abs() <= 10.0).all()

"""The design stays on one side, and follows its seed."""

from __future__ import annotations

import math

import torch

from benchmarks.problems import one_sided_initial_design


def test_one_sided_design_stays_on_one_side() -> None:
    X = one_sided_initial_design(400, seed=0)
    assert X.shape == (400, 2)
    assert ((X.abs() >= 2.0) & (X.abs() <= 10.0)).all()
    assert (X.sign() == X[:, :1].sign()).all()
    share = (X[:, 0] > 0).double().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(400)


def test_one_sided_design_is_seeded() -> None:
    before = torch.random.get_rng_state()
    X = one_sided_initial_design(seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(X, one_sided_initial_design(seed=7))
    assert not torch.equal(X, one_sided_initial_design(seed=8))
    single = one_sided_initial_design(seed=7, dtype=torch.float32)
    torch.testing.assert_close(single, X.float())

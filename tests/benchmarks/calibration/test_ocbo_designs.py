"""Initial designs of suite `ocbo_designs`, and its problems."""

from __future__ import annotations

import torch

from benchmarks.calibration.ocbo_designs import latin_design

BOX = ((-1.0, 3.0), (10.0, 11.0))


def test_a_latin_design_has_one_point_in_each_part_of_each_range() -> None:
    X = latin_design(7, 3, bounds=BOX)
    lower, upper = torch.tensor(BOX, dtype=torch.double).T
    parts = (7 * (X - lower) / (upper - lower)).floor().long()
    assert torch.equal(parts.sort(dim=0).values, torch.arange(7).unsqueeze(-1).expand(7, 2))
    # The coordinates are put together at random.
    orders = {tuple(latin_design(7, s, bounds=BOX)[:, 0].argsort().tolist()) for s in range(20)}
    assert len(orders) > 15

"""Designs over boxes and choices, without a proposer."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.asynchronous.designs import Design

BOUNDS = torch.tensor([[-1.0, 0.0], [1.0, 4.0]], dtype=torch.double)
NONE_ASKED = torch.zeros(0, 2, dtype=torch.double)


def in_turn(design: Design, counts: list[int], asked: Tensor = NONE_ASKED) -> Tensor:
    """New points for successive queries."""
    for count in counts:
        point = design.new_point(count, asked, None)
        assert point is not None
        asked = torch.cat([asked, point.unsqueeze(0)])
    return asked


def test_a_point_is_not_asked_twice_if_the_count_goes_back():
    points = in_turn(Design(BOUNDS, 3, {}, None), [4, 5, 5, 5, 4])
    assert len(points.unique(dim=0)) == 5


def test_choices_that_differ_by_rounding_have_been_asked():
    asked = torch.tensor([[0.1 + 0.2, 1.0], [0.5, 3.0]], dtype=torch.double)
    choices = torch.tensor([[0.3, 1.0], [0.5, 3.0], [0.4, 2.0]], dtype=torch.double)
    assert not (asked[0] == choices).all(dim=-1).any()
    for seed in range(8):
        design = Design(BOUNDS, seed, {}, choices)
        point = design.new_point(seed, asked, None)
        assert point is not None and torch.equal(point, choices[2])
        assert design.new_point(seed, choices, None) is None


def test_choices_are_asked_once_each():
    choices = torch.rand(20, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    design = Design(BOUNDS, 0, {}, choices)
    points = in_turn(design, [*range(20)])
    assert torch.equal(points.unique(dim=0), choices.unique(dim=0))
    assert design.new_point(20, points, None) is None


def test_the_next_choice_is_new_as_long_as_any_is():
    """Also if other choices were asked before, or if choices have failed and are left out."""
    choices = torch.rand(20, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    asked, left = choices[:5], choices
    for count in range(5, 20):
        point = Design(BOUNDS, 0, {}, left).next_point(count, asked)
        assert not (asked == point).all(dim=-1).any()
        asked = torch.cat([asked, point.unsqueeze(0)])
        if count % 3 == 0:
            left = left[(left != point).any(dim=-1)]
    design = Design(BOUNDS, 0, {}, choices)
    assert torch.equal(design.next_point(20, asked), design.sample(1, 20)[0])


def test_a_box_whose_features_are_all_fixed():
    design = Design(BOUNDS, 0, {0: 0.5, 1: 7.0}, None)
    points = in_turn(design, [0])
    assert points.tolist() == [[0.5, 7.0]]
    assert design.new_point(1, points, None) is None

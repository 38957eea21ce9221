"""Distributions of contexts, and the radii around them."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.robust import ContextDistribution, RadiusSchedule

DTYPES = (torch.float32, torch.float64)
BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)


def samples(num: int = 12, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, 2, dtype=torch.double, generator=generator) * BOX[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_duplicates_are_merged_in_order(dtype: torch.dtype) -> None:
    points = torch.tensor([[3.0, 0.0], [1.0, 0.0], [3.0, 0.0], [2.0, 5.0], [1.0, 0.0]], dtype=dtype)
    centre = ContextDistribution.empirical(points)
    assert torch.equal(centre.points, points[[0, 1, 3]])
    assert_close(centre.weights, torch.tensor([0.4, 0.4, 0.2], dtype=dtype))
    assert centre.num_points == 3 and centre.weights.dtype == dtype
    weighted = ContextDistribution.empirical(points, torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]))
    assert_close(weighted.weights, torch.tensor([0.4, 0.2, 0.4], dtype=dtype))
    given = ContextDistribution.discrete(points, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0]))
    assert_close(given.weights, weighted.weights)
    assert ContextDistribution(points, torch.full((5,), 0.2)).num_points == 5


def test_atoms_of_weight_zero_are_kept() -> None:
    centre = ContextDistribution.discrete(samples(3), torch.tensor([0.0, 0.25, 0.75]))
    assert centre.num_points == 3
    assert centre.support().tolist() == [1, 2]
    assert ContextDistribution.empirical(samples(3)).support().tolist() == [0, 1, 2]


def test_distribution_is_frozen_and_does_not_follow_its_inputs() -> None:
    points = samples()
    centre = ContextDistribution.empirical(points)
    points.zero_()
    assert_close(centre.points, samples())
    with pytest.raises(AttributeError):
        centre.points = points  # type: ignore[misc]


def test_conversion_and_copies() -> None:
    centre = ContextDistribution.empirical(samples())
    assert centre.to(torch.float64) is centre and centre.to(device="cpu") is centre
    single = centre.to(torch.float32)
    assert single.points.dtype == single.weights.dtype == torch.float32
    assert centre.to(torch.float32) is single  # converted once
    for other in (copy.deepcopy(centre), pickle.loads(pickle.dumps(centre))):
        assert torch.equal(other.points, centre.points) and torch.equal(
            other.weights, centre.weights
        )
    # Rounded weights of many atoms still sum to 1.
    many = ContextDistribution.empirical(samples(3000).float())
    assert_close(many.to(torch.double).weights.sum().item(), 1.0, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kde_is_the_reflected_density(dtype: torch.dtype) -> None:
    data = samples(8).to(dtype)
    centre = ContextDistribution.kde(data, BOX.to(dtype), num_points=1024, seed=3)
    assert centre.points.dtype == dtype and centre.num_points == 1024
    assert (centre.points >= 0).all() and (centre.points <= BOX[1].to(dtype)).all()
    # The distribution function of each coordinate, with the images of each kernel.
    width = data.double().std(0) * 8 ** (-1 / 6)
    for j in range(2):
        x = torch.linspace(0.1, 0.9, 5, dtype=torch.double) * BOX[1, j]
        cdf = torch.zeros_like(x)
        for image in range(-3, 4):
            for sign in (1, -1):
                middle = sign * data[:, j].double() + 2 * image * BOX[1, j]
                z = [(e - middle[:, None]) / width[j] for e in (x, torch.zeros_like(x))]
                cdf += (torch.special.ndtr(z[0]) - torch.special.ndtr(z[1])).mean(0)
        found = (centre.points[:, j].double()[:, None] <= x).double().mean(0)
        # Scrambled Sobol points: well below the 0.016 of independent draws.
        assert_close(found, cdf, rtol=0, atol=0.01)


def test_kde_is_deterministic_and_keeps_each_samples_share() -> None:
    data = samples(8)
    first, second, other = (ContextDistribution.kde(data, BOX, 64, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.points, second.points)
    assert not torch.equal(first.points, other.points)
    narrow = ContextDistribution.kde(data, BOX, 64, bandwidth=1e-6)
    nearest = torch.cdist(narrow.points, data).argmin(-1)
    assert torch.bincount(nearest, minlength=8).tolist() == [8] * 8


def test_from_icdf() -> None:
    burr = stats.burr12(2, 20)

    def icdf(p: Tensor) -> Tensor:
        return torch.as_tensor(burr.ppf(p.numpy()))

    centre = ContextDistribution.from_icdf(icdf, 512, dim=1)
    assert centre.num_points == 512
    assert_close(centre.mean.item(), burr.mean(), rtol=2e-3, atol=0)
    assert_close(centre.std.item(), burr.std(), rtol=2e-2, atol=0)
    again = ContextDistribution.from_icdf(icdf, 512, dim=1)
    assert torch.equal(again.points, centre.points)

    def joint(p: Tensor) -> Tensor:
        first = torch.special.ndtri(p[:, :1])
        return torch.cat([first, 0.6 * first + 0.8 * torch.special.ndtri(p[:, 1:])], dim=-1)

    pair = ContextDistribution.from_icdf(joint, 1024, dim=2).points
    assert_close(torch.corrcoef(pair.T)[0, 1].item(), 0.6, rtol=0, atol=0.01)
    clipped = ContextDistribution.from_icdf(lambda p: (2 * p - 0.5).clamp(0, 1), 64, dim=1)
    assert clipped.num_points == 34  # the quarters at each end are one atom each
    assert_close(clipped.weights.amax().item(), 0.25)


def test_arguments() -> None:
    points, weights = samples(3), torch.full((3,), 1 / 3, dtype=torch.double)
    for bad in (torch.tensor([0.5, 0.6, -0.1]), torch.tensor([0.5, 0.5, torch.nan]), weights * 0.9):
        with pytest.raises(InputDataError, match="`weights`"):
            ContextDistribution.discrete(points, bad)
    with pytest.raises(BotorchTensorDimensionError, match="`weights`"):
        ContextDistribution.discrete(points, weights[:2])
    with pytest.raises(InputDataError, match="`weights`"):
        ContextDistribution.empirical(points, torch.zeros(3))
    with pytest.raises(BotorchTensorDimensionError, match="`points`"):
        ContextDistribution(points[0], weights[:2])
    with pytest.raises(InputDataError, match="`points`"):
        ContextDistribution(points * torch.nan, weights)
    with pytest.raises(InputDataError, match="`points`"):
        ContextDistribution(points[:0], weights[:0])
    with pytest.raises(InputDataError, match="`points`"):
        ContextDistribution(points.long(), weights)


def test_kde_arguments() -> None:
    data = samples(3)
    with pytest.raises(InputDataError, match="inside `bounds`"):
        ContextDistribution.kde(data + 5, BOX)
    with pytest.raises(BotorchTensorDimensionError, match="`bounds`"):
        ContextDistribution.kde(data, BOX[:, :1])
    with pytest.raises(InputDataError, match="`bounds`"):
        ContextDistribution.kde(data, BOX.flip(0))
    for bandwidth in ("silverman", 0.0, -1.0, torch.tensor([0.1, 0.0])):
        with pytest.raises(InputDataError, match="`bandwidth`"):
            ContextDistribution.kde(data, BOX, bandwidth=bandwidth)
    with pytest.raises(BotorchTensorDimensionError, match="`bandwidth`"):
        ContextDistribution.kde(data, BOX, bandwidth=torch.ones(3))
    with pytest.raises(InputDataError, match="`samples`"):
        ContextDistribution.kde(data[:0], BOX)
    with pytest.raises(InputDataError, match="`num_points`"):
        ContextDistribution.kde(data, BOX, num_points=0)
    with pytest.raises(InputDataError, match="`dim`"):
        ContextDistribution.from_icdf(torch.sin, 8, dim=0)
    with pytest.raises(BotorchTensorDimensionError, match="`icdf`"):
        ContextDistribution.from_icdf(lambda p: p[:3], 8, dim=1)
    with pytest.raises(InputDataError, match="`icdf` must be a tensor"):
        ContextDistribution.from_icdf(lambda p: p.numpy(), 8, dim=1)  # type: ignore[arg-type,return-value]


def test_schedule() -> None:
    schedule = RadiusSchedule(0.6)
    assert_close([schedule(t) for t in (1, 4, 9)], [0.6, 0.3, 0.2])
    assert RadiusSchedule()(1) == 0.3
    assert RadiusSchedule()(np.int64(9)) == RadiusSchedule()(9)  # type: ignore[arg-type]
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InputDataError, match="`c`"):
            RadiusSchedule(bad)
    with pytest.raises(InputDataError, match="`t`"):
        schedule(0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_candidates_follow_the_atoms(dtype: torch.dtype) -> None:
    centre = ContextDistribution.discrete(samples(4), torch.tensor([0.4, 0.0, 0.5, 0.1])).to(dtype)
    new = samples(5, seed=1)
    extended = centre.with_candidates(new)
    assert extended.points.dtype == extended.weights.dtype == dtype
    assert torch.equal(extended.points, torch.cat([centre.points, new.to(dtype)]))
    assert_close(extended.weights[:4], centre.weights, rtol=0, atol=1e-7)
    assert (extended.weights[4:] == 0).all()
    values = torch.randn(3, 9, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert_close(extended.expectation(values), centre.expectation(values[:, :4]))
    assert_close(extended.mean, centre.mean)
    assert_close(extended.std, centre.std)
    assert extended.support().tolist() == [0, 2, 3]


def test_candidates_leave_the_distribution_as_it_was() -> None:
    centre = ContextDistribution.empirical(samples(4))
    single = centre.to(torch.float32)
    new = samples(3, seed=1)
    extended = centre.with_candidates(new)
    new.zero_()
    assert extended.to(torch.float32).num_points == 7 and (extended.points[4:] > 0).all()
    assert centre.num_points == len(centre.support()) == 4 and len(extended.support()) == 4
    assert centre.to(torch.float32) is single


def test_candidate_arguments() -> None:
    centre = ContextDistribution.empirical(samples(3))
    for bad in (samples(3)[:, :1], samples(3)[0], samples(3)[None]):
        with pytest.raises(BotorchTensorDimensionError, match="`points`"):
            centre.with_candidates(bad)
    with pytest.raises(InputDataError, match="`points`"):
        centre.with_candidates(samples(3) * torch.nan)
    assert centre.with_candidates(torch.tensor([[1, 2]])).points[-1].tolist() == [1.0, 2.0]


def test_columns_and_lipschitz_points_are_carried() -> None:
    points, others = samples(), samples(5, seed=3).float()
    plain = ContextDistribution.empirical(points, torch.linspace(0.1, 1.3, 12))
    assert plain.indices is None and plain.lipschitz_points is None
    centre = plain.with_indices(torch.tensor([2, -1])).with_lipschitz_points(others)  # type: ignore[arg-type]
    assert centre.indices == (2, -1)
    assert centre.lipschitz_points is not None
    assert torch.equal(centre.lipschitz_points, others.to(points))
    # The weights are not normalised, and so rounded, again.
    assert torch.equal(centre.weights, plain.weights) and torch.equal(centre.points, plain.points)
    single = centre.to(torch.float32)
    for other in (
        single,
        copy.deepcopy(centre),
        pickle.loads(pickle.dumps(centre)),
        centre.with_candidates(others),
        ContextDistribution(points, plain.weights, [2, -1], others),
    ):
        assert other.indices == (2, -1)
        assert other.lipschitz_points is not None and len(other.lipschitz_points) == 5
        assert other.lipschitz_points.dtype == other.points.dtype
    # Copies do not share cached results.
    assert centre.with_indices(None).to(torch.float32).indices is None
    assert centre.with_lipschitz_points(None).lipschitz_points is None
    assert single.with_indices([0, 1]).to(torch.float64).indices == (0, 1)
    others += 1.0
    assert (centre.lipschitz_points < 1.0).any()


def test_wrong_columns_and_lipschitz_points() -> None:
    centre = ContextDistribution.empirical(samples())
    for bad in ([0], [1, 1], [0, 1, 2]):
        with pytest.raises(InputDataError, match="`indices` must be 2 different columns"):
            centre.with_indices(bad)
    with pytest.raises(InputDataError, match="`lipschitz_points` is empty"):
        centre.with_lipschitz_points(samples()[:0])
    with pytest.raises(InputDataError, match="`lipschitz_points` contains NaN"):
        centre.with_lipschitz_points(samples() * float("nan"))
    with pytest.raises(BotorchTensorDimensionError, match="`lipschitz_points`"):
        centre.with_lipschitz_points(samples()[:, :1])

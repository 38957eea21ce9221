"""A posterior of several outcomes, sampled independently from one sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib.posteriors import CalibratedPosteriorList
from tests.contracts import PosteriorContract
from tests.posteriors.examples import make, make_base, make_points


class TestContract(PosteriorContract):
    batch_shapes = (Size(), Size([2, 3]))
    num_outputs = 2

    def make_posterior(self, batch_shape: Size, q: int, dtype: torch.dtype) -> Any:
        X = make_points(*batch_shape, q=q, dtype=dtype).requires_grad_()
        return CalibratedPosteriorList(make("conformal", X), make("recalibrated", 1 - X))


def posteriors(q: int = 3) -> list[Any]:
    X = make_points(2, q=q)
    return [make("conformal", X), make("skewed", 1 - X), make("gaussian", X, denoise=False)]


def test_each_outcome_is_its_own() -> None:
    """Given its base samples and values, each outcome behaves like a single posterior."""
    parts = posteriors()
    joint = CalibratedPosteriorList(*parts)
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(5, *joint.base_sample_shape, generator=generator, dtype=torch.double)
    assert base.shape == (5, 2, 3, 6)
    samples = joint.rsample_from_base_samples(Size([5]), base)
    values = joint.mean + torch.tensor([0.1, -0.2, 0.3], dtype=torch.double)
    for i, part in enumerate(parts):
        own = part.rsample_from_base_samples(Size([5]), base[..., 2 * i : 2 * i + 2])
        assert torch.equal(samples[..., i : i + 1], own)
        for name in ("mean", "variance"):
            assert torch.equal(getattr(joint, name)[..., i : i + 1], getattr(part, name))
        column = values[..., i : i + 1]
        for name in ("cdf", "density"):
            assert torch.equal(
                getattr(joint, name)(values)[..., i : i + 1], getattr(part, name)(column)
            )
            vector = torch.tensor([0.1, 0.5], dtype=torch.double)
            for value in (0.2, vector):
                expected = getattr(part, name)(value)
                assert torch.equal(getattr(joint, name)(value)[..., i : i + 1], expected)


def test_known_and_transformed_outcomes() -> None:
    X = make_points(2, q=3)
    known = EnsemblePosterior(X[..., :1].unsqueeze(-3))
    positive = TransformedPosterior(make_base(X), torch.exp, lambda m, v: m.exp(), lambda m, v: v)
    joint: Any = CalibratedPosteriorList(make("conformal", X), known, positive)
    assert joint.base_sample_shape == (2, 3, 3)
    sampler: Any = get_sampler(joint, Size([8]), seed=0)
    samples = sampler(joint)
    assert torch.equal(samples[..., 1], X[..., 0].expand(8, 2, 3))
    path = make_base(X).rsample_from_base_samples(
        Size([8]), sampler.base_samples[..., 2].expand(8, 2, 3)
    )
    assert_close(samples[..., 2:], path.exp())


def test_different_shapes() -> None:
    parts = make("conformal", make_points(2, q=3)), make("conformal", make_points(2, q=4))
    with pytest.raises(UnsupportedError, match=r"shapes \[\(2, 3, 1\), \(2, 4, 1\)\]"):
        CalibratedPosteriorList(*parts)


def correlation(samples: Tensor) -> Tensor:
    """Between the first two outcomes at the first point."""
    first, second = (samples[:, 0, 0, i] - samples[:, 0, 0, i].mean() for i in range(2))
    value: Tensor = (first * second).mean() / (first.std() * second.std())
    return value.abs()


def test_outcomes_are_independent_in_quasi_random_samples() -> None:
    """Two scrambled sequences would be dependent, as both have the same order of points.

    The correlation of 1024 independent pairs has a standard error of 1/32. One sequence has a
    smaller correlation, as its errors of means are smaller in general.
    """
    parts = posteriors()[:2]
    for seed in range(3):
        sampler = SobolQMCNormalSampler(Size([1024]), seed=seed)
        assert correlation(sampler(CalibratedPosteriorList(*parts))) < 0.03
    separate = [SobolQMCNormalSampler(Size([1024]), seed=seed) for seed in (0, 0)]
    tied = torch.cat([draw(part) for draw, part in zip(separate, parts, strict=True)], dim=-1)
    assert correlation(tied) > 0.3


def test_it_is_not_normal() -> None:
    joint = CalibratedPosteriorList(*posteriors())
    for name in ("distribution", "mvn"):
        with pytest.raises(UnsupportedError, match=r"`model\.gaussian_model`"):
            getattr(joint, name)

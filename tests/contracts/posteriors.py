"""The contract of a posterior."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from botorch.exceptions.errors import BotorchError
from botorch.posteriors import Posterior
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from torch import Size
from torch.testing import assert_close

from tests.contracts._common import DTYPES, check_gradient, leaves_of


class PosteriorContract:
    """A posterior with closed-form marginals and reparametrised samples.

    The hook ``make_posterior`` builds it from inputs that require gradient. For all ``q``, the
    points of a posterior of ``q`` points have to be the first ``q`` points of the same sequence.

    Example:
        >>> class TestMyPosterior(PosteriorContract):
        ...     def make_posterior(self, batch_shape, q, dtype):
        ...         return model.to(dtype).posterior(torch.rand(*batch_shape, q, 2, dtype=dtype))
    """

    batch_shapes: ClassVar[tuple[Size, ...]] = (Size(), Size([3]), Size([2, 3]))
    num_points: ClassVar[tuple[int, ...]] = (1, 3)
    num_samples: ClassVar[int] = 4096
    num_outputs: ClassVar[int] = 1

    def make_posterior(self, batch_shape: Size, q: int, dtype: torch.dtype) -> Posterior:
        """A posterior at ``batch_shape x q`` points."""
        raise NotImplementedError

    def _each(self) -> Iterator[tuple[Any, Size]]:
        for dtype in DTYPES:
            for batch_shape in self.batch_shapes:
                for q in self.num_points:
                    posterior = self.make_posterior(batch_shape, q, dtype)
                    assert posterior.dtype == dtype
                    yield posterior, Size([*batch_shape, q, self.num_outputs])

    def test_marginals_have_the_shape_and_dtype_of_the_posterior(self) -> None:
        for posterior, shape in self._each():
            level = torch.tensor(0.3, dtype=posterior.dtype)
            value = posterior.mean
            assert posterior._extended_shape() == shape
            assert posterior.batch_shape == shape[:-2]
            for result in (
                value,
                posterior.variance,
                posterior.cdf(value),
                posterior.density(value),
                posterior.cdf(level),
                posterior.density(level),
            ):
                assert result.shape == shape
                assert result.dtype == posterior.dtype
                assert result.device == posterior.device
                assert result.isfinite().all()
            assert (posterior.variance > 0).all()

    def test_samples_have_the_extended_shape(self) -> None:
        for posterior, shape in self._each():
            assert posterior.rsample().shape == Size([1, *shape])
            for sample_shape in (Size([4]), Size([2, 4])):
                samples = posterior.rsample(sample_shape)
                assert samples.shape == posterior._extended_shape(sample_shape)
                assert samples.shape == sample_shape + shape
                assert samples.dtype == posterior.dtype
                assert not posterior.sample(sample_shape).requires_grad

    def test_samplers(self) -> None:
        for posterior, shape in self._each():
            start, end = posterior.batch_range
            base_shape = list(posterior.base_sample_shape)
            assert Size(base_shape[start:end]) == shape[:-2]
            base_shape[start:end] = [1] * len(base_shape[start:end])
            draws = Size([8])
            for sampler in (
                SobolQMCNormalSampler(draws, seed=1),
                IIDNormalSampler(draws, seed=1),
                get_sampler(posterior, draws, seed=1),
            ):
                samples = sampler(posterior)
                assert samples.shape == draws + shape
                assert samples.dtype == posterior.dtype
                assert sampler.base_samples.shape == Size([8, *base_shape])
                assert torch.equal(sampler(posterior), samples)

    def test_same_base_samples_give_the_same_samples(self) -> None:
        for posterior, shape in self._each():
            twin = self.make_posterior(shape[:-2], shape[-2], posterior.dtype)
            base = torch.randn(5, *posterior.base_sample_shape, dtype=posterior.dtype)
            samples = posterior.rsample_from_base_samples(Size([5]), base)
            assert samples.shape == Size([5, *shape])
            assert torch.equal(samples, twin.rsample_from_base_samples(Size([5]), base))
            errors = (RuntimeError, BotorchError)
            with pytest.raises(errors):
                posterior.rsample_from_base_samples(Size([4]), base)

    def test_quantiles(self) -> None:
        """Each level inverts ``cdf``; as in BoTorch, several levels give a leading dimension."""
        cases = [(self.batch_shapes[0], 1), (self.batch_shapes[-1], 3)]
        for dtype, (batch_shape, q) in product(DTYPES, cases):
            posterior: Any = self.make_posterior(batch_shape, q, dtype)
            shape = Size([*batch_shape, q, self.num_outputs])
            levels = torch.tensor([0.05, 0.6], dtype=dtype)
            values = posterior.quantile(levels)
            assert values.shape == Size([2, *shape])
            assert (values[1] > values[0]).all()
            assert_close(posterior.quantile(levels[:1]), values[0])
            atol = 1e-6 if dtype == torch.double else 1e-4
            for level, value in zip(levels, values, strict=True):
                result = posterior.cdf(value)
                assert_close(result, level.expand_as(result), rtol=0.0, atol=atol)

    def test_conditional_mean_below(self) -> None:
        """``level`` times this mean is the quantile function's integral; at level 1, the mean."""
        for dtype, batch_shape in product(DTYPES, self.batch_shapes):
            posterior: Any = self.make_posterior(batch_shape, 2, dtype)
            if not hasattr(posterior, "conditional_mean_below"):
                pytest.skip("the posterior has no `conditional_mean_below`")
            low, high = (posterior.conditional_mean_below(level) for level in (0.12, 0.57))
            assert low.shape == posterior.mean.shape and low.dtype == dtype
            assert (low < high).all() and (high < posterior.mean).all()
            check_gradient(low, leaves_of(low))
            if dtype != torch.double:  # a difference quotient loses digits
                continue
            for level in (0.12, 0.57):
                ends = (level - 1e-4, level + 1e-4)
                low, high = (end * posterior.conditional_mean_below(end) for end in ends)
                quantile = posterior.quantile(torch.tensor(level, dtype=dtype))
                assert_close((high - low) / 2e-4, quantile, rtol=1e-5, atol=1e-5)
            nearly_all = posterior.conditional_mean_below(1 - 1e-9)
            assert_close(nearly_all, posterior.mean, rtol=1e-6, atol=1e-6)
            with pytest.raises(BotorchError):
                posterior.conditional_mean_below(0.0)

    def test_density_is_the_slope_of_cdf(self) -> None:
        for batch_shape in self.batch_shapes:
            posterior: Any = self.make_posterior(batch_shape, 2, torch.double)
            for level in (0.12, 0.57):
                value = posterior.quantile(torch.tensor(level, dtype=torch.double))
                step = 1e-5 * posterior.variance.sqrt()
                rise = posterior.cdf(value + step) - posterior.cdf(value - step)
                assert_close(posterior.density(value), rise / (2 * step), rtol=1e-4, atol=1e-8)

    def test_sample_moments(self) -> None:
        """Six standard errors, which a correct posterior exceeds once in 1e9 draws."""
        for batch_shape in self.batch_shapes:
            posterior: Any = self.make_posterior(batch_shape, 3, torch.double)
            sampler = IIDNormalSampler(Size([self.num_samples]), seed=7)
            deviation = sampler(posterior).detach() - posterior.mean.detach()
            variance, squares = posterior.variance.detach(), deviation.square()
            error = 6 * (variance / self.num_samples).sqrt()
            assert (deviation.mean(dim=0).abs() <= error).all()
            error = 6 * (squares.var(dim=0) / self.num_samples).sqrt()
            assert ((squares.mean(dim=0) - variance).abs() <= error).all()

    def test_marginals_do_not_depend_on_the_number_of_points(self) -> None:
        for dtype in DTYPES:
            rtol = 1e-6 if dtype == torch.double else 1e-3
            for batch_shape in self.batch_shapes:
                joint = self.make_posterior(batch_shape, 3, dtype)
                single = self.make_posterior(batch_shape, 1, dtype)
                for name in ("mean", "variance"):
                    expected = getattr(joint, name)[..., :1, :]
                    assert_close(getattr(single, name), expected, rtol=rtol, atol=rtol)

    def test_gradients_reach_the_inputs(self) -> None:
        for dtype in DTYPES:
            posterior: Any = self.make_posterior(self.batch_shapes[-1], 3, dtype)
            base = torch.randn(4, *posterior.base_sample_shape, dtype=dtype)
            level = torch.tensor(0.4, dtype=dtype)
            for value in (
                posterior.mean,
                posterior.variance,
                posterior.quantile(level),
                posterior.rsample_from_base_samples(Size([4]), base),
            ):
                check_gradient(value, leaves_of(value))

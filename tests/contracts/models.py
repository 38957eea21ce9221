"""The contract of a model."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.model import Model
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Size, Tensor
from torch.testing import assert_close

from tests.contracts._common import DTYPES, check_gradient, copies, saved_state, uniform


class ModelContract:
    """A model of one or several outcomes, trained on a few points of the unit cube.

    Example:
        >>> class TestMyModel(ModelContract):
        ...     def make_model(self, dtype):
        ...         return SingleTaskGP(X.to(dtype), Y.to(dtype))
    """

    dim: ClassVar[int] = 2
    num_outputs: ClassVar[int] = 1
    supports_fantasies: ClassVar[bool] = True

    def make_model(self, dtype: torch.dtype) -> Model:
        """A model with fixed hyperparameters."""
        raise NotImplementedError

    def _X(self, *shape: int, dtype: torch.dtype = torch.double) -> Tensor:
        return uniform(*shape, self.dim, seed=4).to(dtype)

    @staticmethod
    def _moments(posterior: Any) -> Tensor:
        return torch.stack([posterior.mean, posterior.variance]).detach()

    def test_posterior(self) -> None:
        for dtype in DTYPES:
            model = self.make_model(dtype)
            assert model.num_outputs == self.num_outputs
            assert model.batch_shape == Size()
            for shape in ((4,), (3, 1), (2, 3, 4)):
                X = self._X(*shape, dtype=dtype).requires_grad_()
                for noise in (False, True):
                    posterior: Any = model.posterior(X, observation_noise=noise)
                    expected = (*shape, self.num_outputs)
                    assert posterior.mean.shape == posterior.variance.shape == expected
                    assert posterior.mean.dtype == dtype
                    assert posterior.rsample(Size([2])).shape == (2, *expected)
                    assert (posterior.variance > 0).all()
                    check_gradient(posterior.mean, [X])
                    check_gradient(posterior.variance, [X])

    def test_outputs(self) -> None:
        model, X = self.make_model(torch.double), self._X(5)
        expected = self._moments(model.posterior(X))[..., :1]
        assert_close(self._moments(model.posterior(X, output_indices=[0])), expected)
        subset = model.subset_output([0])
        assert subset.num_outputs == 1
        assert_close(self._moments(subset.posterior(X)), expected)

    def test_posterior_transform(self) -> None:
        model, X = self.make_model(torch.double), self._X(2, 3)
        posterior: Any = model.posterior(X)
        weights = torch.zeros(self.num_outputs, dtype=torch.double)
        weights[0] = -1.0
        transform = ScalarizedPosteriorTransform(weights, offset=0.5)
        negated: Any = model.posterior(X, posterior_transform=transform)
        assert_close(negated.mean, 0.5 - posterior.mean[..., :1])
        assert_close(negated.variance, posterior.variance[..., :1])
        levels = torch.tensor([0.1, 0.6], dtype=torch.double)
        quantiles = posterior.quantile(1 - levels)[..., :1]
        assert_close(negated.quantile(levels), 0.5 - quantiles)
        assert negated.rsample(Size([2])).shape == (2, 2, 3, 1)

    def test_conditioning(self) -> None:
        model, X = self.make_model(torch.double), self._X(4)
        before = self._moments(model.posterior(X))
        new_X: Any = self._X(2) * 0.9
        new_Y = torch.tensor([[1.0], [-1.0]], dtype=torch.double).expand(2, self.num_outputs)
        if self.num_outputs > 1:  # the shape for BoTorch's models of several outcomes
            new_X = [new_X] * self.num_outputs
        conditioned = model.condition_on_observations(new_X, new_Y)
        after = self._moments(conditioned.posterior(X))
        assert after.shape == before.shape and not torch.equal(after, before)
        assert_close(self._moments(model.posterior(X)), before)

    def test_fantasies(self) -> None:
        if not self.supports_fantasies:
            pytest.skip("the model declares no fantasies")
        model: Any = self.make_model(torch.double)
        X, X_pending = self._X(4), self._X(2) * 0.9
        before = self._moments(model.posterior(X))
        sampler = SobolQMCNormalSampler(Size([5]), seed=0)
        fantasies = model.fantasize(X_pending, sampler)
        assert fantasies.batch_shape == Size([5])
        assert fantasies.posterior(X).mean.shape == (5, 4, self.num_outputs)
        assert fantasies.posterior(self._X(3, 1, 4)).mean.shape == (3, 5, 4, self.num_outputs)
        assert_close(self._moments(model.posterior(X)), before)

    def test_state_dict(self) -> None:
        model, twin = self.make_model(torch.double), self.make_model(torch.double)
        X = self._X(5)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(0.1)
        twin.load_state_dict(saved_state(model))
        assert_close(self._moments(twin.posterior(X)), self._moments(model.posterior(X)))

    def test_copies(self) -> None:
        model, X = self.make_model(torch.double), self._X(5)
        for twin in copies(model):
            assert_close(self._moments(twin.posterior(X)), self._moments(model.posterior(X)))

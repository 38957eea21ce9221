"""The contract of an acquisition function."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchError, UnsupportedError
from torch import Size, Tensor
from torch.testing import assert_close

from tests.contracts._common import DTYPES, check_gradient, copies, uniform


class AcquisitionContract:
    """An acquisition function of single points, ``b x 1 x d -> b``.

    Example:
        >>> class TestMyAcquisition(AcquisitionContract):
        ...     def make_acquisition(self, dtype, maximize=True):
        ...         return CalibratedUpperConfidenceBound(model.to(dtype), maximize=maximize)
    """

    dim: ClassVar[int] = 2
    batch_shapes: ClassVar[tuple[Size, ...]] = (Size([1]), Size([5]), Size([2, 3]))

    def make_acquisition(self, dtype: torch.dtype, maximize: bool = True) -> AcquisitionFunction:
        """The function; ``maximize`` is False only if `make_negated_acquisition` is given."""
        raise NotImplementedError

    def make_negated_acquisition(self, dtype: torch.dtype) -> AcquisitionFunction | None:
        """The function that maximises on the negated model, where ``maximize`` exists."""
        return None

    def make_inputs(self, batch_shape: Size, q: int, dtype: torch.dtype) -> Tensor:
        """Points of shape ``batch_shape x q x d`` at which the function is smooth."""
        return (0.05 + 0.9 * uniform(*batch_shape, q, self.dim)).to(dtype)

    def test_values(self) -> None:
        for dtype in DTYPES:
            acqf, twin = self.make_acquisition(dtype), self.make_acquisition(dtype)
            for batch_shape in self.batch_shapes:
                X = self.make_inputs(batch_shape, 1, dtype)
                values = acqf(X)
                assert values.shape == batch_shape
                assert values.dtype == dtype
                assert values.isfinite().all()
                assert torch.equal(acqf(X), values), "values must be deterministic"
                assert_close(twin(X), values)
                rows = torch.cat([acqf(row) for row in X.reshape(-1, 1, 1, self.dim)])
                tol = 1e-7 if dtype == torch.double else 1e-3
                assert_close(rows, values.reshape(-1), rtol=tol, atol=tol)

    def test_gradient(self) -> None:
        acqf = self.make_acquisition(torch.double)
        X = self.make_inputs(Size([3]), 1, torch.double).requires_grad_()
        assert torch.autograd.gradcheck(acqf, (X,), atol=1e-5, rtol=1e-3)
        check_gradient(acqf(X), [X])

    def test_single_precision_gradient(self) -> None:
        X = self.make_inputs(Size([3]), 1, torch.float32).requires_grad_()
        check_gradient(self.make_acquisition(torch.float32)(X), [X])

    def test_minimisation_is_maximisation_of_the_negated_model(self) -> None:
        negated = self.make_negated_acquisition(torch.double)
        if negated is None:
            pytest.skip("the acquisition function has no `maximize`")
        X = self.make_inputs(Size([6]), 1, torch.double)
        acqf = self.make_acquisition(torch.double, maximize=False)
        assert_close(acqf(X), negated(X), rtol=1e-6, atol=1e-9)

    def test_copies(self) -> None:
        acqf = self.make_acquisition(torch.double)
        X = self.make_inputs(Size([4]), 1, torch.double)
        for twin in copies(acqf):
            assert_close(twin(X), acqf(X), rtol=1e-12, atol=1e-12)

    def test_several_points_are_refused(self) -> None:
        X = self.make_inputs(Size([4]), 2, torch.double)
        acqf = self.make_acquisition(torch.double)
        with pytest.raises((AssertionError, ValueError, BotorchError)):
            acqf(X)

    def test_pending_points_are_used_or_refused(self) -> None:
        acqf = self.make_acquisition(torch.double)
        X = self.make_inputs(Size([4]), 1, torch.double)
        expected = acqf(X)
        try:
            acqf.set_X_pending(self.make_inputs(Size(), 2, torch.double))
        except UnsupportedError:
            assert_close(acqf(X), expected)
            return
        values = acqf(X)
        assert values.shape == expected.shape and values.isfinite().all()
        acqf.set_X_pending(None)
        assert_close(acqf(X), expected)

"""The contract of a calibrator."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from botorch.exceptions.errors import BotorchError
from torch import Tensor
from torch.testing import assert_close

from tests.contracts._common import copies, saved_state, uniform


class CalibratorContract:
    """A calibrator: ``predictive``, ``update`` and a state that survives.

    Example:
        >>> class TestMyCalibrator(CalibratorContract):
        ...     def make_calibrator(self):
        ...         return OnlineConformal(0.2)
    """

    dim: ClassVar[int] = 2

    def make_calibrator(self) -> Any:
        """A calibrator without any updates."""
        raise NotImplementedError

    def _trained(self, num: int) -> Any:
        calibrator = self.make_calibrator()
        calibrator.update(*self._data(num))
        return calibrator

    def _data(self, num: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        z = 2 * torch.randn(num, dtype=torch.double, generator=generator, device="cpu")
        X = uniform(num, self.dim, seed=2)
        return X, z.to(X)

    def _quantiles(self, calibrator: Any, dtype: torch.dtype = torch.double) -> Tensor:
        """Quantiles at fixed points, to compare predictive distributions."""
        X = uniform(3, 4, self.dim, seed=3).to(dtype)
        levels = torch.linspace(0.05, 0.95, 7, dtype=torch.double).view(-1, 1, 1, 1)
        predictive = calibrator.predictive(X).to(torch.double)
        assert torch.broadcast_shapes(predictive.batch_shape, (3, 4, 1)) == (3, 4, 1)
        values = predictive.quantile(levels.expand(-1, 3, 4, 1))
        assert values.shape == (7, 3, 4, 1) and values.isfinite().all()
        return values.detach()

    def test_predictive_has_one_distribution_per_point(self) -> None:
        for calibrator in (self.make_calibrator(), self._trained(5)):
            self._quantiles(calibrator)
            for shape in ((1,), (4,), (3, 1), (2, 3, 4)):
                predictive = calibrator.predictive(uniform(*shape, self.dim))
                assert torch.broadcast_shapes(predictive.batch_shape, (*shape, 1)) == (*shape, 1)
                assert predictive.mean.isfinite().all() and predictive.variance.isfinite().all()

    def test_updates_count_in_order(self) -> None:
        X, z = self._data(9)
        expected = self._quantiles(self._trained(9))
        pieces = self.make_calibrator()
        for start, stop in ((0, 1), (1, 1), (1, 6), (6, 9)):
            pieces.update(X[start:stop], z[start:stop])
        assert_close(self._quantiles(pieces), expected)
        assert not torch.equal(self._quantiles(self.make_calibrator()), expected)

    def test_failed_updates_change_nothing(self) -> None:
        X, z = self._data(4)
        calibrator = self._trained(6)
        before, expected = copy.deepcopy(calibrator.state_dict()), self._quantiles(calibrator)
        bad_X, bad_z, infinite = X.clone(), z.clone(), z.clone()
        bad_X[2, 0] = bad_z[3] = torch.nan
        infinite[0] = torch.inf
        for arguments in (
            (torch.cat([X, X], dim=-1), z),
            (X[..., :-1], z),
            (X, z[:-1]),
            (X, z.unsqueeze(-1)),
            (bad_X, z),
            (X, bad_z),
            (X, infinite),
        ):
            with pytest.raises(BotorchError):
                calibrator.update(*arguments)
            after = calibrator.state_dict()
            assert before.keys() == after.keys()
            assert all(torch.equal(before[key], after[key]) for key in before)
            assert torch.equal(self._quantiles(calibrator), expected)

    def test_state_fits_any_length_of_history(self) -> None:
        for source_num, target_num in ((7, 0), (7, 3), (3, 7), (0, 5), (5, 5)):
            source, target = self._trained(source_num), self._trained(target_num)
            target.load_state_dict(saved_state(source))
            assert_close(self._quantiles(target), self._quantiles(source))
            more = self._data(4)
            target.update(*more)
            source.update(*more)
            assert_close(self._quantiles(target), self._quantiles(source))

    def test_copies_are_independent(self) -> None:
        calibrator = self._trained(6)
        expected = self._quantiles(calibrator)
        for twin in copies(calibrator):
            assert_close(self._quantiles(twin), expected)
            twin.update(*self._data(20))
            assert_close(self._quantiles(calibrator), expected)

    def test_either_precision(self) -> None:
        single = self.make_calibrator().to(torch.float32)
        X, z = self._data(6)
        single.update(X.float(), z.float())
        assert single.predictive(X.float()).knots.dtype == torch.float32
        quantiles = self._quantiles(single, torch.float32)
        assert_close(quantiles, self._quantiles(self._trained(6)), rtol=1e-3, atol=1e-3)

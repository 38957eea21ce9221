"""Contracts of posteriors, models, calibrators and acquisition functions, as test mixins.

A class passes a contract by inheriting it in a test file, with the hooks filled in; pytest
collects the checks::

    from tests.contracts import PosteriorContract

    class TestMyPosterior(PosteriorContract):
        def make_posterior(self, batch_shape, q, dtype):
            ...

Hooks must be deterministic: called twice, they return equal objects that share no state.
Class attributes (dimension, shapes, tolerances) may be overridden.
"""

from tests.contracts.acquisition import AcquisitionContract
from tests.contracts.calibrators import CalibratorContract
from tests.contracts.models import ModelContract
from tests.contracts.posteriors import PosteriorContract

__all__ = ["AcquisitionContract", "CalibratorContract", "ModelContract", "PosteriorContract"]

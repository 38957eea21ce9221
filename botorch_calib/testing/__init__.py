"""Contracts of posteriors, models, calibrators and acquisition functions, as test mixins.

A class of this or of another package passes a contract by inheriting it in a test suite, with
the hooks filled in; pytest collects the checks::

    from botorch_calib.testing import PosteriorContract

    class TestMyPosterior(PosteriorContract):
        def make_posterior(self, batch_shape, q, dtype):
            ...

Hooks must be deterministic: called twice, they return equal objects that share no state.
Class attributes (dimension, shapes, tolerances) may be overridden.
"""

from botorch_calib.testing.acquisition import AcquisitionContract
from botorch_calib.testing.calibrators import CalibratorContract
from botorch_calib.testing.models import ModelContract
from botorch_calib.testing.posteriors import PosteriorContract

__all__ = ["AcquisitionContract", "CalibratorContract", "ModelContract", "PosteriorContract"]

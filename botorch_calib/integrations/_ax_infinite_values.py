"""`LeaveOutInfinite`, a transform of Ax: no Gaussian process can be fitted to an infinite value.

Importing this module teaches Ax to store it.
"""

from __future__ import annotations

import warnings

from ax.adapter.transforms.base import Transform
from ax.core.data_utils import ExperimentData
from ax.storage.transform_registry import register_transform
from botorch.exceptions.warnings import InputDataWarning

from botorch_calib.integrations._stored_decisions import INFINITE


class LeaveOutInfinite(Transform):
    """Leaves infinite values out of the data of models, as Ax does with NaN.

    Warns:
        InputDataWarning: Which metric of which trials is left out.
    """

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        """The data, with NaN in place of infinite means."""
        observed = experiment_data.observation_data
        for metric, means in observed["mean"].items():
            infinite = means.abs() >= INFINITE
            if not infinite.any():
                continue
            trials = sorted({*means.index[infinite].get_level_values("trial_index")})
            warnings.warn(
                f"The metric {metric!r} is infinite in the trials {trials}: models leave these "
                "values out, and so do not learn to keep away. Report a finite value, such as the "
                "worst one possible, if they should.",
                InputDataWarning,
                stacklevel=2,
            )
            observed["mean", metric] = means.mask(infinite)
        return experiment_data


register_transform(LeaveOutInfinite)

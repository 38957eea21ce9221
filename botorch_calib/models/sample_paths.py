"""Sample paths of calibrated models, for BoTorch's ``draw_matheron_paths`` and what uses it.

Importing this module registers `CalibratedModel` with BoTorch's dispatcher.
"""

from __future__ import annotations

from typing import Any

from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch.models import ExactGP
from torch import Size, Tensor

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.inspection import predicting_part


class CalibratedPath(SamplePath):
    """Functions drawn from a calibrated model: the transport of two paths of its Gaussian process.

    With ``f`` and ``f'`` independent paths of the process, ``z`` the standardised value of
    ``f + sqrt(n / v) (f' - mu)`` and ``T`` the map of `CalibratedPosterior`, a function is
    ``f + a sqrt(v + n) (T(z) - z)``, as in that posterior's joint samples. It is a function of
    ``x`` since its noise is. Its distribution at a point is that of the posterior as far as those
    of ``f`` and ``f'`` are: BoTorch's paths draw the prior from random features.

    Args:
        model: The calibrated model, whose posterior is of the objective.
        path: Paths of its Gaussian process, in units of the outcome.
        other: As many independent ones.
    """

    def __init__(self, model: CalibratedModel, path: SamplePath, other: SamplePath) -> None:
        super().__init__()
        self.model, self.path, self.other = model, path, other

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the functions; differentiable in ``X``.

        Args:
            X: ``batch_shape x q x d``; the batch shape broadcasts against the sample shape.

        Returns:
            Values in units of the outcome, ``sample_shape x batch_shape x q``.
        """
        # The paths know the correlations: only the marginals are needed.
        posterior = self.model.posterior(X.unsqueeze(-2))
        paths = (path(X).unsqueeze(-1).unsqueeze(-1) for path in (self.path, self.other))
        values: Tensor = posterior._transported(*paths)
        return values.squeeze(-1).squeeze(-1)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Pass on to the paths what BoTorch asks of them."""
        for path in (self.path, self.other):
            path.set_ensemble_as_batch(ensemble_as_batch)


@DrawMatheronPaths.register(CalibratedModel)
def _draw_calibrated_paths(
    model: CalibratedModel, *, sample_shape: Size, **samplers: Any
) -> CalibratedPath:
    if not model.denoise:
        raise UnsupportedError(
            "An observation is no function of its input, as its noise is drawn anew each time: "
            "paths need a CalibratedModel with `denoise=True`."
        )
    gp = predicting_part(model.model)
    if not isinstance(gp, ExactGP) or isinstance(gp, MultiTaskGPyTorchModel):
        raise UnsupportedError(
            f"Paths need an exact Gaussian process with one task, such as SingleTaskGP, got "
            f"{type(gp).__name__}: draw joint samples from `posterior` instead."
        )
    gp.eval()
    path, other = (draw_matheron_paths(gp, sample_shape, **samplers) for _ in range(2))
    return CalibratedPath(model, path, other)

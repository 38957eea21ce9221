"""Suite `conformal`: plain, calibrated and conformal Bayesian optimization without noise."""

from __future__ import annotations

from functools import partial

from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models.model import Model
from botorch.test_functions.synthetic import Ackley
from torch import Tensor

from benchmarks.baselines import ClassifierDensityRatio, WeightedConformal, proposal_samples
from benchmarks.calibration.methods import ALPHA, CHEAP
from benchmarks.framework.sequential import Method, Problem, botorch_oracle, bounds_of, sobol_design
from benchmarks.framework.strategies import AcquisitionStrategy, calibrate
from benchmarks.framework.surrogates import Refitted
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator


class ConformalStrategy(AcquisitionStrategy):
    """Weighted conformal prediction, with large weights where the plain GP would query next."""

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        gp = self.update_gp(X, Y)
        plain = LogExpectedImprovement(gp, Y.max())
        proposals = proposal_samples(plain, self.problem.bounds_tensor(), num_samples=256)
        ratio = ClassifierDensityRatio(gp.transform_inputs(X), gp.transform_inputs(proposals))
        self.calibrator = partial(WeightedConformal, self.alpha, ratio)
        return calibrate(gp, self.calibrator, self.problem.num_initial)


def ackley() -> Problem:
    bounds = bounds_of(Ackley())
    return Problem(
        name="ackley",
        build=partial(botorch_oracle, cls=Ackley, negate=True),
        bounds=bounds,
        optimal_value=0.0,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=3,
        num_evaluations=25,
        surrogate=Refitted(every=5, at_first=10),
    )


def methods() -> tuple[Method, ...]:
    # Without noise, improvement is over the largest outcome.
    settings = {**CHEAP, "incumbent": "outcome", "alpha": ALPHA}
    locbo, ocbo = partial(LocalizedConformal, alpha=ALPHA), QuantileRecalibrator
    return (
        Method("bo", partial(AcquisitionStrategy, **settings)),
        Method("locbo", partial(AcquisitionStrategy, calibrator=locbo, **settings)),
        Method("ocbo", partial(AcquisitionStrategy, calibrator=ocbo, **settings)),
        Method("cbo", partial(ConformalStrategy, **settings)),
    )

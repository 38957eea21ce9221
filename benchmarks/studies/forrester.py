"""Does calibration lead the search out of a wrong basin? Forrester's function over 20 seeds.

The study of online calibrated Bayesian optimization (section 6.1, figures 1 and 6) shows one
run: a Gaussian process starts at three points that miss the basin of the optimum, is so sure
of itself that its upper confidence bound never looks there, and is freed by recalibration.
This asks how often that happens. The protocol, fixed before the first run:

* ``(6 x - 2)^2 sin(12 x - 4)`` on [0, 1] is minimised: minus it is maximised. The optimum is
  at 0.757, a local one at 0.143. Three initial points, one drawn uniformly from each third of
  [0, 0.55]; 25 evaluations without noise; seeds 0 to 19.
* A GP with an RBF kernel, an output scale, a constant mean and standardised outcomes. As the
  evaluations are exact, the noise variance is given: 1e-5 of the outcomes' variance, for
  the sake of the Cholesky factor. Hyperparameters are fitted at every step, by maximum
  likelihood but for the lengthscale, which has BoTorch's broad log-normal prior: three
  points alone need not determine it. (The paper uses GPyOpt, which has no priors.)
* ``fitted`` is that GP. In ``long_lengthscale``, the one variant, the lengthscale is fixed at
  0.5, too long for this function, and only the output scale and the mean are fitted.
* The acquisition function is the upper end of what the model states: its ``level``-quantile,
  ``mu + Phi^-1(level) sigma`` for the plain GP. The paper does not give its level: 0.9 and
  0.975 are both run. It is maximised over 1001 evenly spaced points, so that no optimiser
  takes part in the comparison; a point may be evaluated again.
* Calibrators, fed with all data at every step, the initial points included: the paper's
  leave-one-out recalibration (``loo``), the package's `QuantileRecalibrator` with its defaults,
  one step ahead (``ocbo``) and localized by ``lengthscale="auto"`` (``ocbo_auto``), and
  `LocalizedConformal` at ``alpha = 0.2`` with its defaults (``locbo``).
* A run has found the basin once it evaluates a point within 0.07 of the optimum.
  The comparison that decides is the share of runs that find it.

Added after the run: where a fit fails, the hyperparameters of the step before are kept. One of
the 10,000 did, in ``long_lengthscale``, whose output scale runs off to 1e5 and beyond.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks.calibration.synthetic import Forrester, forrester_design
from benchmarks.framework.collected import Collected
from benchmarks.framework.markdown import table
from benchmarks.framework.regret_report import RegretReport
from benchmarks.framework.report import TABLES_DIR, collect
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import RESULTS_DIR, ResultStore, write_atomically
from benchmarks.framework.runner import StaleResultsError, parse_seeds, print_summary, run_suite
from benchmarks.framework.sequential import Method, Problem, botorch_oracle
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.strategies import CalibratorFactory, prediction_extras
from benchmarks.framework.suite import Suite
from botorch_calib import CalibratedModel, CalibratedUpperConfidenceBound
from botorch_calib.calibration import GaussianScore, LocalizedConformal, QuantileRecalibrator
from botorch_calib.distributions.scoring import binomial_interval, calibration_error

OPTIMUM, MINIMUM = 0.757248757841856, -6.020740055767
RADIUS = 0.07
LEVELS = (0.9, 0.975)
ALPHA = 0.2
LONG_LENGTHSCALE = 0.5
RELATIVE_NOISE = 1e-5
GRID = torch.linspace(0.0, 1.0, 1001, dtype=torch.double).reshape(-1, 1, 1)
ERROR_LEVELS = torch.arange(1, 10, dtype=torch.double) / 10

COMMAND = "python -m benchmarks.studies.forrester"


@dataclass(frozen=True)
class NoiseFreeRbf:
    """The Gaussian process of the study, fitted anew at every step.

    Args:
        lengthscale: A fixed lengthscale, in units of the unit interval (default: fitted).
    """

    lengthscale: float | None = None

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        """See `Surrogate`."""
        gp = SingleTaskGP(
            X,
            Y,
            train_Yvar=torch.full_like(Y, RELATIVE_NOISE) * Y.var(),
            covar_module=ScaleKernel(self._kernel()),
            input_transform=Normalize(1, bounds=bounds),
            outcome_transform=Standardize(1),
        )
        try:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
        except ModelFittingError:
            if previous is None:
                raise
            gp.covar_module.load_state_dict(previous.covar_module.state_dict())
            gp.mean_module.load_state_dict(previous.mean_module.state_dict())
        return gp

    def _kernel(self) -> RBFKernel:
        if self.lengthscale is None:
            return get_covar_module_with_dim_scaled_prior(ard_num_dims=1)
        kernel = RBFKernel()
        kernel.lengthscale = self.lengthscale
        return kernel.requires_grad_(False)


@dataclass
class BoundStrategy:
    """Goes where the stated ``level``-quantile is highest.

    Args:
        problem: The problem.
        seed: The seed of the replicate.
        level: Level of the quantile.
        calibrator: Makes the calibrator; ``None`` for the plain GP.
        residuals: What the calibrator learns from, see `CalibratedModel.from_history`.
    """

    problem: Problem
    seed: int
    level: float
    calibrator: CalibratorFactory | None = None
    residuals: str = "prequential"
    gp: SingleTaskGP | None = field(default=None, init=False, repr=False)

    def fit(self, X: Tensor, Y: Tensor) -> Model:
        """Fit the GP and replay the calibrator over its data."""
        step = len(X) - self.problem.num_initial
        gp = self.problem.surrogate(X, Y, self.problem.bounds_tensor(), step, self.gp)
        self.gp = gp
        if self.calibrator is None:
            return gp
        # Without noise an observation and the objective have the same distribution.
        return CalibratedModel.from_history(
            gp, self.calibrator(), denoise=False, residuals=self.residuals
        )

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        """The best point of the grid, ``1 x 1``."""
        assert model is not None
        with torch.no_grad():
            return GRID[self.bound(model)(GRID).argmax()]

    def bound(self, model: Model) -> AcquisitionFunction:
        """The acquisition function."""
        if self.calibrator is None:
            return UpperConfidenceBound(model, beta=NormalDist().inv_cdf(self.level) ** 2)
        return CalibratedUpperConfidenceBound(model, level=self.level)

    @torch.no_grad()
    def extras(self, model: Model | None, x: Tensor, y: Tensor) -> dict[str, float]:
        """How the prediction fared, and what the model states about the optimum.

        ``multiple`` is the distance of the bound from the mean at the optimum in standard
        deviations of the GP, ``headroom`` that of the bound from the true optimal value.
        """
        assert model is not None
        gp: Any = model.model if isinstance(model, CalibratedModel) else model
        optimum = x.new_full((1, 1), OPTIMUM)
        posterior = gp.posterior(optimum)
        bound = self.bound(model)(optimum).item()
        return {
            **prediction_extras(model, x, y, ALPHA),
            "multiple": (bound - posterior.mean.item()) / posterior.variance.sqrt().item(),
            "headroom": bound + MINIMUM,
            "lengthscale": gp.covar_module.base_kernel.lengthscale.item(),
            "outputscale": gp.covar_module.outputscale.item(),
        }

    def objective_covered(self, model: Model | None, X: Tensor, f: Tensor) -> None:
        """Without noise that is what `extras` tells of outcomes."""
        return None


def problem(name: str, surrogate: NoiseFreeRbf) -> Problem:
    """Forrester's function with one kind of GP."""
    return Problem(
        name=name,
        build=partial(botorch_oracle, cls=Forrester, negate=True),
        bounds=((0.0, 1.0),),
        optimal_value=-MINIMUM,
        initial_design=forrester_design,
        num_initial=3,
        num_evaluations=25,
        surrogate=surrogate,
    )


CALIBRATORS: dict[str, CalibratorFactory | None] = {
    "plain": None,
    "loo": partial(QuantileRecalibrator, method="exact", score=GaussianScore(), tails="gaussian"),
    "ocbo": QuantileRecalibrator,
    "ocbo_auto": partial(QuantileRecalibrator, lengthscale="auto"),
    "locbo": partial(LocalizedConformal, alpha=ALPHA),
}


def method(name: str, level: float) -> Method:
    """One calibrator, or none, at one level."""
    residuals = "loo" if name == "loo" else "prequential"
    build = partial(BoundStrategy, level=level, calibrator=CALIBRATORS[name], residuals=residuals)
    return Method(f"{name}_{level:g}", build)


STUDY = Suite(
    name="forrester",
    problems=(
        problem("fitted", NoiseFreeRbf()),
        problem("long_lengthscale", NoiseFreeRbf(LONG_LENGTHSCALE)),
    ),
    methods=tuple(method(name, level) for level in LEVELS for name in CALIBRATORS),
    baseline=f"plain_{LEVELS[0]:g}",
    report=RegretReport(),
    seeds=range(20),
)


# ------------------------------------------------------------ what is reported


def first_visit(result: Result) -> float:
    """The number of the first evaluation in the optimum's basin, from 1; infinite if none is."""
    points = np.array(result.X)[result.num_initial :, 0]
    visits = np.flatnonzero(np.abs(points - OPTIMUM) < RADIUS)
    return float(visits[0] + 1) if len(visits) else math.inf


def misjudged(result: Result) -> float:
    """The sum of squared differences of stated and observed frequencies, at nine levels."""
    pits = torch.tensor(result.extras["pit"], dtype=torch.double)
    return float(calibration_error(pits, ERROR_LEVELS))


def before_visit(result: Result, name: str) -> list[float]:
    """A recorded series up to the choice of the first point in the optimum's basin."""
    visit = first_visit(result)
    values = result.extras[name][: None if math.isinf(visit) else int(visit)]
    return [value for value in values if value is not None]


def row(name: str, level: float, results: Sequence[Result], plain: Sequence[Result]) -> list[str]:
    """One method's cells beside the plain GP's runs at the same level, in order of seed."""
    visits = np.array([first_visit(result) for result in results])
    found, found_by_plain = np.isfinite(visits), np.isfinite([first_visit(r) for r in plain])
    low, high = (end.item() for end in binomial_interval(int(found.sum()), len(found)))
    gained, lost = (found & ~found_by_plain).sum(), (~found & found_by_plain).sum()
    median = np.median(visits)
    pits = np.concatenate([result.extras["pit"] for result in results])
    multiples = np.concatenate([before_visit(result, "multiple") for result in results])
    headroom = np.concatenate([before_visit(result, "headroom") for result in results])
    return [
        name,
        f"{found.sum()} of {len(found)} [{low:.2f}, {high:.2f}]",
        "–" if name == "plain" else f"+{gained} −{lost}",
        "never" if math.isinf(median) else f"{median:g}",
        show([-result.y[result.inference_by_outcome[-1]] for result in results]),
        show([misjudged(result) for result in results]),
        f"{np.mean(pits <= level):.2f}",
        f"{np.median(multiples):.2f}",
        f"{np.mean(headroom < 0):.2f}",
    ]


def show(values: Sequence[float]) -> str:
    """Mean ± standard error."""
    estimate = Estimate.of(values)
    error = "?" if math.isnan(estimate.standard_error) else f"{estimate.standard_error:.2f}"
    return f"{estimate.mean:.2f} ± {error}"


HEADER = (
    "method",
    "found the basin [95 %]",
    "seeds gained, lost",
    "median step",
    "final best f",
    "calibration error",
    "bound held",
    "multiple of sigma",
    "bound below optimum",
)

LEGEND = """\
Forrester's function, minimum -6.02 at 0.757, from three points in [0, 0.55]; 25 evaluations. A
run has found the basin once it evaluates a point within 0.07 of the optimum; in brackets
Clopper and Pearson's interval. Seeds are gained (lost) where the method finds the basin and
the plain GP at the same level does not (or the reverse). The median step counts runs without
a find as infinite. Final best and calibration error, the sum over nine levels of
squared differences of stated and observed frequencies of the predictions made (0.066 is
expected of true ones): mean ± standard error over seeds. "Bound held": share of
outcomes at or below the bound stated at the point chosen, all runs pooled. The last two columns
are about the optimum before it is found: the median distance of the bound from the
mean there, in standard deviations of the GP, and the share of steps at which the bound denies
the optimum its value."""


def markdown(results: Collected) -> str:
    """The report, from results by problem and method in order of seed."""
    lines = ["# Forrester's function", "", f"Reproduce with `{COMMAND}`.", "", LEGEND]
    for name, by_method in results.items():
        for level in LEVELS:
            plain = by_method[f"plain_{level:g}"]
            rows = [
                row(calibrator, level, by_method[f"{calibrator}_{level:g}"], plain)
                for calibrator in CALIBRATORS
            ]
            lines += ["", f"## GP `{name}`, level {level:g}", "", *table(HEADER, rows)]
    versions = next(iter(next(iter(results.values())).values()))[0].versions
    return "\n".join([*lines, "", ", ".join(f"{k} {v}" for k, v in versions.items()), ""])


def build_parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=parse_seeds, default=list(STUDY.seeds), help="as 0:20")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--results", type=Path, default=RESULTS_DIR, metavar="FOLDER")
    parser.add_argument("--tables", type=Path, default=TABLES_DIR, metavar="FOLDER")
    parser.add_argument("--overwrite", action="store_true", help="run again what is outdated")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, print the report and write it; 1 if anything failed."""
    args = build_parser().parse_args(argv)
    store = ResultStore(args.results)
    try:
        summary = run_suite(STUDY, store, args.seeds, jobs=args.jobs, overwrite=args.overwrite)
    except StaleResultsError as error:
        print(error, file=sys.stderr)
        return 2
    print_summary(summary)
    if summary.failures:
        return 1
    collected, _ = collect(STUDY, store, args.seeds)
    text = markdown(collected)
    print(text)
    write_atomically(args.tables / "forrester.md", text)
    return 0


if __name__ == "__main__":
    # As an importable module and not as `__main__`: results record the names of what was run.
    from benchmarks.studies import forrester

    sys.exit(forrester.main())

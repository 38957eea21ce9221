"""What would a simpler form cost? Robust bounds, calibrators and draws, each against autograd.

For every hand-written derivative, second path and special case of ``robust/``, ``calibration/`` and
``models/fourier_paths.py``, the time of a call on which users wait is compared with that of the
simplest form, in turn, in one process, by processor time (medians). It stays where it wins more
than 15 %, or digits that are needed. What was taken out cannot be measured here any more: its
figures, `TAKEN_OUT`, are those of the same workloads before it went.

Run it by ``python -m benchmarks.studies.simpler_forms_robust`` (two minutes). It printed, in short
(time of the simplest form, b = 4 and b = 64 where there are two figures; difference; verdict):

======================================================== ================ ======= ==============
form / simplest form                                     time             differs verdict
======================================================== ================ ======= ==============
closed form of robust bounds / autograd through the
moments of single points                                 1.6, 6.0 to 7.8  1e-12   kept
second derivatives of the GP by hand / autograd twice    1.07, 1.18       4e-10   kept
... in a whole choice of WDRBO                           1.31             4e-10   kept
localized thresholds at all pairs by products / at each  1.0, 1.0 to 2.5  9e-11   kept
derivatives of one localized threshold by a factor of
the sum / by terms, as of several (M = 100, 256)         1.0, 1.1 to 1.6  3e-16   kept
moments of 19 localized levels by a Function / by
autograd                                                 1.2, 2.0         6e-10   kept
moments through buffers / in new tensors, Matern 5/2     0.8, 1.5         4e-15   kept
values with their Jacobian by a Function / by a product  1.08, 0.99       0       kept: raises
exact Wasserstein ball: unsettled sources / all of them  0.92, 1.6 to 2.1 0       kept
KL ball: short divergence / the accurate one throughout  1.26, 1.5 to 1.8 3e-16   kept
variance by a root / by the precision, near-duplicates                    20      kept: digits
draws together / one by one (b = 4, 20, 512)             1.7 to 5.3       7e-14   kept
gradient of random features with their values (b = 512)  1.3 to 1.4       1e-15   kept
the same (b = 4, 20: most searches)                      1.0              1e-15   no gain
one distribution for all points kept / made each time    1.15 to 1.16     6e-14   kept
weights of a mixture in NumPy / in PyTorch               1.24             3e-11   kept
======================================================== ================ ======= ==============
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from botorch.models import SingleTaskGP
from botorch_calib.models.fourier_paths import FourierPaths
from botorch_calib.robust.gp.pairwise_moments import PairwiseMoments
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.framework.markdown import table
from benchmarks.framework.runner import one_torch_thread
from benchmarks.perf import calibrated_and_delayed as shared
from benchmarks.perf import robust
from benchmarks.perf.measure import Call, Workload, value_and_gradient
from benchmarks.studies.simpler_forms import plain_normal_moments
from botorch_calib import CalibratedModel, LogCalibratedExpectedImprovement
from botorch_calib.acquisition import DelayedThompsonSampling
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator
from botorch_calib.calibration import base as calibrators
from botorch_calib.calibration.learners import aggregated
from botorch_calib.calibration.learners.radial_sum import PairedSums
from botorch_calib.distributions import piecewise
from botorch_calib.models import fourier_paths, radial_kernels
from botorch_calib.robust import contextual_function
from botorch_calib.robust.contextual_function import norm_and_direction
from botorch_calib.robust.gp.bonus import CalibratedBonus
from botorch_calib.robust.gp.closed_form_bound import ClosedFormConfidenceBound
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.gp.stationary_gp import stationary_gp
from botorch_calib.robust.sets import kullback_leibler, wasserstein
from botorch_calib.robust.sets.kullback_leibler import KLBall

# Before something stands in for it
SOLVED, PULLED = PairwiseMoments._solved, PairedSums.pulled
SOURCE = CalibratedBonus._source

# What stands in for something while the simplest form is timed.
Stand = tuple[Any, str, Any]

#: Numbers of training points and contexts, and of decisions.
FEW, MANY, LARGE = ((60, 60), 4), ((100, 100), 64), ((300, 256), 64)


@dataclass(frozen=True)
class Row:
    """One comparison: the time of the simplest form in units of ours, and what differs."""

    tried: str
    ratios: str
    digits: str
    verdict: str


TAKEN_OUT = [
    Row(
        "interior points for the MMD ball, beside the active set (300 lines)",
        "instead of it: 3.5 to 90 (few atoms keep mass), 0.1 to 0.5 (most of 100 or 256 do)",
        "to rounding instead of 1e-7",
        "taken out",
    ),
    Row(
        "second derivatives of localized thresholds by hand / autograd twice",
        "0.97 to 1.10 (b = 4), 0.88 to 1.00 (b = 64)",
        "equal, 1e-13",
        "taken out",
    ),
    Row("contexts prepared once for all calls / each time", "0.99 to 1.06", "equal", "taken out"),
    Row(
        "derivative of random features by hand / autograd",
        "1.03 to 1.13 (b = 20), 1.26 to 1.45 (b = 512, on no path of a search)",
        "equal, 1e-13",
        "taken out",
    ),
    Row(
        "draws known by BoTorch's internals (12 tests) / by their values",
        "0.98 to 1.04 (build and optimise)",
        "equal",
        "taken out",
    ),
    Row(
        "contexts of the Lipschitz constant in one pass with the others / by themselves",
        "1.08 to 1.13 (b = 4), 1.04 (b = 64)",
        "equal",
        "taken out",
    ),
    Row("GaussianScore's ends held by hand / torch.where", "1.00", "equal", "taken out"),
    Row(
        "inverse of the rational score by hand / plain operations, log EI",
        "0.94 to 1.09 (1 and 19 levels, b = 8 and 128)",
        "equal, 1e-14",
        "taken out",
    ),
    Row(
        "Newton's method for density ratios (60 lines) / scikit-learn's",
        "not on a hot path",
        "equal, 1e-6",
        "taken out",
    ),
]


# ------------------------------------------------------------ timing


@contextmanager
def standing_in(stands: Sequence[Stand]) -> Iterator[None]:
    """Simplest forms in the places of ours."""
    with ExitStack() as stack:
        for owner, name, value in stands:
            stack.enter_context(patch.object(owner, name, value))
        yield


def compared(
    ours: Call, stands: Sequence[Stand], theirs: Call | None = None, *, repetitions: int = 15
) -> tuple[float, float]:
    seconds: tuple[list[float], list[float]] = ([], [])
    results: list[Any] = [None, None]
    for repetition in range(repetitions + 2):
        for which, (call, used) in enumerate(((ours, ()), (theirs or ours, stands))):
            with standing_in(used):
                start = time.process_time()
                results[which] = call(repetition)
                if repetition >= 2:
                    seconds[which].append(time.process_time() - start)
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[0])
    size = results[0].abs().max().clamp(min=1e-300)
    return ratio, float((results[1] - results[0]).abs().max() / size)


def measured(
    tried: str, cases: dict[str, tuple[Any, ...]], verdict: str, repetitions: int = 15
) -> Row:
    """A row of one comparison in several cases, each ``(ours, stands)`` and maybe the other."""
    found = {name: compared(*case, repetitions=repetitions) for name, case in cases.items()}
    ratios = ", ".join(f"{ratio:.2f} ({name})" for name, (ratio, _) in found.items())
    return Row(tried, ratios, f"{max(error for _, error in found.values()):.0e}", verdict)


# ------------------------------------------------------------ robust bounds


def squares(bound: ClosedFormConfidenceBound, x: Tensor, c: Tensor) -> Tensor:
    """Squared distances of scaled inputs, ``b x n``, that can be differentiated twice."""
    whole = bound.moments.gp
    points = whole.scaled(torch.cat([x, c], dim=-1))
    return (points.unsqueeze(-2) - whole.inputs).square().sum(dim=-1)


def marginal(bound: ClosedFormConfidenceBound, distances: Tensor) -> Tensor:
    """``k alpha + width sqrt(k** - |L^-1 k|^2)`` by differentiable operations alone."""
    gp, moments = bound.gp, bound.moments
    if isinstance(gp.profile, radial_kernels.GaussianProfile):
        k = (-distances).exp()
    else:
        t = distances.clamp_min(1e-30).sqrt()
        k = (1.0 + t + distances / 3.0) * (-t).exp()
    variance = moments._variance - torch.linalg.vecdot(k @ gp.precision, k)
    width = bound.bonus.width
    return k @ moments._weights + width * variance.clamp_min(moments._least).sqrt()


def evaluated_by_autograd(
    self: ClosedFormConfidenceBound, X: Tensor, contexts: Tensor, gradients: bool
) -> tuple[Tensor, Tensor]:
    """Values and gradients at all pairs through the marginals of single points."""
    order = self.columns.decision + self.columns.context
    split = len(self.columns.decision)

    def function(Z: Tensor) -> Tensor:
        Z = Z.squeeze(-2)[:, order]
        return marginal(self, squares(self, Z[:, :split], Z[:, split:]))

    return PointwiseFunction(function, self.columns)._evaluate(X, contexts, gradients)


def norm_by_autograd(
    self: ClosedFormConfidenceBound, X: Tensor, contexts: Tensor
) -> tuple[Tensor, Tensor]:
    """Norms of context gradients and their slopes, differentiated twice."""
    with torch.enable_grad():
        x, c = X.detach().requires_grad_(), contexts.detach().to(X).requires_grad_()
        total = marginal(self, squares(self, x, c)).sum()
        (gradient,) = torch.autograd.grad(total, c, create_graph=True)
        norm, direction = norm_and_direction(gradient)
        (slope,) = torch.autograd.grad((gradient * direction.detach()).sum(), x)
    return norm.detach(), slope


def at_each_pair(self: CalibratedBonus, X: Tensor, contexts: Tensor) -> Any:
    """Thresholds of a calibrator at each pair by itself."""
    with patch.object(self.model.calibrator, "radial_sum", lambda: None):
        return SOURCE(self, X, contexts)


def by_terms(self: PairedSums, by_values: Tensor) -> Tensor:
    """Derivatives as of several thresholds, of which the second is constant."""
    twin = copy(self)
    twin._coefficients = torch.nn.functional.pad(self._coefficients, (0, 0, 0, 1))
    return PULLED(twin, torch.nn.functional.pad(by_values, (0, 1)))


def linear(X: Tensor, values: Tensor, jacobian: Tensor) -> Tensor:
    """Values with a given derivative, by a product with what is zero."""
    zero = X - X.detach()
    if values.dim() == 1:
        return values + torch.linalg.vecdot(jacobian, zero)
    return values + (jacobian @ zero.unsqueeze(-1)).squeeze(-1)


def matern(
    self: Any, first: Tensor, second: Tensor, buffers: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Matern 5/2 in new tensors."""
    s = first + second
    t = s.sqrt()
    e = (-t).exp()
    g = e + e * t
    return g + e * s / 3.0, g


def gaussian(
    self: Any, first: Tensor, second: Tensor, buffers: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The Gaussian kernel in a new tensor."""
    k = first * second
    return k, k


def solved_anew(self: Any, k: Tensor, out: Any, gradients: bool) -> tuple[Tensor, Tensor]:
    """Products in new tensors."""
    return SOLVED(self, k, [None, None], gradients)


def tilted(self: KLBall, u: Tensor, weights: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The accurate divergence also in the search."""
    u = u.expand(*s.shape, -1) if s.dim() == u.dim() else u
    worst, size, scaled = kullback_leibler.tilt(u, weights, s)
    mean = torch.linalg.vecdot(worst, scaled).unsqueeze(-1)
    return size, torch.linalg.vecdot(worst, (scaled - mean).square())


def digits_of_the_root() -> Row:
    """Variances near data of which many points nearly coincide, with and without the root."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(20, 4, generator=generator, dtype=torch.double).repeat(3, 1)
    X = X + 1e-4 * torch.rand(60, 4, generator=generator, dtype=torch.double)
    Y = (5 * X).sin().sum(dim=-1, keepdim=True)
    gp = SingleTaskGP(X, Y - Y.mean(), covar_module=RBFKernel(), outcome_transform=None)
    gp.covar_module.lengthscale, gp.likelihood.noise = 1.0, 1e-8
    own = stationary_gp(gp.eval())
    assert own.root is not None
    K = own.profile.derivatives(torch.cdist(own.inputs, own.inputs) ** 2)[0]
    exact = (own.variance - (K @ own.root).square().sum(dim=-1)).clamp(min=1e-30)
    other = own.variance - torch.linalg.vecdot(K @ own.precision, K)
    error = float(((other - exact).abs() / exact).median())
    return Row(
        "variance by a root / by the precision, near-duplicate data", "", f"{error:.0e}", "kept"
    )


def robust_rows(work: Workload) -> list[Row]:
    """Of robust bounds."""
    bound, kinds = ClosedFormConfidenceBound, list(robust.KERNELS)

    def wdrbo(kernel: str, case: Any) -> Call:
        return robust.robust_call(work, case[0], kernel, robust.RADIUS, case[1])

    def over(name: str, case: Any, calibrator: str | None = None) -> Call:
        sets = robust.SETS | robust.CALIBRATED_SETS
        template = None if calibrator is None else robust.CALIBRATORS[calibrator]()
        build = robust.over(sets[name])
        return robust.bound_call(work, case[0], kinds[0], build, case[1], template)

    def sizes(*cases: Any) -> dict[str, Any]:
        return {f"n={c[0][0]}, M={c[0][1]}, b={c[1]}": c for c in cases}

    by_autograd = [(bound, "_evaluate", evaluated_by_autograd)]
    twice = [(bound, "_gradient_norm", norm_by_autograd)]
    pairs = [(CalibratedBonus, "_source", at_each_pair)]
    plain = [
        (radial_kernels.GaussianProfile, "fill", gaussian),
        (radial_kernels.Matern52Profile, "fill", matern),
        (PairwiseMoments, "_solved", solved_anew),
    ]
    moments = [(piecewise, "normal_moments", plain_normal_moments)]
    auto, local = "calibrated, lengthscale auto", "locally recalibrated (19 levels)"
    return [
        measured(
            "closed form of robust bounds / autograd through marginals, value and gradient",
            {
                f"{kernel}, {name}": (wdrbo(kernel, case), by_autograd + twice)
                for kernel in kinds
                for name, case in sizes(FEW, MANY, LARGE).items()
            },
            "kept",
            repetitions=5,
        ),
        measured(
            "second derivatives of the GP by hand / autograd twice",
            {
                f"{kernel}, {name}": (wdrbo(kernel, case), twice)
                for kernel in kinds
                for name, case in sizes(FEW, MANY).items()
            }
            | {
                "a choice of WDRBO": (
                    robust.choice_call(
                        work, robust.ContextualAckley(), robust.RADIUS, robust.optimize_robust
                    ),
                    twice,
                )
            },
            "kept",
        ),
        measured(
            "localized thresholds at all pairs by products / at each pair by autograd",
            {
                f"{'one level' if cal == auto else '19 levels'}, {name}": (
                    over("Lipschitz form", case, cal),
                    pairs,
                )
                for cal in (auto, local)
                for name, case in sizes(FEW, MANY, ((300, 100), 64)).items()
            },
            "kept",
            repetitions=9,
        ),
        measured(
            "derivatives of one localized threshold by a factor of the sum / by terms",
            {
                f"{ball}, {name}": (over(ball, case, auto), [(PairedSums, "pulled", by_terms)])
                for ball in robust.CALIBRATED_SETS
                for name, case in sizes(FEW, MANY, LARGE).items()
            },
            "kept",
        ),
        measured(
            "moments of 19 localized levels by one Function / by autograd",
            {
                f"{ball}, {name}": (over(ball, case, local), moments)
                for ball in robust.CALIBRATED_SETS
                for name, case in sizes(FEW, MANY).items()
            },
            "kept",
        ),
        measured(
            "moments through buffers / in new tensors",
            {
                f"{kernel}, {name}": (wdrbo(kernel, case), plain)
                for kernel in kinds
                for name, case in sizes(FEW, MANY).items()
            },
            "kept for Matern kernels",
        ),
        measured(
            "values with their Jacobian by a Function / by a product with zero",
            {
                name: (wdrbo(kinds[0], case), [(contextual_function, "with_jacobian", linear)])
                for name, case in sizes(FEW, MANY).items()
            },
            "kept: second derivatives raise, where the product makes them 0",
        ),
        measured(
            "exact Wasserstein ball: unsettled sources alone / all of them",
            {
                name: (over("exact Wasserstein", case), [(wasserstein, "_MOST", -1.0)])
                for name, case in sizes(FEW, MANY, ((100, 256), 64)).items()
            },
            "kept",
        ),
        measured(
            "KL ball: short divergence in the search / the accurate one throughout",
            {
                name: (over("KL ball", case), [(KLBall, "_divergence", tilted)])
                for name, case in sizes(FEW, MANY, ((100, 256), 64)).items()
            },
            "kept",
        ),
        digits_of_the_root(),
    ]


# ------------------------------------------------------------ calibrators and draws


def made_each_time(self: Any, X: Tensor) -> Any:
    """A predictive distribution from the thresholds at each point."""
    return self._predictive_from(self.tracker.threshold(X))


def adahedge_of_tensors(
    rounds: Tensor, losses: Tensor, gap: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """AdaHedge in PyTorch."""
    weights = []
    for loss in rounds.to(losses):
        rate = torch.tensor(len(losses)).log() / gap.clamp(min=1e-12)
        log_weights = torch.log_softmax(-rate * losses, dim=0)
        mix = -torch.logsumexp(log_weights - rate * loss, dim=0) / rate
        weights.append(log_weights.exp())
        gap = gap + (weights[-1] @ loss - mix).clamp(min=0.0)
        losses = losses + loss
    return torch.stack(weights), losses, gap


class WavesByAutograd:
    """In the place of `_SumOfWaves`."""

    @staticmethod
    def apply(rows: Tensor, frequencies: Tensor, shifts: Tensor, amplitudes: Tensor) -> Tensor:
        """Parts of the same size, whose phases are kept."""
        num = max(1, fourier_paths._CHUNK // frequencies.shape[-1])
        parts = (fourier_paths._phases(part, frequencies, shifts) for part in rows.split(num))
        return torch.cat([(phases.cos() @ amplitudes).squeeze(-1) for phases in parts], dim=-1)


def calibration_rows(work: Workload) -> list[Row]:
    """Of calibrators and of draws from calibrated models."""
    kinds: dict[str, Callable[[], Any]] = {
        "one level": lambda: LocalizedConformal(0.2),
        "19 levels": QuantileRecalibrator,
    }
    models = {name: CalibratedModel.from_history(work.gp, make()) for name, make in kinds.items()}

    def log_improvement(name: str, b: int) -> Call:
        acquisition = LogCalibratedExpectedImprovement(models[name], work.best_f)
        return value_and_gradient(acquisition, work.batch[:b])

    def replay(repetition: int) -> Tensor:
        model = CalibratedModel.from_history(work.gp, LocalizedConformal(0.2))
        calibrator: Any = model.calibrator
        thresholds: Tensor = calibrator.tracker.threshold(work.batch.squeeze(-2))
        return thresholds

    draws: dict[str, Callable[[], Any]] = {
        "of the process": lambda: shared.censored(work),
        "calibrated": lambda: shared.censored_calibrated(work, models["one level"].calibrator),
    }
    alone, waves = {}, {}
    by_autograd = [(fourier_paths, "_SumOfWaves", WavesByAutograd)]
    for name, make in draws.items():
        for b in (512, 20, 4):
            ours = value_and_gradient(DelayedThompsonSampling(make()), work.batch[:b])
            with patch.object(FourierPaths, "of", lambda *paths: None):
                theirs = value_and_gradient(DelayedThompsonSampling(make()), work.batch[:b])
            alone[f"{name}, b={b}"] = ours, (), theirs
            waves[f"{name}, b={b}"] = ours, by_autograd
    cases = [(name, b) for name in kinds for b in (512, 20)]
    return [
        measured("draws evaluated together / one by one, as BoTorch does", alone, "kept"),
        measured("gradient of random features with their values / by autograd", waves, "kept", 61),
        measured(
            "one distribution for all points kept / made each time, log EI",
            {
                f"{name}, b={b}": (
                    log_improvement(name, b),
                    [(calibrators.TrackedCalibrator, "predictive", made_each_time)],
                )
                for name, b in cases
                if name == "19 levels"
            },
            "kept",
            repetitions=31,
        ),
        measured(
            "weights of a mixture in NumPy / in PyTorch, replay of 100 values",
            {"one level": (replay, [(aggregated, "adahedge", adahedge_of_tensors)])},
            "kept",
        ),
    ]


def report(rows: Sequence[Row]) -> str:
    """The table."""
    header = ["form / simplest form", "time of the simplest one", "difference", "verdict"]
    return "\n".join(
        table(header, [[row.tried, row.ratios, row.digits, row.verdict] for row in rows])
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with one_torch_thread():
        work = Workload(torch.device("cpu"))
        print(report([*robust_rows(work), *calibration_rows(work), *TAKEN_OUT]))


if __name__ == "__main__":
    main()

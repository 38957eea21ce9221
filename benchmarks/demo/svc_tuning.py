"""Tuning a support vector classifier on scikit-learn's handwritten digits.

The variables are ``log10 C`` and ``log10 gamma``. The objective is noisy: the validation
accuracy of a classifier trained on a small random part of the training data. What counts in
the end is the accuracy on test data of a classifier trained on everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.framework.sequential import posterior_mean
from benchmarks.framework.strategies import prediction_extras
from botorch_calib import CalibratedModel, LocalizedConformal, LogCalibratedExpectedImprovement

BOUNDS = torch.tensor([[-2.0, -5.0], [3.0, 0.0]], dtype=torch.double)
NUM_INITIAL = 5
ALPHA = 0.2


@dataclass(frozen=True)
class Digits:
    """The data, split once: each part is ``(images, labels)``."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]

    @classmethod
    def load(cls) -> Digits:
        """30 % for the test, 30 % of the rest for validation."""
        images, labels = load_digits(return_X_y=True)
        rest, test, rest_labels, test_labels = train_test_split(
            images, labels, test_size=0.3, random_state=0, stratify=labels
        )
        train, validation, train_labels, validation_labels = train_test_split(
            rest, rest_labels, test_size=0.3, random_state=0, stratify=rest_labels
        )
        return cls((train, train_labels), (validation, validation_labels), (test, test_labels))

    def validation_accuracy(self, x: Tensor, rng: np.random.Generator, size: int = 200) -> float:
        """Accuracy at ``x`` (length 2) after training on ``size`` random images."""
        images, labels = self.train
        chosen = rng.choice(len(images), size, replace=False)
        model = classifier(x).fit(images[chosen], labels[chosen])
        return float(model.score(*self.validation))

    def test_hits(self, model: SVC) -> np.ndarray:
        """Which test images ``model`` gets right after training on all other images."""
        images, labels = map(np.concatenate, zip(self.train, self.validation, strict=True))
        return np.asarray(model.fit(images, labels).predict(self.test[0]) == self.test[1])


def classifier(x: Tensor) -> SVC:
    """The classifier at ``x = (log10 C, log10 gamma)``."""
    log_c, log_gamma = x.tolist()
    return SVC(C=10.0**log_c, gamma=10.0**log_gamma)


@dataclass(frozen=True)
class Tuning:
    """A finished tuning run.

    ``best`` has the largest posterior mean among the points tried; ``estimate`` is that mean
    with its calibrated 80 % interval. ``num_covered`` counts the stated intervals that held
    the accuracy then observed, out of ``num_stated``. ``tuned_hits`` and ``default_hits`` say
    which test images were right.
    """

    X: Tensor
    Y: Tensor
    best: Tensor
    estimate: tuple[float, float, float]
    num_covered: int
    num_stated: int
    tuned_hits: np.ndarray
    default_hits: np.ndarray


def fit_calibrated(X: Tensor, Y: Tensor) -> CalibratedModel:
    """A Gaussian process of the accuracy, calibrated on its own history."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(2, bounds=BOUNDS), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    calibrator = LocalizedConformal(alpha=ALPHA, lengthscale=0.25)
    return CalibratedModel.from_history(gp, calibrator, num_initial=NUM_INITIAL)


def tune(num_evaluations: int, seed: int = 0) -> Tuning:
    """Tune with calibrated expected improvement, from a few Sobol points."""
    digits, rng = Digits.load(), np.random.default_rng(seed)
    X = draw_sobol_samples(BOUNDS, n=NUM_INITIAL, q=1, seed=seed).squeeze(-2)
    Y = X.new_tensor([[digits.validation_accuracy(x, rng)] for x in X])
    num_covered = 0.0
    with manual_seed(seed):
        for _ in tqdm(range(num_evaluations), desc="tuning the SVC"):
            model = fit_calibrated(X, Y)
            acqf = LogCalibratedExpectedImprovement(model, best_f=Y.max())
            x, _ = optimize_acqf(acqf, bounds=BOUNDS, q=1, num_restarts=5, raw_samples=128)
            y = x.new_tensor([[digits.validation_accuracy(x[0], rng)]])
            num_covered += prediction_extras(model, x, y, ALPHA)["covered"]
            X, Y = torch.cat([X, x]), torch.cat([Y, y])
        final = fit_calibrated(X, Y)
    best = X[posterior_mean(final, X).argmax()]
    return Tuning(
        X=X,
        Y=Y,
        best=best,
        estimate=estimate_at(final, best),
        num_covered=int(num_covered),
        num_stated=num_evaluations,
        tuned_hits=digits.test_hits(classifier(best)),
        default_hits=digits.test_hits(SVC()),
    )


@torch.no_grad()
def estimate_at(model: CalibratedModel, x: Tensor) -> tuple[float, float, float]:
    """Mean and 80 % interval of the noise-free objective at ``x`` (length ``d``)."""
    posterior = model.posterior(x.unsqueeze(0))
    low, high = posterior.quantile(x.new_tensor([ALPHA / 2, 1 - ALPHA / 2])).flatten().tolist()
    return posterior.mean.item(), low, high


def tuning_report(run: Tuning) -> str:
    """What a run found, with its uncertainty (one standard error)."""
    log_c, log_gamma = run.best.tolist()
    mean, low, high = run.estimate
    difference = run.tuned_hits.astype(float) - run.default_hits
    return "\n".join(
        [
            f"best of {len(run.X)} settings: C = {10**log_c:.3g}, gamma = {10**log_gamma:.2g} "
            f"(log10 C = {log_c:.2f}, log10 gamma = {log_gamma:.2f})",
            f"validation accuracy there, trained on 200 images: estimated at {mean:.3f}, "
            f"80 % interval {low:.3f} to {high:.3f}",
            f"80 % intervals stated before each evaluation that held: {run.num_covered} of "
            f"{run.num_stated}",
            f"test accuracy, trained on all other data ({len(difference)} test images):",
            f"  tuned       {percentage(run.tuned_hits)}",
            f"  default     {percentage(run.default_hits)}",
            f"  difference  {percentage(difference)}, image by image",
        ]
    )


def percentage(values: np.ndarray) -> str:
    """Mean and standard error of independent values, in percent."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():.2f} ± {100 * error:.2f} %"

"""The values that models state do not change when their code changes.

``python -m tests.snapshots.test_stated_values`` records the values again in ``stated_values.json``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import ChainedOutcomeTransform, Normalize, Standardize
from botorch.models.transforms.outcome import Bilog, Log, Power
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CalibratedUpperConfidenceBound,
    CensoredDelayModel,
    ChanceConstraint,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    QuantileRecalibrator,
    calibration_report,
)
from botorch_calib.calibration import NoCalibration
from botorch_calib.models import PartlyKnownNoiseGP
from tests.gps import DOUBLE, make_data, make_gp, make_multitask, make_variational
from tests.long_grids import mostly_slow
from tests.models.ensembles import make_ensemble
from tests.models.test_by_normal_scores import HeavyTails
from tests.models.test_marginals import MODELS
from tests.random_numbers import normal, uniform

FILE = Path(__file__).with_name("stated_values.json")


def positive(*transforms: Any, **kind: Any) -> SingleTaskGP:
    """A process of outcomes near 3 with a chain of transforms."""
    X, Y, _ = make_data(16)
    chain = ChainedOutcomeTransform(**{str(i): each for i, each in enumerate(transforms)})
    gp = SingleTaskGP(X, 3.0 + 0.5 * Y, outcome_transform=chain, **kind)
    gp.covar_module.lengthscale = torch.tensor([0.4, 0.7], **DOUBLE)
    gp.likelihood.noise = torch.tensor([0.05], **DOUBLE)
    return gp.eval()


def partly_known() -> PartlyKnownNoiseGP:
    X, Y, Yvar = make_data(16)
    Yvar[::2] = torch.nan
    return PartlyKnownNoiseGP(X, Y, Yvar, input_transform=Normalize(2)).eval()


CASES: dict[str, Callable[[], Any]] = {
    "process": make_gp,
    "raw units": lambda: make_gp(transforms=True),
    "given noise": lambda: make_gp(fixed_noise=True, transforms=True),
    "single precision": lambda: make_gp(transforms=True, dtype=torch.float),
    "partly known noise": partly_known,
    "Log": lambda: positive(Log(), Standardize(1)),
    "Log alone": lambda: positive(Log()),
    "Bilog": lambda: positive(Bilog(), Standardize(1)),
    "Power": lambda: positive(Power(1.0 / 3.0)),
    "tasks": make_multitask,
    "tasks, given noise": lambda: make_multitask(fixed_noise=True),
    "strata": MODELS["strata"],
    "mixed": MODELS["mixed"],
    "relevance pursuit": MODELS["relevance pursuit"],
    "variational": make_variational,
    "ensemble": make_ensemble,
    "SAAS": lambda: make_ensemble("SAAS"),
    "Student t": HeavyTails,
}
CALIBRATORS: dict[str, Callable[[], Any]] = {
    "none": NoCalibration,
    "interval": lambda: LocalizedConformal(0.2, lengthscale=0.5),
    "levels": lambda: QuantileRecalibrator([0.1, 0.5, 0.9], lengthscale=0.5),
}


def points(process: Any, num: int, seed: int) -> Tensor:
    """Points among the training inputs, ``num x d``."""
    generator = torch.Generator().manual_seed(seed)
    inputs = getattr(process, "_original_train_inputs", None)
    inputs = getattr(process, "train_inputs", None) if inputs is None else [inputs]
    rows = torch.rand(8, 2, generator=generator, **DOUBLE) if inputs is None else inputs[0]
    rows = rows.reshape(-1, *rows.shape[-2:])[0] if rows.dim() > 2 else rows
    low, high = rows.amin(dim=0), rows.amax(dim=0)
    X = low + (high - low) * uniform(num, rows.shape[-1], generator=generator).to(rows)
    whole = (rows == rows.round()).all(dim=0)
    return torch.where(whole, X.round(), X)


def learned(kind: str, process: Any) -> Any:
    """A calibrator that has learned from 20 scores with a spread of 1.6."""
    calibrator, generator = CALIBRATORS[kind](), torch.Generator().manual_seed(3)
    X = process.transform_inputs(points(process, 20, 5))
    X = X.reshape(-1, *X.shape[-2:])[0] if X.dim() > 2 else X
    calibrator.update(X, 1.6 * normal(20, generator=generator).to(X))
    return calibrator


def stated(posterior: Any, best: float) -> Iterator[Tensor]:
    """The values of all methods of a posterior."""
    for method in (posterior.cdf, posterior.density, posterior.probability_of_improvement):
        yield method(best)
    yield posterior.quantile(torch.tensor([0.02, 0.5, 0.9], **DOUBLE))
    yield posterior.log_probability_between(best - 0.4, best + 0.3)
    yield from posterior.moments()
    for shift in (-1.0, 0.0, 2.0):
        yield posterior.log_expected_improvement(best + shift)
    yield posterior.conditional_mean_below(0.1)
    other = posterior.affine(-2.0, 1.0)
    yield other.log_expected_improvement(1.0 - 2.0 * best)
    yield other.quantile(0.3)


def acquired(model: CalibratedModel, X: Tensor, best: float) -> Iterator[Tensor]:
    """Acquisition values and gradients."""
    X = X.unsqueeze(-2).requires_grad_()
    for acqf in (
        LogCalibratedExpectedImprovement(model, best),
        LogCalibratedExpectedImprovement(model, best, maximize=False),
        CalibratedUpperConfidenceBound(model, 0.85),
    ):
        values = acqf(X)
        yield values
        yield from torch.autograd.grad(values.sum(), X, retain_graph=True)


def drawn(model: Any, X: Tensor) -> Tensor:
    """Two joint samples."""
    posterior = model.posterior(X)
    generator = torch.Generator().manual_seed(2)
    base = normal(2, *posterior.base_sample_shape, generator=generator)
    samples: Tensor = posterior.rsample_from_base_samples(torch.Size([2]), base.to(X))
    return samples


def values_of(name: str) -> dict[str, list[float]]:
    """All values of a case: one list of numbers for each subject."""
    torch.manual_seed(0)  # parameters that some models draw
    process = CASES[name]()
    process.eval()
    X, values = points(process, 4, 7), {}
    states_objective, has_members = name != "Student t", name in ("ensemble", "SAAS")
    plain = CalibratedModel(process, NoCalibration(), denoise=False).posterior(X.unsqueeze(-2))
    best = round(float(plain.quantile(0.5).mean()), 3) + 0.2

    def keep(subject: str, *numbers: Any) -> None:
        flat = [torch.as_tensor(each).detach().double().flatten() for each in numbers]
        values[subject] = [float(f"{each:.11g}") for each in torch.cat(flat).tolist()]

    for kind in CALIBRATORS:
        for denoise, excess in ((True, "noise"), (True, "objective"), (False, "noise")):
            if denoise and not states_objective:
                continue
            model = CalibratedModel(process, learned(kind, process), denoise, excess)
            label = f"{kind}, {'objective' if denoise else 'observation'}, {excess}"
            keep(f"{label}: distribution", *stated(model.posterior(X.unsqueeze(-2)), best))
            if excess == "noise":
                keep(f"{label}: joint samples", drawn(model, X))
                keep(f"{label}: acquisition", *acquired(model, X, best))
    calibrators = (
        (CalibratedModel.from_history, "prequential"),
        (CalibratedModel.from_history, "loo"),
    )
    for make, residuals in calibrators if name not in ("variational", "Student t") else ():
        model = make(process, CALIBRATORS["levels"](), 2, residuals=residuals)
        keep(f"history, {residuals}", model.posterior(X.unsqueeze(-2)).quantile(0.8))
    if name not in ("variational", "Student t"):
        report: Any = calibration_report(model)
        for column, scores in (("base", report.base), ("calibrated", report.calibrated)):
            more = (scores.mean_width, scores.mean_interval_score, scores.mean_crps)
            keep(f"report, {column}", scores.pits, *(() if has_members else more))
    keep("margin", ChanceConstraint(process, upper=best + 1.0).margin(X.unsqueeze(-2)))
    observation = CalibratedModel(process, learned("levels", process), denoise=False)
    both = ChanceConstraint(observation, lower=best - 2.0, upper=best + 1.0)
    keep("margin, two sides", both.margin(X.unsqueeze(-2)))
    Z, Y = points(process, 2, 11), torch.tensor([[best - 0.3], [best + 0.2]]).to(X)
    conditions = name not in ("variational", "Student t", "relevance pursuit")
    observation.observe(Z, Y, condition=conditions)
    keep("after observe", observation.posterior(X.unsqueeze(-2)).quantile(0.8))
    for imputation in ("censor", "hallucinate") if conditions else ():
        if imputation == "hallucinate" and name in ("Log", "Log alone", "Bilog", "Power"):
            continue
        inside = CalibratedModel(process, learned("levels", process))
        delayed = CensoredDelayModel(inside, Z, best - 1.0, imputation)
        keep(f"pending, {imputation}", delayed.posterior(X.unsqueeze(-2)).quantile(0.3))
        delayed.observe(Z[:1], Y[:1])
        keep(f"arrived, {imputation}", delayed.posterior(X.unsqueeze(-2)).quantile(0.3))
    return values


@pytest.mark.parametrize(
    "name", mostly_slow(CASES, ["raw units", "Log", "tasks", "ensemble", "Student t"])
)
@pytest.mark.filterwarnings("ignore")
def test_values(name: str) -> None:
    recorded = json.loads(FILE.read_text())[name]
    values = values_of(name)
    assert values.keys() == recorded.keys()
    # Rounding differs between processors, and inverses of covariance matrices amplify it
    tolerance = 2e-3 if name == "single precision" else 1e-7
    for subject, numbers in values.items():
        expected = torch.tensor(recorded[subject], **DOUBLE)
        actual = torch.tensor(numbers, **DOUBLE)
        torch.testing.assert_close(
            actual, expected, rtol=tolerance, atol=tolerance, msg=f"{name}: {subject}"
        )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = {name: values_of(name) for name in CASES}
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in recorded.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")

"""Small fully Bayesian models and ensembles with set hyperparameters."""

from typing import Any

import pytest
import torch
from botorch.models.ensemble import EnsembleModel
from botorch.models.fully_bayesian import (
    FullyBayesianLinearSingleTaskGP,
    FullyBayesianSingleTaskGP,
    SaasFullyBayesianSingleTaskGP,
)
from botorch.models.fully_bayesian_multitask import SaasFullyBayesianMultiTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor

from tests.gps import make_data

NUM = 4
KINDS = (
    *("ensemble", "given noise", "SAAS", "fully Bayesian", "warped", "linear", "multi-task"),
    "multi-task, given noise",
)


def draws(shape: tuple[int, ...], seed: int) -> Tensor:
    """Positive numbers about 1."""
    generator = torch.Generator().manual_seed(seed)
    return (0.4 * torch.randn(shape, generator=generator, dtype=torch.double)).exp()


def make_ensemble(kind: str = "ensemble", num: int = 12, dtype: torch.dtype = torch.double) -> Any:
    """One of `KINDS`, on the data of `make_data` with their units; in eval mode."""
    X, Y, Yvar = (values.to(dtype) for values in make_data(num, transforms=True))
    if kind in ("ensemble", "given noise"):
        model: Any = EnsembleMapSaasSingleTaskGP(
            X,
            Y,
            Yvar if kind == "given noise" else None,
            taus=torch.full((NUM,), 0.1, dtype=dtype),
            num_taus=NUM,
            input_transform=Normalize(2),
        )
        model.covar_module.base_kernel.lengthscale = 0.5 * draws((NUM, 1, 2), 1).to(dtype)
        model.covar_module.outputscale = draws((NUM,), 2).to(dtype)
        if kind == "ensemble":
            model.likelihood.noise = 0.05 * draws((NUM, 1), 3).to(dtype)
        return model.eval()
    pytest.importorskip("numpyro", reason="needs the extra fully-bayesian")
    options: dict[str, Any] = {"outcome_transform": Standardize(1)}
    samples = {"mean": 0.1 * draws((NUM,), 4), "noise": 0.05 * draws((NUM,), 3)}
    if kind.startswith("multi-task"):
        options["train_Yvar"] = Yvar if kind.endswith("given noise") else None
        task = torch.arange(len(X)).remainder(2).to(X).unsqueeze(-1)
        X = torch.cat([(X + 5.0) / 10.0, task], dim=-1)
        model = SaasFullyBayesianMultiTaskGP(X, Y, task_feature=-1, output_tasks=[1], **options)
        samples["mean"] = 0.1 * draws((NUM, 2), 4)
        samples["task_lengthscale"] = draws((NUM, 2), 5)
        samples["latent_features"] = draws((NUM, 2, 2), 6)
    else:
        classes = {"SAAS": SaasFullyBayesianSingleTaskGP, "linear": FullyBayesianLinearSingleTaskGP}
        kind_of_model: Any = classes.get(kind, FullyBayesianSingleTaskGP)
        options["input_transform"] = Normalize(2)
        model = kind_of_model(X, Y, use_input_warping=kind == "warped", **options)
    if kind == "linear":
        samples["weight_variance"] = draws((NUM, 2), 7)
    else:
        samples["lengthscale"] = 0.5 * draws((NUM, 2), 1)
        samples["outputscale"] = draws((NUM,), 2)
    if kind == "warped":
        samples["c0"], samples["c1"] = draws((NUM, 2), 8), draws((NUM, 2), 9)
    model.load_mcmc_samples({name: values.to(dtype) for name, values in samples.items()})
    return model.eval()


class Lines(EnsembleModel):
    """Members that are linear functions, of one output."""

    def __init__(self, weights: Tensor | None = None) -> None:
        super().__init__(weights)
        self._num_outputs = 1
        self.slopes = torch.linspace(-1, 2, 6, dtype=torch.double)

    def forward(self, X: Tensor) -> Tensor:
        return self.slopes.view(-1, 1, 1) * X.sum(dim=-1, keepdim=True).unsqueeze(-3)

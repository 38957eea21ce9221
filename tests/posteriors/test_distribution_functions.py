"""Predictive distributions of any kind by their normal scores, and back; who is not served."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors import GPyTorchPosterior, TorchPosterior
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch_community.posteriors.riemann import BoundedRiemannPosterior
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import (
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Independent,
    Laplace,
    LogNormal,
    Normal,
    StudentT,
    Uniform,
)
from torch.testing import assert_close

from botorch_calib.posteriors import OutcomeMap, normal_scores

LOC = torch.tensor([[[0.3]], [[-2.0]], [[5.0]]], dtype=torch.double)
SCALE = torch.tensor([[[1.5]], [[0.2]], [[3.0]]], dtype=torch.double)
Z = torch.tensor([-7.0, -2.0, -0.1, 0.0, 0.4, 3.0, 7.0], dtype=torch.double).view(-1, 1, 1, 1)
BORDERS = torch.tensor([-4.0, -1.0, 0.0, 0.5, 2.0, 9.0], dtype=torch.double)


def histogram(*shape: int) -> BoundedRiemannPosterior:
    logits = torch.randn(*shape, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    return BoundedRiemannPosterior(BORDERS, logits.softmax(dim=-1))


TORCH: dict[str, Distribution] = {
    "normal": Normal(LOC, SCALE),
    "independent": Independent(Normal(LOC, SCALE), 2),
    "student": StudentT(torch.tensor(4.0).double(), LOC, SCALE),
    "laplace": Laplace(LOC, SCALE),
    "log-normal": LogNormal(LOC, SCALE),
    "uniform": Uniform(LOC, LOC + SCALE),
}


@pytest.mark.parametrize("name", TORCH)
def test_there_and_back(name: str) -> None:
    scores = normal_scores(TorchPosterior(TORCH[name]))
    z = Z[1:-1] if name == "uniform" else Z  # near its ends rounding moves an outcome
    outcomes = scores.outcome(z)
    assert outcomes.shape == (len(z), 3, 1, 1) and (outcomes.diff(dim=0) > 0.0).all()
    assert_close(scores.latent(outcomes), z.expand(len(z), 3, 1, 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["normal", "laplace", "log-normal", "uniform"])
def test_against_the_distributions_own_cdf(name: str) -> None:
    distribution = TORCH[name]
    outcomes = normal_scores(TorchPosterior(distribution)).outcome(Z)
    expected = torch.special.ndtr(Z).expand(7, 3, 1, 1)
    assert_close(distribution.cdf(outcomes), expected, rtol=1e-8, atol=1e-14)


def test_far_from_a_distribution_that_pytorch_refuses_to_evaluate_there() -> None:
    """Of a Gumbel distribution's own uniform variable PyTorch refuses the value 0."""
    scores = normal_scores(TorchPosterior(Gumbel(LOC, SCALE)))
    z = scores.latent(torch.tensor([-1e3, 1e4]).double().view(-1, 1, 1, 1))
    assert (z[0] < -8.0).all() and (z[1] > 8.0).all() and z.isfinite().all()


@pytest.mark.parametrize("kind", [Laplace, LogNormal, Exponential, HalfNormal])
def test_tails_are_told_apart_in_single_precision_as_in_double(kind: Any) -> None:
    single = [values.float() for values in (LOC, SCALE)[-len(kind.arg_constraints) :]]
    known = normal_scores(TorchPosterior(kind(*(values.double() for values in single))))
    scores = normal_scores(TorchPosterior(kind(*single)))
    y = torch.tensor([-20.0, 1e-4, 0.5, 17.0, 20.0]).view(-1, 1, 1, 1)
    assert_close(scores.latent(y), known.latent(y.double()), rtol=1e-5, atol=1e-5)
    ends = scores.outcome(torch.tensor([-40.0, 40.0]).view(-1, 1, 1, 1))
    assert ends.isfinite().all()
    z = torch.tensor([-6.0, 1.0, 6.0]).view(-1, 1, 1, 1)
    assert_close(scores.outcome(z), known.outcome(z.double()), rtol=1e-5, atol=1e-5)


def test_beyond_the_support() -> None:
    uniform = normal_scores(TorchPosterior(TORCH["uniform"]))
    assert (uniform.latent(LOC - 1.0) == -torch.inf).all()
    assert (uniform.latent(LOC + 5.0) == torch.inf).all()
    bounded = normal_scores(histogram(3, 1))
    assert (bounded.latent(torch.full((3, 1, 1), -4.1).double()) == -torch.inf).all()
    assert (bounded.latent(torch.full((3, 1, 1), 9.1).double()) == torch.inf).all()


@pytest.mark.filterwarnings("ignore:torch.searchsorted:UserWarning")  # by BoTorch's own inverse
@pytest.mark.parametrize("shape", [(3, 1), (2, 3, 2), (4,)])
def test_histograms(shape: tuple[int, ...]) -> None:
    """Against the posterior's own inverse, and the density in each bucket."""
    posterior = histogram(*shape)
    scores = normal_scores(posterior)
    level = torch.tensor([0.003, 0.4, 0.77, 0.999], dtype=torch.double)
    z = torch.special.ndtri(level).view(-1, *[1] * (len(shape) + 1))
    outcomes = scores.outcome(z)
    assert outcomes.shape == (4, *shape, 1)
    expected = posterior.icdf(level.view(-1, *[1] * len(shape)).expand(4, *shape))
    assert_close(outcomes, expected, rtol=1e-9, atol=1e-9)
    assert_close(scores.latent(outcomes), z.expand_as(outcomes), rtol=1e-7, atol=1e-7)
    # Probabilities of 1e-9 in both tails are exact to six digits
    far = torch.tensor([-6.0, 6.0], dtype=torch.double).view(-1, *[1] * (len(shape) + 1))
    low, high = scores.outcome(far)
    shares = posterior.probabilities
    first, last = (low - BORDERS[0]) / 3.0, (BORDERS[-1] - high) / 7.0
    for tail in (first * shares[..., :1], last * shares[..., -1:]):
        assert_close(tail, torch.special.ndtr(far[0]).expand_as(tail), rtol=1e-5, atol=0.0)


def test_gradients() -> None:
    logits = torch.randn(2, 1, 5, dtype=torch.double, requires_grad=True)

    def outcome(logits: Tensor, z: Tensor) -> Tensor:
        posterior = BoundedRiemannPosterior(BORDERS, logits.softmax(dim=-1))
        return normal_scores(posterior).outcome(z)

    def score(logits: Tensor, y: Tensor) -> Tensor:
        posterior = BoundedRiemannPosterior(BORDERS, logits.softmax(dim=-1))
        return normal_scores(posterior).latent(y)

    z = torch.tensor([[[0.3]], [[-1.2]]], dtype=torch.double, requires_grad=True)
    assert gradcheck(outcome, (logits, z)) and gradcheck(score, (logits, z))


def test_others_register_themselves() -> None:
    class Own(GPyTorchPosterior):
        pass

    class Shifted(OutcomeMap):
        def outcome(self, latent: Tensor) -> Tensor:
            return latent + 1.0

        def latent(self, outcome: Tensor) -> Tensor:
            return outcome - 1.0

    normal = MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double())
    with pytest.raises(UnsupportedError, match=r"noise of obs.*Own.*normal_scores.register"):
        normal_scores(Own(normal))

    @normal_scores.register(Own)
    def _(posterior: Own) -> OutcomeMap:
        return Shifted()

    assert normal_scores(Own(normal)).outcome(Z)[0].item() == -6.0
    with pytest.raises(UnsupportedError, match=r"is registered for EnsemblePosterior"):
        normal_scores(EnsemblePosterior(torch.zeros(2, 3, 1)))


def test_distributions_without_an_inverse() -> None:
    posterior: Any = TorchPosterior(Gamma(SCALE, SCALE))
    with pytest.raises(UnsupportedError, match="Gamma has no `icdf`.*register"):
        normal_scores(posterior)

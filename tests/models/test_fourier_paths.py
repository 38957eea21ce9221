"""Functions evaluated together are those that BoTorch evaluates one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import InputPerturbation
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Size, Tensor
from torch.testing import assert_close

from botorch_calib import CensoredDelayModel
from botorch_calib.models.fourier_paths import FourierPaths
from tests.gps import make_data, make_gp
from tests.random_numbers import normal

KERNELS: dict[str, Any] = {
    "RBF": lambda: RBFKernel(ard_num_dims=2),
    "Matern of one column, scaled": lambda: ScaleKernel(MaternKernel(nu=1.5, active_dims=[1])),
    "scaled twice": lambda: ScaleKernel(ScaleKernel(MaternKernel(nu=2.5))),
}


def kernel_gp(name: str) -> SingleTaskGP:
    X, Y, _ = make_data()
    gp = SingleTaskGP(X, Y, covar_module=KERNELS[name]().to(X), outcome_transform=None)
    for scaled in gp.covar_module.modules():
        if isinstance(scaled, ScaleKernel):
            scaled.outputscale = 1.7
    gp.mean_module.initialize(constant=0.4)
    return gp.eval()


def conditioned_gp() -> SingleTaskGP:
    """A process that knows of pending points."""
    X, _, _ = make_data(num=14, transforms=True)
    gp: Any = CensoredDelayModel(make_gp(transforms=True), X[12:], 20.0).conditioned_model
    return gp


PROCESSES: dict[str, Any] = {
    "as it is": make_gp,
    "transforms": lambda: make_gp(transforms=True),
    "transforms, fixed noise": lambda: make_gp(fixed_noise=True, transforms=True),
    "pending points": conditioned_gp,
    **{name: partial(kernel_gp, name) for name in KERNELS},
}


def draw(gp: Any, num: int = 2, shape: Size | None = None) -> list[Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gp.posterior(gp.train_inputs[0][:1])  # as users of paths do
        return [draw_matheron_paths(gp, Size([]) if shape is None else shape) for _ in range(num)]


def together(gp: Any, *paths: Any) -> FourierPaths:
    found = FourierPaths.of(gp, *paths)
    assert found is not None
    return found


def points(*shape: int, gp: Any) -> Tensor:
    """In the range of the inputs, of which two are visited."""
    X, _, _ = make_data(num=24, transforms=hasattr(gp, "input_transform"))
    return X[10 : 10 + torch.Size(shape).numel()].view(*shape, 2)


@pytest.mark.parametrize(
    ("process", "shape"), [*((each, (2, 3, 2)) for each in PROCESSES), ("as it is", (5,))]
)
def test_values_and_gradients_are_those_one_by_one(process: str, shape: tuple[int, ...]) -> None:
    gp = PROCESSES[process]()
    paths = draw(gp)
    both, X = together(gp, *paths), points(*shape, gp=gp).requires_grad_()
    values, expected = both(X), torch.stack([path(X) for path in paths])
    assert values.shape == (2, *shape) and not torch.allclose(*values)
    assert_close(values, expected, rtol=1e-10, atol=1e-10)
    weights = normal(2, *shape, generator=torch.Generator().manual_seed(1))
    slopes, exact = (torch.autograd.grad((weights * v).sum(), X)[0] for v in (values, expected))
    assert_close(slopes, exact, rtol=1e-9, atol=1e-9)
    assert_close(both(X.detach()), values.detach(), rtol=1e-10, atol=1e-10)


def test_derivatives_of_every_order() -> None:
    gp = make_gp(transforms=True)
    paths = draw(gp, num=1)
    X = points(1, gp=gp)
    ours, theirs = (
        torch.autograd.functional.hessian(lambda x, f=f: f(x).sum(), X)
        for f in (together(gp, *paths), paths[0])
    )
    assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    both, X = together(gp, *draw(gp)), points(3, gp=gp).requires_grad_()
    assert torch.autograd.gradgradcheck(both, (X,), atol=1e-5, rtol=1e-4)


def test_the_phases_of_the_waves_are_not_kept() -> None:
    """Derivatives by the rows come with the values: ``num_paths x n x d``, not ``x n x m``."""
    gp = make_gp()
    both, X = together(gp, *draw(gp)), points(4, gp=gp).requires_grad_()
    saved: list[Tensor] = []

    def keep(values: Tensor) -> Tensor:
        saved.append(values)
        return values

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        both(X)
    of_waves = [v for v in saved if v.shape[-1] == both.frequencies.shape[-1]]
    assert all(v is both.frequencies or v.numel() <= both.shifts.numel() for v in of_waves)


@pytest.mark.parametrize("process", PROCESSES)
def test_the_posterior_comes_with_the_values(process: str) -> None:
    gp = PROCESSES[process]()
    both, X = together(gp, *draw(gp)), points(2, 3, gp=gp).requires_grad_()
    values, posterior = both.with_posterior(X)
    assert torch.equal(values, both(X))
    if process in ("Matern of one column, scaled", "scaled twice"):
        assert posterior is None  # with kernels whose variance is not known
        return
    assert posterior is not None
    expected = gp.posterior(X.unsqueeze(-2))
    for mine, theirs in zip(
        (posterior.mean, posterior.variance), (expected.mean, expected.variance), strict=True
    ):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
        slopes, exact = (torch.autograd.grad(v.sum(), X, retain_graph=True) for v in (mine, theirs))
        assert_close(slopes, exact, rtol=1e-7, atol=1e-8)


def test_single_precision() -> None:
    gp = make_gp(dtype=torch.float)
    paths = draw(gp)
    X = points(5, gp=gp).float()
    values = together(gp, *paths)(X)
    assert values.dtype == torch.float
    assert_close(values, torch.stack([path(X) for path in paths]), rtol=1e-3, atol=1e-3)


class OtherGP(SingleTaskGP):
    """May predict in another way."""


def test_what_is_evaluated_one_by_one() -> None:
    """Whatever is not a single draw from just this process by BoTorch's own rules."""
    gp = make_gp()
    path, *_ = draw(gp)
    assert FourierPaths.of(gp, path) is not None
    assert FourierPaths.of(make_gp(fixed_noise=True), draw(make_gp(transforms=True))[0]) is None
    assert FourierPaths.of(gp, *draw(gp, shape=Size([3]))) is None
    assert FourierPaths.of(gp, path.paths["prior_paths"]) is None
    other = draw(gp)[0]
    other.paths["prior_paths"].input_transform = Normalize(2)
    assert FourierPaths.of(gp, path, other) is None
    other = draw(gp)[0]
    other.paths["prior_paths"].feature_map.output_transform = torch.nn.Identity()
    assert FourierPaths.of(gp, other) is None
    X, Y, _ = make_data()
    own_class = OtherGP(X, Y, outcome_transform=None).eval()
    assert FourierPaths.of(own_class, *draw(own_class)) is None
    many = InputPerturbation(torch.zeros(2, 2, dtype=X.dtype))
    perturbed = SingleTaskGP(X, Y, input_transform=many, outcome_transform=None).eval()
    drawn = draw_matheron_paths(perturbed, Size([]), draw_kernel_feature_paths)
    assert FourierPaths.of(perturbed, drawn) is None


def test_no_points() -> None:
    gp = make_gp()
    X = torch.empty(2, 0, 1, 2, dtype=torch.double)
    both = together(gp, *draw(gp))
    values, posterior = both.with_posterior(X)
    assert both(X).shape == values.shape == (2, 2, 0, 1)
    assert posterior is not None and posterior.mean.shape == (2, 0, 1, 1, 1)

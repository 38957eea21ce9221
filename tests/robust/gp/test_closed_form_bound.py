"""Confidence bounds at all pairs against the dense joint posterior and finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpytorch
import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize, Warp
from botorch.models.transforms.input import (
    AffineInputTransform,
    ChainedInputTransform,
    InputStandardize,
    Round,
)
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean
from gpytorch.utils.warnings import NumericalWarning
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_calib import CensoredDelayModel
from botorch_calib.robust import ClosedFormConfidenceBound
from botorch_calib.robust.contextual_function import ContextualFunction
from botorch_calib.robust.gp import closed_form_bound, stationary_gp
from botorch_calib.robust.gp.closed_form_bound import confidence_bound, gaussian_process
from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns

DOUBLE: dict[str, Any] = {"dtype": torch.double}
BETA = 2.25
# Raw inputs and outcomes are far from the unit cube and from standard.
LOW = torch.tensor([-5.0, 0.0, 100.0, 2.0], **DOUBLE)
RANGE = torch.tensor([10.0, 1.0, 30.0, 0.2], **DOUBLE)

KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: RBFKernel(ard_num_dims=4),
    "scaled rbf": lambda: ScaleKernel(RBFKernel(ard_num_dims=4)),
    "matern 3/2": lambda: MaternKernel(nu=1.5, ard_num_dims=4),
    "scaled matern 3/2": lambda: ScaleKernel(MaternKernel(nu=1.5)),
    "matern 5/2": lambda: MaternKernel(nu=2.5),
    "scaled matern 5/2": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=4)),
}


def affine_chain() -> ChainedInputTransform:
    """Transforms that act on some columns only, forwards and backwards."""
    return ChainedInputTransform(
        shrunk=AffineInputTransform(
            4, torch.tensor([2.0, -4.0], **DOUBLE), torch.tensor([1.0, 0.5], **DOUBLE), [0, 2]
        ),
        standard=InputStandardize(4),
        grown=AffineInputTransform(
            4, torch.full((4,), 0.3, **DOUBLE), torch.ones(4, **DOUBLE), reverse=True
        ),
    )


INPUT_TRANSFORMS: dict[str, Callable[[], Any]] = {
    "normalize": lambda: Normalize(4),
    "some columns": lambda: ChainedInputTransform(a=InputStandardize(4), b=Normalize(4, [1, 3])),
    "chain": affine_chain,
}


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, **DOUBLE, generator=torch.Generator().manual_seed(seed))


def make_gp(
    kernel: str = "scaled matern 5/2",
    inputs: str = "normalize",
    standardize: bool = True,
    fixed_noise: bool = False,
    num: int = 15,
    dtype: torch.dtype = torch.double,
    **kwargs: Any,
) -> SingleTaskGP:
    U = uniform(num, 4)
    Y = 40 + 7 * (4 * U + torch.arange(4)).sin().sum(dim=-1, keepdim=True)
    Yvar = (0.05 + 0.3 * uniform(num, 1, seed=1)).to(dtype)
    module = KERNELS[kernel]()
    gp = SingleTaskGP(
        (LOW + RANGE * U).to(dtype),
        Y.to(dtype),
        train_Yvar=Yvar if fixed_noise else None,
        covar_module=module,
        input_transform=INPUT_TRANSFORMS[inputs](),
        outcome_transform=Standardize(1) if standardize else None,
        **kwargs,
    )
    base: Any = module
    if isinstance(module, ScaleKernel):
        module.outputscale = torch.tensor(1.7)
        base = module.base_kernel
    base.lengthscale = torch.linspace(0.5, 1.1, base.lengthscale.numel())
    if isinstance(gp.mean_module, gpytorch.means.ConstantMean):
        gp.mean_module.initialize(constant=0.4)
    if not fixed_noise:
        gp.likelihood.noise = 1e-3
    return gp.eval()


def decisions(num: int, columns: Columns, seed: int = 5) -> Tensor:
    return (LOW + RANGE * uniform(num, 4, seed=seed))[:, columns.decision]


def contexts_of(num: int, columns: Columns, seed: int = 6) -> Tensor:
    return (LOW + RANGE * uniform(num, 4, seed=seed))[:, columns.context]


def joint(X: Tensor, C: Tensor, indices: list[int]) -> Tensor:
    """All pairs ``b M x d``, each put together by a loop."""
    rows = []
    for x, c in itertools.product(X, C):
        row = [None] * (len(x) + len(c))
        for place, value in zip(indices, c, strict=True):
            row[place] = value
        rest = iter(x)
        rows.append(torch.stack([next(rest) if value is None else value for value in row]))
    return torch.stack(rows)


def dense_bound(gp: Any, Z: Tensor, sign: float = 1.0) -> Tensor:
    """The bound from one joint posterior of all points."""
    posterior = gp.posterior(Z).distribution
    variance = posterior.covariance_matrix.diagonal()
    return sign * posterior.mean + BETA**0.5 * variance.sqrt()


def closed(gp: Any, columns: Columns, sign: float = 1.0) -> ClosedFormConfidenceBound:
    bound = confidence_bound(gp, columns, BETA, sign)
    assert isinstance(bound, ClosedFormConfidenceBound)
    return bound


def generic(gp: Any, columns: Columns, sign: float = 1.0) -> PointwiseFunction:
    """The bound by the generic path."""

    def bound(Z: Tensor) -> Tensor:
        posterior = gp.posterior(Z)
        return (sign * posterior.mean + 1.5 * posterior.variance.sqrt())[..., 0, 0]

    return PointwiseFunction(bound, columns, chunk=11)


PATHS: dict[str, Callable[..., ContextualFunction]] = {"closed": closed, "generic": generic}
CASES = [
    *((kernel, "normalize", True, False) for kernel in KERNELS),
    ("scaled matern 5/2", "chain", True, True),
    ("rbf", "some columns", False, True),
    ("scaled matern 3/2", "chain", False, False),
]


class TestValues:
    @pytest.mark.parametrize(("kernel", "inputs", "standardize", "fixed_noise"), CASES)
    def test_dense_joint_posterior(self, kernel, inputs, standardize, fixed_noise):
        gp = make_gp(kernel, inputs, standardize, fixed_noise)
        columns = Columns(4, 2)
        X, C = decisions(4, columns), contexts_of(6, columns)
        pairs = joint(X, C, [2, 3])
        for sign in (1.0, -1.0):
            expected = dense_bound(gp, pairs, sign).view(4, 6)
            for path in PATHS.values():
                assert_close(path(gp, columns, sign)(X, C), expected, rtol=0, atol=1e-8)

    @pytest.mark.parametrize("indices", [[-2, 0], [2], [0, 3, 1]])
    @pytest.mark.parametrize("path", PATHS)
    def test_contexts_in_any_columns(self, indices, path):
        gp = make_gp()
        columns = Columns(4, len(indices), indices)
        X, C = decisions(3, columns), contexts_of(5, columns)
        places = [i % 4 for i in indices]
        expected = dense_bound(gp, joint(X, C, places)).view(3, 5)
        bound = PATHS[path](gp, columns)
        assert_close(bound(X, C), expected, rtol=0, atol=1e-8)
        # Gradients, too, are in the order of the context columns.
        gradients = bound.with_gradients(X, C)[1]
        numeric = context_differences(gp, X, C, places)
        assert_close(gradients, numeric, rtol=1e-5, atol=1e-5)
        X = X.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x: bound.gradient_norms(x, C[:2]), (X,), eps=1e-5, atol=1e-4
        )

    @pytest.mark.parametrize("path", PATHS)
    def test_batch_equals_one_by_one(self, path):
        gp = make_gp()
        columns = Columns(4, 2)
        bound = PATHS[path](gp, columns)
        X, C = decisions(5, columns).requires_grad_(), contexts_of(7, columns)
        values, steepness = bound.with_steepness(X, C)
        for i, (row, value, steep) in enumerate(zip(X, values, steepness, strict=True)):
            x = row.detach()[None].requires_grad_()
            one, alone = bound.with_steepness(x, C)
            assert_close(one[0], value, rtol=1e-9, atol=1e-9)
            assert_close(alone[0], steep, rtol=1e-9, atol=1e-9)
            for total, single in ((value.sum(), one.sum()), (steep, alone)):
                (whole,) = torch.autograd.grad(total, X, retain_graph=True)
                (part,) = torch.autograd.grad(single, x, retain_graph=True)
                assert_close(part[0], whole[i], rtol=1e-8, atol=1e-8)
            for c, entry in zip(C, value, strict=True):
                assert_close(bound(x, c[None])[0, 0], entry, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("pairs", [1, 15])
    def test_chunks_do_not_matter(self, pairs, monkeypatch):
        columns = Columns(4, 2, [2, 0])
        bound = closed(make_gp(), columns)
        X, C = decisions(5, columns), contexts_of(7, columns)
        expected = bound._evaluate(X, C, gradients=True)
        monkeypatch.setattr(closed_form_bound, "_LEAST_PAIRS", pairs)
        monkeypatch.setattr(closed_form_bound, "_ELEMENTS", 1)
        monkeypatch.setattr(closed_form_bound, "_BLOCK", pairs)
        for got, wanted in zip(bound._evaluate(X, C, gradients=True), expected, strict=True):
            assert_close(got, wanted, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize(
        ("noise", "lengthscale"), [(1e-2, 0.5), (1e-4, 3.0), (1e-6, 0.5), (1e-6, 3.0)]
    )
    def test_hardly_any_noise(self, noise, lengthscale):
        """With smooth data pinned down to 1e-4, the inverse would have errors of 1e-5."""
        X = uniform(80, 4)
        Y = (3 * X).sin().sum(dim=-1, keepdim=True)
        Y = (Y - Y.mean()) / Y.std()
        gp = SingleTaskGP(
            X, Y, torch.full_like(Y, noise), covar_module=RBFKernel(), outcome_transform=None
        )
        gp.covar_module.lengthscale = lengthscale
        columns = Columns(4, 2)
        bound = closed(gp.eval(), columns)
        x, C = uniform(4, 2, seed=3).requires_grad_(), uniform(5, 2, seed=4)
        expected = dense_bound(gp, joint(x, C, [2, 3])).view(4, 5)
        assert (bound.gp.root is None) == (noise == 1e-2)
        for values in (bound(x, C), bound(x.detach(), C)):
            assert_close(values, expected, rtol=0, atol=1e-8)
        (got,) = torch.autograd.grad(bound(x, C).sum(), x)
        (wanted,) = torch.autograd.grad(expected.sum(), x)
        assert_close(got, wanted, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("path", PATHS)
    def test_single_precision(self, path):
        columns = Columns(4, 2)
        X, C = decisions(3, columns), contexts_of(4, columns)
        expected = PATHS[path](make_gp(), columns).with_steepness(X, C)
        gp = make_gp(dtype=torch.float32)
        got = PATHS[path](gp, columns).with_steepness(X.float(), C.float())
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == torch.float32
            assert_close(a.double(), b, rtol=2e-2, atol=2e-2)

    @pytest.mark.parametrize("chunk", [7, 64])
    def test_pairs_take_no_more_memory_than_results(self, chunk):
        columns = Columns(4, 3)
        X, C = decisions(40, columns), contexts_of(50, columns)
        bound = PointwiseFunction(lambda Z: Z.square().sum(dim=(-2, -1)), columns, chunk=chunk)
        with _Sizes() as sizes:
            values, norms = bound(X, C), bound.norms_with_slopes(X, C)[0]
        assert max(sizes.seen) == 40 * 50 * 8
        Z = joint(X, C, columns.context)
        assert_close(values.flatten(), Z.square().sum(dim=-1))
        assert_close(norms.flatten(), 2 * Z[:, columns.context].norm(dim=-1))

    def test_no_points(self):
        columns = Columns(4, 2)
        X, C = decisions(3, columns)[:0].requires_grad_(), contexts_of(4, columns)
        for path in PATHS.values():
            values, steepness = path(make_gp(), columns).with_steepness(X, C)
            assert values.shape == (0, 4) and steepness.shape == (0,)
            (values.sum() + steepness.sum()).backward()


class _Sizes(TorchDispatchMode):
    """Sees the bytes behind each tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.seen.append(result.untyped_storage().nbytes())
        return result


def context_differences(gp: Any, X: Tensor, C: Tensor, places: list[int]) -> Tensor:
    """Context gradients ``b x M x d_c`` by central differences of the dense posterior."""
    result = []
    for j, place in enumerate(places):
        step = torch.zeros(C.shape[-1], **DOUBLE)
        step[j] = 1e-5 * RANGE[place]
        up, down = (dense_bound(gp, joint(X, C + s * step, places)) for s in (1, -1))
        result.append((up - down).view(len(X), len(C)) / (2 * step[j]))
    return torch.stack(result, dim=-1).detach()


class TestGradients:
    @pytest.mark.parametrize(
        ("kernel", "path"),
        [
            ("rbf", "closed"),
            ("scaled matern 3/2", "closed"),
            ("scaled matern 5/2", "closed"),
            ("scaled matern 5/2", "generic"),
        ],
    )
    def test_finite_differences(self, kernel, path):
        columns = Columns(4, 2)
        gp = make_gp(kernel)
        bound = PATHS[path](gp, columns, -1.0)
        X, C = decisions(3, columns).requires_grad_(), contexts_of(4, columns)
        assert torch.autograd.gradcheck(lambda x: bound(x, C), (X,), eps=1e-5, atol=1e-4)
        for norms in (
            lambda x: bound.gradient_norms(x, C[:3]),
            lambda x: bound.with_steepness(x, C, C[1:2])[1],
        ):
            assert torch.autograd.gradcheck(norms, (X,), eps=1e-5, atol=1e-4)
        upper = PATHS[path](gp, columns)
        numeric = context_differences(gp, X.detach(), C, [2, 3])
        assert_close(upper.with_gradients(X, C)[1], numeric, rtol=1e-5, atol=1e-5)
        for norms in (upper.gradient_norms(X, C), upper.gradient_norms(X.detach(), C)):
            assert_close(norms.detach(), numeric.norm(dim=-1), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("path", PATHS)
    def test_norms_at_all_pairs_in_chunks(self, path):
        columns = Columns(4, 2)
        bound = PATHS[path](make_gp(), columns)
        X, C = decisions(5, columns).requires_grad_(), contexts_of(4, columns)
        weights = uniform(5, 4, seed=9)
        slopes = []
        for pairs in (2048, 3):
            bound.chunk = pairs
            norms = bound.gradient_norms(X, C)
            slopes.append(torch.autograd.grad((weights * norms).sum(), X)[0])
        # The steepness over a single context is the norm there.
        alone = [bound.with_steepness(X, C, C[j : j + 1])[1] for j in range(4)]
        expected = torch.autograd.grad((weights * torch.stack(alone, dim=-1)).sum(), X)[0]
        for found in slopes:
            assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert not bound.gradient_norms(X.detach(), C).requires_grad

    @pytest.mark.parametrize("path", PATHS)
    def test_steepness_is_the_largest_norm(self, path):
        columns = Columns(4, 2)
        bound = PATHS[path](make_gp(), columns)
        X, C = decisions(6, columns).requires_grad_(), contexts_of(9, columns)
        values, steepness = bound.with_steepness(X, C)
        plain, gradients = bound.with_gradients(X, C)
        assert_close(steepness, gradients.norm(dim=-1).amax(dim=-1), rtol=1e-9, atol=1e-9)
        assert torch.equal(values, plain) and not gradients.requires_grad
        assert len(gradients.norm(dim=-1).argmax(dim=-1).unique()) > 1
        # A maximum over fewer, other contexts.
        steepest = bound.with_steepness(X, C, C[2:3])[1]
        assert_close(steepest, gradients[:, 2].norm(dim=-1), rtol=1e-9, atol=1e-9)
        assert not bound.with_steepness(X.detach(), C)[1].requires_grad

    @pytest.mark.parametrize(
        ("path", "smoothing"),
        [("closed", 1.0), ("closed", 0.25), ("closed", 1 / 32), ("generic", 0.25)],
    )
    def test_smooth_steepness_is_a_norm_of_the_norms(self, path, smoothing):
        columns = Columns(4, 2)
        bound = PATHS[path](make_gp(), columns)
        X, C = decisions(6, columns).requires_grad_(), contexts_of(9, columns)
        values, steepness = bound.with_steepness(X, C, smoothing=smoothing)
        norms = bound.with_gradients(X, C)[1].norm(dim=-1)
        assert_close(steepness, norms.norm(p=1 / smoothing, dim=-1), rtol=1e-9, atol=1e-9)
        assert torch.equal(values, bound(X, C))
        few = X.detach()[:2].requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x: bound.with_steepness(x, C, C[:4], smoothing)[1], (few,), eps=1e-5, atol=1e-4
        )
        flat = bound.with_steepness(X.detach(), C, smoothing=smoothing)[1]
        assert not flat.requires_grad
        assert_close(flat, steepness.detach(), rtol=1e-12, atol=1e-12)

    def test_differences_are_as_good_as_second_derivatives(self):
        X, C = uniform(3, 1).requires_grad_(), uniform(4, 1, seed=1)
        centers = torch.tensor([[0.1, 0.9], [0.7, 0.3]], **DOUBLE)

        def slopes(scale: Tensor | None) -> Tensor:
            function = PointwiseFunction(
                lambda Z: torch.cdist(Z, centers).sin().sum(dim=(-2, -1)), Columns(2, 1), scale
            )
            return torch.autograd.grad(function.gradient_norms(X, C).sum(), X)[0]

        assert_close(slopes(torch.ones(1, **DOUBLE)), slopes(None), rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("kernel", ["rbf", "matern 3/2", "scaled matern 5/2"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_at_observed_points(self, kernel, dtype):
        gp = make_gp(kernel, dtype=dtype)
        columns = Columns(4, 2)
        observed = (LOW + RANGE * uniform(15, 4)).to(dtype)[:5]
        X, C = observed[:, :2].clone().requires_grad_(), observed[:, 2:]
        bound = closed(gp, columns)
        total = bound(X, C).sum() + bound.gradient_norms(X, C).diagonal().sum()
        total.backward()
        assert total.isfinite() and X.grad is not None and X.grad.isfinite().all()
        if dtype == torch.double:
            # All kernels have a second derivative there; a Matern 3/2 lacks the third.
            assert torch.autograd.gradcheck(
                lambda x: bound.gradient_norms(x, C).diagonal(), (X,), eps=1e-6, atol=1e-2
            )

    def test_vanishing_variance(self):
        gp = make_gp(standardize=False)
        gp.covar_module.outputscale = torch.tensor(1e-11)
        gp.train()
        gp.eval()
        columns = Columns(4, 2)
        X, C = decisions(3, columns).requires_grad_(), contexts_of(4, columns)
        values, gradients = closed(gp, columns).with_gradients(X, C)
        # GPyTorch sets smaller variances to its least one, 1e-10, which is constant.
        with pytest.warns(NumericalWarning):
            posterior = gp.posterior(joint(X, C, [2, 3]).unsqueeze(-2))
            expected = posterior.mean + 1.5 * posterior.variance.sqrt()
        assert_close(values, expected.view(3, 4), rtol=0, atol=1e-8)
        (got,) = torch.autograd.grad(values.sum(), X)
        (wanted,) = torch.autograd.grad(expected.sum(), X)
        assert_close(got, wanted, rtol=1e-6, atol=1e-9)
        steepness = closed(gp, columns).gradient_norms(X, C[:3])
        assert torch.autograd.grad(steepness.sum(), X)[0].isfinite().all()

    def test_constant_where_the_variance_is_least(self):
        columns, gp = Columns(4, 2), make_gp()
        bound = closed(gp, columns)
        X, C = decisions(3, columns).requires_grad_(), contexts_of(4, columns)
        variance = gp.posterior(joint(X.detach(), C, [2, 3]).unsqueeze(-2)).variance
        # A lower limit that applies to half of the variances.
        bound.gp = replace(bound.gp, least_variance=float(variance.detach().median()) * 1.0001)
        assert torch.autograd.gradcheck(lambda x: bound(x, C), (X,), eps=1e-5, atol=1e-4)
        assert torch.autograd.gradcheck(
            lambda x: bound.gradient_norms(x, C), (X,), eps=1e-5, atol=1e-4
        )

    def test_only_first_derivatives(self):
        columns = Columns(4, 2)
        X, C = decisions(2, columns).requires_grad_(), contexts_of(3, columns)
        (gradient,) = torch.autograd.grad(
            closed(make_gp(), columns)(X, C).square().sum(), X, create_graph=True
        )
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


class Shifted(SingleTaskGP):
    def forward(self, x):
        return super().forward(x + 1.0)


def batched() -> SingleTaskGP:
    Y = uniform(1, 6, 1)
    Y = ((Y - Y.mean()) / Y.std()).expand(2, 6, 1)
    return SingleTaskGP(uniform(2, 6, 4), Y, outcome_transform=None)


UNSUPPORTED: dict[str, Callable[[], SingleTaskGP]] = {
    "matern 1/2": lambda: plain_gp(covar_module=MaternKernel(nu=0.5)),
    "some dimensions": lambda: plain_gp(covar_module=RBFKernel(active_dims=[0, 1])),
    "some dimensions, scaled": lambda: plain_gp(
        covar_module=ScaleKernel(RBFKernel(), active_dims=[0, 1])
    ),
    "sum": lambda: plain_gp(covar_module=RBFKernel() + MaternKernel(nu=2.5)),
    "product": lambda: plain_gp(covar_module=ScaleKernel(RBFKernel() * RBFKernel())),
    "scaled twice": lambda: plain_gp(covar_module=ScaleKernel(ScaleKernel(RBFKernel()))),
    "batch of kernels": lambda: plain_gp(covar_module=RBFKernel(batch_shape=torch.Size([1]))),
    "batch of scales": lambda: plain_gp(
        covar_module=ScaleKernel(RBFKernel(), batch_shape=torch.Size([1]))
    ),
    "warped inputs": lambda: plain_gp(
        input_transform=Warp(d=4, indices=[0], bounds=torch.tensor([[0.0] * 4, [1.0] * 4]))
    ),
    "rounded inputs": lambda: plain_gp(
        input_transform=ChainedInputTransform(a=Normalize(4), b=Round(integer_indices=[0]))
    ),
    "linear mean": lambda: plain_gp(mean_module=LinearMean(4)),
    "other prediction": lambda: plain_gp(Shifted),
    "batch": batched,
}


def plain_gp(kind: type[SingleTaskGP] = SingleTaskGP, num: int = 8, **kwargs: Any) -> SingleTaskGP:
    Y = uniform(num, 1, seed=1)
    kwargs = {"outcome_transform": None, **kwargs}
    if kwargs["outcome_transform"] is None:
        Y = (Y - Y.mean()) / Y.std()
    return kind(uniform(num, 4), Y, **kwargs).double()


class TestSupport:
    @pytest.mark.parametrize("name", UNSUPPORTED)
    def test_other_models_take_the_generic_path(self, name):
        gp = UNSUPPORTED[name]().eval()
        assert gaussian_process(gp) is None
        columns = Columns(4, 2)
        bound = confidence_bound(gp, columns, BETA)
        assert isinstance(bound, PointwiseFunction)
        with pytest.raises(UnsupportedError, match="closed form"):
            stationary_gp.stationary_gp(gp)
        if "batch" not in name:
            X, C = uniform(2, 2, seed=3), uniform(3, 2, seed=4)
            expected = dense_bound(gp, joint(X, C, [2, 3])).view(2, 3)
            assert_close(bound(X, C), expected, rtol=0, atol=1e-8)

    def test_logarithm_of_the_outcome(self):
        Y = uniform(8, 1, seed=1)
        Y = ((Y - Y.mean()) / Y.std()).exp()
        gp = SingleTaskGP(uniform(8, 4), Y, outcome_transform=Log())
        assert gaussian_process(gp) is None

    @pytest.mark.parametrize("fixed_noise", [False, True])
    def test_conditioned_model(self, fixed_noise):
        pending = LOW + RANGE * uniform(3, 4, seed=9)
        model = CensoredDelayModel(make_gp(fixed_noise=fixed_noise), pending, censor_value=20.0)
        columns = Columns(4, 2)
        X, C = decisions(3, columns), contexts_of(4, columns)
        expected = dense_bound(model, joint(X, C, [2, 3])).view(3, 4)
        got = closed(model.gaussian_model, columns)(X, C)
        assert_close(got, expected, rtol=0, atol=1e-8)

    @pytest.mark.parametrize(
        ("width", "num", "indices"),
        [(4, 2, [0]), (4, 2, [1, 1]), (4, 2, [1, -3]), (4, 2, [0, 4]), (4, 1, [-5]), (2, 2, None)],
    )
    def test_wrong_columns(self, width, num, indices):
        with pytest.raises(InputDataError, match="context"):
            Columns(width, num, indices)

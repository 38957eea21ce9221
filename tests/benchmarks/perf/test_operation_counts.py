"""Operations and host reads of calls in which they can be counted by hand."""

from __future__ import annotations

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from benchmarks.perf import calibrated_and_delayed as calibrated_and_delayed  # registers
from benchmarks.perf.operation_counts import Operations, count_operations
from botorch_calib._validation import check_finite

X = torch.arange(6.0).view(2, 3)


def test_operations_count_and_views_do_not() -> None:
    def call() -> Tensor:
        return (X.unsqueeze(0).expand(4, 2, 3) + 1).mul_(2).reshape(-1)[3:]

    assert count_operations(call) == Operations(2, 0, 0)


def test_the_backward_pass_counts() -> None:
    x = torch.ones(3, requires_grad=True)
    value = (x * x).sum()
    # The 1 at the end of the chain, two products with the other factor, and their sum
    assert count_operations(lambda: torch.autograd.grad(value, x)).dispatched == 4


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        (lambda: X.sum().item(), 1),
        (lambda: bool((X > 2).any()), 2),
        (lambda: torch.equal(X, X), 0),
        (lambda: (X > 2).nonzero(), 1),
        (lambda: X[X > 2], 2),
    ],
)
def test_what_waits_for_the_device(call, operations) -> None:
    assert count_operations(call) == Operations(operations, 1, 0)


def test_own_reads_are_told_from_those_of_others() -> None:
    own = count_operations(lambda: check_finite("X", X))
    assert own.own_host_reads == own.host_reads > 0
    covariance = torch.eye(2)
    others = count_operations(
        lambda: MultivariateNormal(torch.zeros(2), covariance, validate_args=True)
    )
    assert others.host_reads > 0 == others.own_host_reads


def test_reads_in_a_backward_pass_are_found() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, *grads: Tensor) -> Tensor:
            return check_finite("gradient", grads[0])

    value = Reads.apply(torch.ones(3, requires_grad=True)).sum()
    assert count_operations(value.backward).own_host_reads > 0

"""Joint inputs against loops over rows and columns."""

import itertools

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_calib.robust import join_contexts


def numbers(*shape: int, start: int = 0) -> Tensor:
    return start + torch.arange(torch.Size(shape).numel(), dtype=torch.double).view(shape)


def joined_by_loops(x: list[float], c: list[float], indices: list[int]) -> list[float]:
    """One row: contexts at their columns, decisions in order at the remaining columns."""
    width = len(x) + len(c)
    places = {i % width: value for i, value in zip(indices, c, strict=True)}
    rest = iter(x)
    return [places[i] if i in places else next(rest) for i in range(width)]


@pytest.mark.parametrize("indices", [[3, 4], [0, 1], [1, 3], [3, 0], [-1, 0], [-5, -2]])
def test_columns(indices: list[int]) -> None:
    X, C = numbers(4, 3), numbers(4, 2, start=100)
    wanted = [joined_by_loops(x, c, indices) for x, c in zip(X.tolist(), C.tolist(), strict=True)]
    assert join_contexts(X, C, indices).tolist() == wanted
    assert join_contexts(X, C, torch.tensor(indices)).tolist() == wanted  # type: ignore[arg-type]
    assert torch.equal(join_contexts(X, C), torch.cat([X, C], dim=-1))  # by default


@pytest.mark.parametrize(
    ("shape", "others", "wanted"),
    [
        ((), (), ()),
        ((5,), (), (5,)),
        ((), (6,), (6,)),
        ((5, 1), (6,), (5, 6)),
        ((2, 1, 1), (4, 1), (2, 4, 1)),
        ((0, 1), (6,), (0, 6)),
    ],
)
def test_batches_broadcast(
    shape: tuple[int, ...], others: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    X, C = numbers(*shape, 2), numbers(*others, 1, start=100)
    found = join_contexts(X, C, [1])
    assert found.shape == (*wanted, 3)
    for place in itertools.product(*map(range, wanted)):
        x, c = X.expand(*wanted, 2)[place].tolist(), C.expand(*wanted, 1)[place].tolist()
        assert found[place].tolist() == joined_by_loops(x, c, [1])


def test_wrong_arguments() -> None:
    X, C = numbers(4, 3), numbers(4, 2)
    with pytest.raises(BotorchTensorDimensionError, match="broadcast, got .*5, 3.* and .*4, 2"):
        join_contexts(numbers(5, 3), C)
    with pytest.raises(BotorchTensorDimensionError, match="`X`"):
        join_contexts(X[0, 0], C)
    with pytest.raises(BotorchTensorDimensionError, match="`contexts`"):
        join_contexts(X, C[0, 0])
    for bad in ([0], [1, 1], [0, 5], [0, -6], [0, 1, 2]):
        with pytest.raises(InputDataError, match="`context_indices`"):
            join_contexts(X, C, bad)
    with pytest.raises(InputDataError, match="`X` must be a tensor"):
        join_contexts([[0.1]], X, [0])  # type: ignore[arg-type]
    with pytest.raises(InputDataError, match="no decision"):
        join_contexts(X[:, :0], C)

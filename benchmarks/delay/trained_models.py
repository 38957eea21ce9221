"""Tabulated tasks: the hyperparameters of two small models that are trained by mini-batches.

Both tasks tune the batch size, the learning rate and its decay: update ``k = 0, 1, ...`` uses the
rate ``rate / (1 + decay k)``. A choice of hyperparameters is a cell of the table, and its value is
the accuracy on 30 % of the data, which are held out by one stratified split. Initial weights and
the order of the data are the same in all cells, so that cells differ only in their hyperparameters.

All cells of one batch size are trained at once: the leading dimension of parameters is the cell,
and the gradient of the sum of losses contains the gradient of each cell. Training is in double
precision. Rounding may differ between processors, which changes accuracies where training is
unstable. `delay.value_tables` stores the values.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from torch.nn import functional

from benchmarks.delay.value_tables import cartesian, spaced


@dataclass(frozen=True)
class Split:
    """Features and labels of the training rows and the held-out validation rows."""

    train: Tensor
    train_labels: Tensor
    validation: Tensor
    validation_labels: Tensor


@functools.lru_cache
def breast_cancer() -> Split:
    """Wisconsin breast cancer, 398 and 171 rows, standardised by the training rows."""
    features, labels = load_breast_cancer(return_X_y=True)
    parts = train_test_split(features, labels, test_size=0.3, random_state=0, stratify=labels)
    scaler = StandardScaler().fit(parts[0])
    train, validation = (torch.tensor(scaler.transform(part)) for part in parts[:2])
    return Split(train, torch.tensor(parts[2]), validation, torch.tensor(parts[3]))


@functools.lru_cache
def digit_images() -> Split:
    """Handwritten digits, 1257 and 540 images of 8 x 8 in [0, 1]; rows have length 64."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.3, random_state=0, stratify=labels)
    return Split(*(torch.tensor(part) for part in (parts[0], parts[2], parts[1], parts[3])))


def batches(num_rows: int, batch_size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """Row numbers of each update. Each epoch uses all rows in a new order."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(num_rows, generator=generator).split(batch_size)


def initial_parameters(layers: tuple[tuple[int, int], ...], seed: int) -> list[Tensor]:
    """Weights ``inputs x outputs`` and biases of each layer, uniform in ``±1 / sqrt(inputs)``."""
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for inputs, outputs in layers:
        for shape in ((inputs, outputs), (outputs,)):
            uniform = torch.rand(shape, generator=generator, dtype=torch.double)
            parameters.append((2.0 * uniform - 1.0) / math.sqrt(inputs))
    return parameters


@dataclass(frozen=True)
class TrainingTask(ABC):
    """A grid of batch sizes, learning rates and decays, the last two as decimal logarithms."""

    batch_sizes: tuple[int, ...]
    log_rates: tuple[float, ...]
    log_decays: tuple[float, ...]
    epochs: int
    seed: int = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """See `TabulatedTask`."""

    @abstractmethod
    def accuracies(self, batch_size: int, rates: Tensor, decays: Tensor) -> Tensor:
        """Validation accuracies of models trained with ``c`` rates and decays, of length ``c``."""

    def choices(self) -> Tensor:
        """See `TabulatedTask`."""
        return cartesian(tuple(map(float, self.batch_sizes)), self.log_rates, self.log_decays)

    def data_key(self) -> str:
        """See `TabulatedTask`: the data come with scikit-learn."""
        return ""

    def compute(self) -> Tensor:
        """See `TabulatedTask`."""
        rates, decays = 10.0 ** cartesian(self.log_rates, self.log_decays).T
        return torch.cat([self.accuracies(size, rates, decays) for size in self.batch_sizes])

    def updates(self, num_rows: int, batch_size: int) -> Iterator[tuple[int, Tensor]]:
        """The number of each update, from 0, and its rows."""
        return enumerate(batches(num_rows, batch_size, self.epochs, self.seed))


@dataclass(frozen=True)
class LogisticTask(TrainingTask):
    """Logistic regression by stochastic gradient descent on breast cancer.

    The paper tunes the rate and its decay in [1e-6, 1]; here both are tuned on the log scale. Small
    rates hardly change the random initial weights.
    """

    batch_sizes: tuple[int, ...] = (20, 26, 31, 37, 43, 49, 54, 60)
    log_rates: tuple[float, ...] = spaced(-6.0, 0.0, 8)
    log_decays: tuple[float, ...] = spaced(-6.0, 0.0, 8)
    epochs: int = 20

    @property
    def name(self) -> str:
        return "logistic"

    def accuracies(self, batch_size: int, rates: Tensor, decays: Tensor) -> Tensor:
        data = breast_cancer()
        initial = initial_parameters(((data.train.shape[1], 1),), self.seed)
        weights, biases = initial[0].repeat(1, len(rates)), initial[1].repeat(len(rates))
        for update, rows in self.updates(len(data.train), batch_size):
            x, labels = data.train[rows], data.train_labels[rows]
            # The gradient of the mean log loss with respect to the log odds.
            errors = (torch.sigmoid(x @ weights + biases) - labels.unsqueeze(-1)) / len(rows)
            step = rates / (1.0 + decays * update)
            weights -= step * (x.T @ errors)
            biases -= step * errors.sum(0)
        positive = data.validation @ weights + biases > 0.0
        return (positive == data.validation_labels.unsqueeze(-1)).double().mean(0)


# Adam's usual constants.
MOMENTUM, SCALE_MEMORY, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class CnnTask(TrainingTask):
    """A convolutional network on handwritten digits, trained by Adam on the log loss.

    The network is the paper's, with a smaller pooling window for smaller images: 8 kernels of
    3 x 3 (6 x 6 positions), max pooling over windows of 2 x 2, a layer of 8 nodes and 10 outputs,
    with rectifiers in between. The paper tunes the rate and its decay in [1e-6, 1]. Here both
    ranges start at 1e-4, since the few epochs learn nothing at lower rates.
    """

    batch_sizes: tuple[int, ...] = (32, 46, 59, 73, 87, 101, 114, 128)
    log_rates: tuple[float, ...] = spaced(-4.0, 0.0, 8)
    log_decays: tuple[float, ...] = spaced(-4.0, 0.0, 8)
    epochs: int = 10

    @property
    def name(self) -> str:
        return "cnn"

    def accuracies(self, batch_size: int, rates: Tensor, decays: Tensor) -> Tensor:
        data, cells = digit_images(), len(rates)
        patches, labels = image_patches(data.train), data.train_labels
        parameters = [
            value.expand(cells, *value.shape).clone().requires_grad_()
            for value in initial_parameters(((9, 8), (72, 8), (8, 10)), self.seed)
        ]
        optimizer = BatchedAdam(parameters)
        for update, rows in self.updates(len(patches), batch_size):
            with torch.enable_grad():
                scores = network_scores(parameters, patches[rows]).flatten(0, 1)
                losses = functional.cross_entropy(
                    scores, labels[rows].repeat(cells), reduction="sum"
                )
                gradients = torch.autograd.grad(losses / len(rows), parameters)
            optimizer.update(gradients, rates / (1.0 + decays * update))
        with torch.no_grad():
            scores = network_scores(parameters, image_patches(data.validation))
        return (scores.argmax(-1) == data.validation_labels).double().mean(-1)


def image_patches(images: Tensor) -> Tensor:
    """The 36 patches of 3 x 3 of each image: ``n x 64 -> n x 36 x 9``."""
    return functional.unfold(images.reshape(-1, 1, 8, 8), 3).transpose(1, 2).contiguous()


def network_scores(parameters: list[Tensor], patches: Tensor) -> Tensor:
    """The outputs of ``c`` networks for the same ``n`` images: ``c x n x 10``.

    Args:
        parameters: Weights ``c x inputs x outputs`` and biases ``c x outputs`` of the layers.
        patches: The images' patches, ``n x 36 x 9``.
    """
    kernels, offsets, hidden, hidden_bias, output, output_bias = parameters
    num_images, cells = len(patches), len(kernels)
    # One product suffices for all cells, since they have the same images.
    maps = patches.reshape(-1, 9) @ kernels.transpose(0, 1).reshape(9, -1)
    pooled = maps.reshape(num_images, 3, 2, 3, 2, -1).amax((2, 4))
    features = (pooled.reshape(num_images, 9, cells, 8) + offsets).relu()
    features = features.permute(2, 0, 1, 3).reshape(cells, num_images, 72)
    nodes = torch.baddbmm(hidden_bias.unsqueeze(1), features, hidden).relu()
    return torch.baddbmm(output_bias.unsqueeze(1), nodes, output)


class BatchedAdam:
    """Adam with a learning rate for each cell, which is the leading dimension of parameters."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.means = [torch.zeros_like(value) for value in parameters]
        self.scales = [torch.zeros_like(value) for value in parameters]
        self.count = 0

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...], rates: Tensor) -> None:
        """Update the parameters in place; ``rates`` has one rate for each cell."""
        self.count += 1
        to_mean, to_scale = 1.0 - MOMENTUM**self.count, 1.0 - SCALE_MEMORY**self.count
        state = zip(self.parameters, self.means, self.scales, gradients, strict=True)
        for value, mean, scale, gradient in state:
            mean.lerp_(gradient, 1.0 - MOMENTUM)
            scale.mul_(SCALE_MEMORY).addcmul_(gradient, gradient, value=1.0 - SCALE_MEMORY)
            rate = rates.reshape(-1, *[1] * (value.dim() - 1))
            value -= rate * (mean / to_mean) / ((scale / to_scale).sqrt() + EPSILON)

"""`QuantileLearner`: the base class of learners of thresholds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_inputs,
    check_levels,
    check_numbers,
    check_tensor,
    check_unit_interval,
    check_width,
)
from botorch_calib.calibration.learners.radial_sum import RadialSum

# Largest number of observations in one call of `QuantileLearner._learn`
_CHUNK = 1024
#: Largest spread of the inputs of a localized learner, in lengthscales.
MAX_SPREAD = 1e6


class Thresholds(NamedTuple):
    """Thresholds as a function of the inputs.

    If ``radial`` is None, all inputs have the same thresholds, the field ``everywhere``. Otherwise
    `QuantileLearner._finished` computes the thresholds from the ``radial`` sum and the ``shift``.
    """

    everywhere: Tensor
    radial: RadialSum | None = None
    shift: Tensor | float = 0.0


class QuantileLearner(Module, ABC):
    """Learns thresholds ``theta_j(x)`` with a fraction ``p_j`` of the scores at or below them.

    Subclasses store their state in buffers. The buffer ``centers`` and the buffer whose name is
    ``_payload`` have one row for each stored observation. A state dict may contain any number of
    rows.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``; a list is converted to float64.
        initial: Initial thresholds in [0, 1], of shape ``M`` (default: ``levels``).
        num_columns: Number of columns of the payload (default: ``M``).
    """

    levels: Tensor
    initial: Tensor
    centers: Tensor
    step_count: Tensor

    # Cache: identities and versions of the buffers, the buffers, and the derived thresholds
    _kept: tuple[list[tuple[int, int]], list[Tensor], Thresholds] | None = None
    _payload: ClassVar[str] = "coefficients"
    _settings: ClassVar[tuple[str, ...]] = ("levels", "initial")

    def __init__(
        self,
        levels: Tensor | Sequence[float],
        initial: Tensor | Sequence[float] | None,
        num_columns: int | None = None,
    ) -> None:
        super().__init__()
        p = check_levels("levels", check_numbers("levels", levels).detach())
        self.register_buffer("levels", p.clone())
        # The initial thresholds depend on the score. They are in the state dict, so that a state
        # learned with another score is not loaded.
        self.register_buffer("initial", _initial_thresholds(initial, p))
        # The width 0 means that the width is unknown until the first update.
        self.register_buffer("centers", p.new_zeros(0, 0))
        num_columns = len(p) if num_columns is None else num_columns
        self.register_buffer(self._payload, p.new_zeros(0, num_columns))
        self.register_buffer("step_count", torch.zeros((), dtype=torch.long, device=p.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    @abstractmethod
    def _derive(self) -> Thresholds:
        """The thresholds of the current state."""

    @property
    def num_updates(self) -> int:
        """Number of observations learned from."""
        return int(self.step_count)

    @property
    @abstractmethod
    def localized(self) -> bool:
        """Whether centers are stored."""

    @property
    @abstractmethod
    def shortest_lengthscale(self) -> float:
        """The smallest lengthscale of the localization; infinity without localization."""

    def threshold(self, X: Tensor) -> Tensor:
        """Raw thresholds ``... x M`` at inputs ``... x d``, differentiable in the inputs."""
        return self._threshold(X, lambda radial: radial.at(X))

    def threshold_at_pairs(self, Z: Tensor, columns: list[int], others: list[int]) -> Tensor:
        """The result of `threshold` at a grid ``Z``, ``b x M x d``, once differentiable.

        Values of ``Z`` in ``columns`` vary along ``b`` only, and values in ``others`` along ``M``.
        """
        if type(self).threshold is not QuantileLearner.threshold or not Z.numel():
            return self.threshold(Z)
        return self._threshold(Z, lambda radial: radial.at_pairs(Z, columns, others))

    def _threshold(self, X: Tensor, sums: Callable[[RadialSum], Tensor]) -> Tensor:
        check_width(X, self.centers.shape[-1])
        everywhere, radial, shift = self._thresholds()
        if radial is None:
            return everywhere.expand(*X.shape[:-1], -1)
        return self._finished(sums(radial), shift)

    def _thresholds(self) -> Thresholds:
        """The result of `_derive`, cached until a buffer is replaced or changed in place."""
        buffers = [*self.buffers()]
        # Tensors made in inference mode have no version counter.
        state = [(id(b), 0 if b.is_inference() else b._version) for b in buffers]
        if self._kept is None or self._kept[0] != state:
            # Cached thresholds must not be inference tensors, as a graph may use them later.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, buffers, self._derive()
        return self._kept[2]

    def _finished(self, sums: Tensor, shift: Tensor | float) -> Tensor:
        """Raw thresholds ``... x M`` from values of the radial sum, differentiable."""
        return sums

    @abstractmethod
    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        """Learn from checked observations; return the thresholds before each of them, ``n x M``."""

    @torch.no_grad()
    def update(self, X: Tensor, u: Tensor) -> Tensor:
        """Learn from observations, strictly in order; a call that raises changes nothing.

        Args:
            X: Inputs of shape ``n x d``.
            u: Scores in [0, 1] of shape ``n``.

        Returns:
            The raw thresholds before each observation, ``n x M``. The outcomes are
            ``u.unsqueeze(-1) <= result``.
        """
        check_inputs("X", X)
        check_width(X, self.centers.shape[-1])
        if check_tensor("u", u).shape != X.shape[:1]:
            raise BotorchTensorDimensionError(
                f"`u` must have shape {tuple(X.shape[:1])}, one score for each row of `X`, "
                f"got {tuple(u.shape)}."
            )
        check_unit_interval("u", u)
        X, u = X.to(self.initial), u.to(self.initial)
        self._check_spread(X)
        # Observations are learned in parts, so that memory is linear in their number.
        parts = zip(X.split(_CHUNK), u.split(_CHUNK), strict=True)
        return torch.cat([self._learn(*part) for part in parts])

    def _check_spread(self, X: Tensor) -> None:
        """Raise ``InputDataError`` if rounding would falsify correlations, see `Terms`."""
        if not self.localized or not len(X):
            return
        first = self.centers[:1] if len(self.centers) else X[:1]
        spread = (X - first).abs().max() / self.shortest_lengthscale
        if spread > MAX_SPREAD:
            raise InputDataError(
                f"`X` spreads over {float(spread):.1g} lengthscales; beyond {MAX_SPREAD:.0e} "
                "rounding loses the distances between neighbours. Give the model an input "
                "transform such as Normalize; `lengthscale` is in transformed units."
            )

    def reset(self) -> None:
        """Discard all that has been learned."""
        # New tensors, since returned thresholds and state dicts may share the old tensors.
        self.centers = self.centers.new_zeros(0, 0)
        setattr(self, self._payload, self._rows[:0].clone())
        self.step_count = torch.zeros_like(self.step_count)

    @property
    def _rows(self) -> Tensor:
        return self.get_buffer(self._payload)

    def _store(self, X: Tensor, payload: Tensor) -> None:
        """Append the new centers, replace the payload, and count the steps."""
        if len(X):
            # Without localization, an empty matrix stores the width of the inputs.
            kept = X if self.localized else X[:0]
            self.centers = torch.cat([self.centers.reshape(-1, X.shape[-1]), kept])
        setattr(self, self._payload, payload)
        self.step_count = self.step_count + len(X)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Resize the buffers to the incoming shapes; load nothing if the state does not match."""
        names = [name for name in self._state_names() if prefix + name in state_dict]
        incoming = {name: state_dict[prefix + name] for name in names}
        if message := self._mismatch(incoming):
            rest[-1].append(f"Tracker state `{prefix}` was not loaded: {message}")
            return
        for name, value in incoming.items():
            # New tensors, since returned thresholds and state dicts may share the old tensors.
            setattr(self, name, self.get_buffer(name).new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _state_names(self) -> set[str]:
        return {name for name, _ in self.named_buffers()} - self._non_persistent_buffers_set

    def _mismatch(self, incoming: dict[str, Tensor]) -> str | None:
        """An error message if ``incoming`` is not a state of this learner, else None."""
        if not incoming:
            return None
        if missing := self._state_names() - incoming.keys():
            return f"it lacks {sorted(missing)}."
        shapes = {name: tuple(value.shape) for name, value in incoming.items()}
        for name in sorted(self._state_names() - {"centers", self._payload}):
            if shapes[name] != (own := tuple(self.get_buffer(name).shape)):
                return f"`{name}` must have shape {own}, not {shapes[name]}."
        centers, payload = shapes["centers"], shapes[self._payload]
        num_columns = self._rows.shape[-1]
        if len(centers) != 2 or payload != (centers[0], num_columns):
            return f"`centers` and `{self._payload}` must have shapes t x d and t x {num_columns}."
        if payload[0] and not self.localized:
            return "it is localized, and this tracker is not."
        for name in self._settings:
            ours, theirs = self.get_buffer(name).double(), incoming[name].to(self.levels).double()
            if not torch.allclose(ours, theirs, rtol=1e-6, atol=1e-6):
                return f"its `{name}` are {theirs.tolist()}, not {ours.tolist()}."
        return None


def _initial_thresholds(initial: Tensor | Sequence[float] | None, levels: Tensor) -> Tensor:
    if initial is None:
        return levels.clone()
    thresholds = check_numbers("initial", initial).detach().to(levels, copy=True)
    if thresholds.shape != levels.shape:
        raise BotorchTensorDimensionError(
            f"`initial` must have the shape {tuple(levels.shape)} of `levels`, "
            f"got {tuple(thresholds.shape)}."
        )
    return check_unit_interval("initial", thresholds)

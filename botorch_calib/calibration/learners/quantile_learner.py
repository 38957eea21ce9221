"""`QuantileLearner`: the base class of learners of quantiles of conformity scores.

A learned quantile is called a threshold. `QuantileLearner.threshold` explains *raw* thresholds.
"""

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

# Largest number of observations in one call of `QuantileLearner._learn`; more are split into parts.
_CHUNK = 1024
#: Largest distance, in lengthscales, of an input of a localized learner from the first input, in
#: any coordinate. A larger distance raises ``InputDataError``.
MAX_SPREAD = 1e6


class Thresholds(NamedTuple):
    """The ``M`` thresholds of a learner as a function of the inputs.

    If ``values`` is a tensor, ``M``, it holds the thresholds at all inputs. Otherwise
    `QuantileLearner._finished` computes them from the sum's values at the inputs and the ``shift``.
    """

    values: Tensor | RadialSum
    shift: Tensor | float = 0.0


class QuantileLearner(Module, ABC):
    """Learns thresholds ``theta_j(x)`` with a fraction ``p_j`` of the scores at or below them.

    The ``p_j`` are the ``levels``, and the scores are conformity scores in [0, 1]. Subclasses store
    their state in buffers. The buffer ``centers`` (inputs) and the payload, the buffer with the
    name ``_payload``, have one row for each stored observation. A state dict with any number of
    rows can be loaded.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``; a list is converted to float64.
        initial: Initial thresholds in [0, 1], of shape ``M`` (default: ``levels``).
        num_columns: Number of columns of the payload (default: ``M``).
    """

    levels: Tensor
    initial: Tensor
    centers: Tensor
    step_count: Tensor

    # Cache of `_thresholds`: identities and versions of the buffers, the buffers themselves (so
    # that no identity is reused), and the thresholds derived from them.
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
        # The initial thresholds depend on the conformity score. They are part of the state dict, so
        # that a state learned with a different score is not loaded (`_mismatch`).
        self.register_buffer("initial", _initial_thresholds(initial, p))
        # The initial width is 0, as the number of columns, d, is unknown until the first update.
        self.register_buffer("centers", p.new_zeros(0, 0))
        num_columns = len(p) if num_columns is None else num_columns
        self.register_buffer(self._payload, p.new_zeros(0, num_columns))
        self.register_buffer("step_count", torch.zeros((), dtype=torch.long, device=p.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    @abstractmethod
    def _derive(self) -> Thresholds:
        """The thresholds that follow from the present values of the buffers."""

    @property
    def num_updates(self) -> int:
        """Number of observations that the learner has learned from."""
        return int(self.step_count)

    @property
    @abstractmethod
    def localized(self) -> bool:
        """Whether the input of each observation is stored in ``centers``."""

    @property
    @abstractmethod
    def shortest_lengthscale(self) -> float:
        """The smallest lengthscale of the localization; infinity without localization."""

    def threshold(self, X: Tensor) -> Tensor:
        """Raw thresholds at ``X``, for each of the ``M`` levels, differentiable in ``X``.

        For ``X`` of shape ``batch_shape x d`` the result has the shape ``batch_shape x M``. Raw
        thresholds may be outside [0, 1], and they may cross.
        """
        return self._threshold(X, lambda radial: radial.at(X))

    def threshold_at_pairs(self, Z: Tensor, columns: list[int], others: list[int]) -> Tensor:
        """The result of `threshold` at a grid of inputs ``Z``, ``b x N x d``.

        The ``columns`` of ``Z`` are equal for all ``N`` points of a row, and the ``others`` are
        equal for all ``b`` rows, which saves time. The result may be differentiated in ``Z`` only
        once.
        """
        if type(self).threshold is not QuantileLearner.threshold or not Z.numel():
            return self.threshold(Z)
        return self._threshold(Z, lambda radial: radial.at_pairs(Z, columns, others))

    def _threshold(self, X: Tensor, sums: Callable[[RadialSum], Tensor]) -> Tensor:
        check_width(X, self.centers.shape[-1])
        values, shift = self._thresholds()
        if isinstance(values, Tensor):
            return values.expand(*X.shape[:-1], -1)
        return self._finished(sums(values), shift)

    def _thresholds(self) -> Thresholds:
        """The result of `_derive`, cached until a buffer is replaced or changed in place."""
        buffers = [*self.buffers()]
        # Tensors made in inference mode have no version counter, so only their identity counts.
        state = [(id(b), 0 if b.is_inference() else b._version) for b in buffers]
        if self._kept is None or self._kept[0] != state:
            # The cached tensors may later be part of an autograd graph, which inference tensors
            # cannot be.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, buffers, self._derive()
        return self._kept[2]

    def _finished(self, sums: Tensor, shift: Tensor | float) -> Tensor:
        """Raw thresholds ``... x M`` from the values ``sums`` of a `RadialSum`, ``... x M``.

        The result is differentiable in ``sums``. Here it equals ``sums``.
        """
        return sums

    @abstractmethod
    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        """Learn from valid inputs ``X``, ``n x d``, and scores ``u``, ``n``; see `update`.

        Returns:
            The raw thresholds at each input before its score was learned, ``n x M``.
        """

    @torch.no_grad()
    def update(self, X: Tensor, u: Tensor) -> Tensor:
        """Learn from observations, strictly in order; a call that raises changes nothing.

        Args:
            X: Inputs of shape ``n x d``.
            u: Conformity scores in [0, 1], of shape ``n``.

        Returns:
            The raw thresholds at each input before its score was learned, ``n x M``. The scores at
            or below their thresholds are those with ``u.unsqueeze(-1) <= result``.
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
        # `_learn` needs memory quadratic in its number of observations. With parts of a fixed size,
        # memory is linear in the total number.
        parts = zip(X.split(_CHUNK), u.split(_CHUNK), strict=True)
        return torch.cat([self._learn(*part) for part in parts])

    def _check_spread(self, X: Tensor) -> None:
        """Raise ``InputDataError`` if inputs spread so far that rounding falsifies correlations.

        `radial_sum.Terms` says why.
        """
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
        """Return to the initial state, without any observations."""
        # New tensors are made, since returned thresholds and state dicts may share the old tensors.
        self.centers = self.centers.new_zeros(0, 0)
        setattr(self, self._payload, self._rows[:0].clone())
        self.step_count = torch.zeros_like(self.step_count)

    @property
    def _rows(self) -> Tensor:
        return self.get_buffer(self._payload)

    def _store(self, X: Tensor, payload: Tensor) -> None:
        """Append the inputs ``X`` to ``centers``, replace the payload, and count the steps."""
        if len(X):
            # Without localization no inputs are stored. The empty matrix records their width.
            kept = X if self.localized else X[:0]
            self.centers = torch.cat([self.centers.reshape(-1, X.shape[-1]), kept])
        setattr(self, self._payload, payload)
        self.step_count = self.step_count + len(X)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Resize the buffers to the incoming shapes; load nothing if the state does not match.

        If it does not match, a message is appended to PyTorch's list of errors, the last of
        ``rest``.
        """
        names = [name for name in self._state_names() if prefix + name in state_dict]
        incoming = {name: state_dict[prefix + name] for name in names}
        if message := self._mismatch(incoming):
            rest[-1].append(f"Tracker state `{prefix}` was not loaded: {message}")
            return
        for name, value in incoming.items():
            # New tensors are made: returned thresholds may share the old tensors, as in `reset`.
            setattr(self, name, self.get_buffer(name).new_empty(value.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _state_names(self) -> set[str]:
        return {name for name, _ in self.named_buffers()} - self._non_persistent_buffers_set

    def _mismatch(self, incoming: dict[str, Tensor]) -> str | None:
        """An error message if ``incoming`` is not a state of this learner, else None.

        ``incoming`` has the tensors of a state dict by name. An empty state is not an error.
        """
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

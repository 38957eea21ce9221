"""`FeedbackLedger`: a record of queries and their delayed values."""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from botorch.exceptions import InputDataError, InputDataWarning
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib._validation import check_array, check_callable, check_number, check_variance
from botorch_calib.exceptions import warn
from botorch_calib.ledger.contents import Contents, Settings
from botorch_calib.ledger.storage import Storage, Transition
from botorch_calib.ledger.trials import (
    DOUBLE,
    Entry,
    Named,
    Outcome,
    Trial,
    TrialStatus,
    known_variance,
)
from botorch_calib.ledger.view_at_time import ArrivalProbability, ViewAtTime, kaplan_meier

if TYPE_CHECKING:
    import pandas

# The fields of a `Trial` that `to_records` returns after the id and the query.
RECORDED = ("y", "yvar", "submitted_at", "observed_at", "status", "note")

# A proposer maps a ledger to the next query, of shape ``d`` or ``1 x d``, or to a `DecidedQuery`.
Propose = Callable[["FeedbackLedger"], Any]


class DecidedQuery(NamedTuple):
    """A query and the decision about it, which a proposer may return instead of a query alone.

    Attributes:
        x: The query, a tensor or array of shape ``d`` or ``1 x d``.
        decision: The row of the decision about ``x``, from `ChanceConstraint.decide`.

    Example:
        >>> (row,) = constraint.decide(X[:1])
        >>> query = DecidedQuery(X[0], row)
    """

    x: object
    decision: object


class LedgerSummary(NamedTuple):
    """The state of a ledger, returned by `FeedbackLedger.summary`.

    Attributes:
        best: The trial that `FeedbackLedger.best` returns, or None.
        num_observed: Number of trials whose value has arrived, including discarded late values.
        num_failed: Number of failed trials.
        num_pending: Number of trials whose value may still arrive.
    """

    best: Trial | None
    num_observed: int
    num_failed: int
    num_pending: int


class FeedbackLedger:
    """A record of queries and their delayed values, in memory or, with `open`, in a file.

    **Time.** With ``clock="iterations"`` the time of a query is the number of queries before it:
    when query ``t`` is chosen, the queries ``0, ..., t - 1`` exist, and the values with
    ``observed_at <= t`` have arrived. With ``clock="seconds"`` time is ``time.time()``, or the
    clock of the times that you pass to the methods. Methods that read the ledger have an argument
    ``now`` (default: the current time), and report only events up to this time.

    **States.** A trial is *pending* until its value arrives, *observed* if the value has arrived in
    time, and *expired* once ``now - submitted_at > max_wait`` or the trial is abandoned. A value
    that arrives for an expired trial is late. With ``late="use"`` it is used from its arrival on.
    With ``late="discard"``, as in the paper, the trial stays expired, and its value is recorded but
    not used. A trial is *failed* if no value will arrive; failed trials are left out of all data.

    The data at time ``t`` are ``y~_s = y_s 1{d_s <= min(m, t - s)}`` [Verma2022]_, eq. 1. Here
    ``y_s`` is the value of the query submitted at time ``s``, ``d_s = observed_at - submitted_at``
    is its delay, ``m = max_wait``, and ``censor_value`` takes the place of 0. With ``late="use"``
    the condition is ``d_s <= t - s``. A value that has arrived is *usable* unless it is late and
    discarded.

    **Decisions.** With a chance constraint, `submit` takes a query together with the decision about
    it, a row from `ChanceConstraint.decide`. A trial submitted without a decision cannot get one
    later, so the campaign starts with an empty ledger.

    ``len(ledger)`` is the number of trials. ``bool(ledger)`` is True, even without trials.

    **Sharing.** Threads may share a ledger. Pickling a ledger in memory copies it. A ledger in a
    file cannot be pickled, but its `snapshot` can. After a fork, the child process can read the
    ledger as it was at the fork.

    Args:
        dim: Number ``d`` of elements of a query.
        censor_value: The value that replaces missing values: the least value that the objective can
            take (for minimisation, the greatest); None if unknown.
        max_wait: Maximum wait ``m`` for a value, in iterations or seconds.
        late: Whether to ``"use"`` or ``"discard"`` values that arrive after ``max_wait`` (default:
            ``"discard"`` if ``max_wait`` is finite, else ``"use"``).
        clock: The unit of time, ``"iterations"`` or ``"seconds"``.
        maximize: Whether the greatest value is best (True) or the least (False). None counts as
            True, until a proposer or optimizer that has a ``maximize`` sets it.
        propose: Chooses the queries of `ask`, such as a `DelayAwareProposer`. No file stores it.

    Example:
        >>> ledger = FeedbackLedger(dim=2)  # or FeedbackLedger.open("run.ledger", dim=2)
        >>> trial_id = ledger.submit([0.1, 0.9])
        >>> pending = ledger.pending()  # 1 x 2
        >>> ledger.tell(trial_id, 1.5)
        >>> trial, (X, Y) = ledger[trial_id], ledger.to_observations()
    """

    def __init__(
        self,
        dim: int,
        censor_value: float | None = None,
        max_wait: float = math.inf,
        late: str | None = None,
        clock: str = "iterations",
        maximize: bool | None = None,
        propose: Propose | None = None,
    ) -> None:
        settings = Settings(dim, censor_value, max_wait, late, clock, maximize)
        self._propose = check_callable("propose", propose)
        self._storage = Storage(Contents(settings))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        dim: int | None = None,
        *,
        censor_value: float | None = None,
        max_wait: float | None = None,
        late: str | None = None,
        clock: str | None = None,
        maximize: bool | None = None,
        propose: Propose | None = None,
    ) -> Self:
        """Open the ledger in a file, or create it if the file is missing or empty.

        The file is an SQLite database on a local disk. When a method returns, its change is on
        disk. A killed process may leave a second file whose name ends in ``-journal``: never delete
        it, and move or copy it with the ledger.

        Only one process at a time can write to a ledger: the process that has opened it, until it
        calls `close`, drops the last reference to the ledger, or ends. Other processes can `read`
        the ledger. A file whose name ends in ``.lock`` has the id of the writing process. Within
        one process, all calls for the same file return ledgers that share their contents. If
        several processes or machines must write, use the storage of Optuna or Ax.

        Settings (see the class) must agree with the file's settings. None means the file's setting
        or, for a new file, the default; a new file needs ``dim``. If the file has no ``maximize``
        yet, a given ``maximize`` is recorded.

        Raises:
            InputDataError: If a setting is invalid, missing or contradicts the file.
            DamagedLedgerError: If the file is damaged, or not a ledger in this format.
            LedgerError: If another process has opened the file, or the file cannot be used.
        """
        names = [field.name for field in fields(Settings)]
        values = zip(names, (dim, censor_value, max_wait, late, clock, maximize), strict=True)
        given = {name: value for name, value in values if value is not None}
        check_callable("propose", propose)
        ledger = cls._of(Storage.open(path, given), propose)
        if maximize is not None:
            ledger.declare(maximize)
        return ledger

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Return a copy in memory of the ledger in a file, to which another process may write.

        Raises:
            InputDataError: If the file is missing or empty.
            DamagedLedgerError: If the file is damaged, or not a ledger in this format.
        """
        path = Path(path).resolve()
        if not path.is_file():
            raise InputDataError(f"There is no file {path}.")
        return cls._of(Storage.read(path))

    @classmethod
    def _of(cls, storage: Storage, propose: Propose | None = None) -> Self:
        ledger = cls.__new__(cls)
        ledger._storage, ledger._propose = storage, propose
        return ledger

    def close(self) -> None:
        """Let other processes write to the file, if any. This process can still read it."""
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _settings(self) -> Settings:
        return self._storage.contents.settings

    @property
    def dim(self) -> int:
        """Number ``d`` of elements of a query."""
        return self._settings.dim

    @property
    def censor_value(self) -> float | None:
        """The value that replaces missing values, or None if it is unknown."""
        return self._settings.censor_value

    @property
    def max_wait(self) -> float:
        """Maximum wait for a value, in iterations or seconds (see `clock`); may be infinite."""
        return self._settings.max_wait

    @property
    def late(self) -> str:
        """Whether values that arrive for expired trials are used: ``"use"`` or ``"discard"``."""
        return str(self._settings.late)

    @property
    def clock(self) -> str:
        """The unit of time: ``"iterations"`` or ``"seconds"``."""
        return self._settings.clock

    @property
    def maximize(self) -> bool:
        """Whether the greatest value is best; True as long as the setting is None."""
        return self.checked_maximize()

    def checked_maximize(self, given: bool | None = None) -> bool:
        """Return ``given`` or, if it is None, `maximize`.

        Raises ``InputDataError`` if the ledger has the opposite setting, not None.
        """
        stated = self._settings.maximize
        if given is None:
            return stated is not False
        self._settings.check_agrees({"maximize": given}, self.path or "in memory")
        return bool(given)

    def declare(self, maximize: bool) -> None:
        """Record whether the greatest value is best; raise if the ledger says the opposite."""
        self._storage.declare(self.checked_maximize(maximize))

    @property
    def path(self) -> Path | None:
        """The path of the file, or None for a ledger in memory."""
        return self._storage.path

    def now(self) -> float:
        """The current time: the number of trials submitted so far, or ``time.time()``.

        If the system's clock is set back, the ledger's clock stops until the system has caught up.
        """
        return self._storage.contents.now()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self._settings).items())
        return f"{type(self).__name__}({settings}, path={str(self.path) if self.path else None!r})"

    def submit(self, x: object, time: float | None = None, decision: object = None) -> int:
        """Record a query before the evaluation starts, and return the trial's id: 0, 1, ...

        Args:
            x: The query, a tensor or array of shape ``d`` or ``1 x d``.
            time: Time of submission (default: now). Times need not be in order.
            decision: The row of the decision about ``x``, from `ChanceConstraint.decide`.

        Raises:
            BotorchError: If an argument is malformed, or the decision is about another point.
        """
        return self._storage.append([self._query(x, decision)], _checked_time(time))[0]

    def _query(self, x: object, decision: object, name: str = "x") -> dict[str, Any]:
        query = check_array(name, x, (self.dim,), (1, self.dim)).ravel()
        recorded = None if decision is None else _recorded(decision, query)
        return {"x": query.astype(DOUBLE).tobytes(), "decision": recorded}

    def ask(self, propose: Propose | None = None) -> Trial:
        """Choose a query, submit it, and return the new trial, whose value `tell` records.

        Only one thread at a time chooses a query, and chooses again if another thread submits a
        query meanwhile. If an `AsynchronousOptimizer` starts on this ledger while the trial is
        pending, the optimizer evaluates the trial.

        Args:
            propose: A function from the ledger to a tensor of shape ``d`` or ``1 x d``, or to a
                `DecidedQuery` (default: the ledger's ``propose``).

        Raises:
            BotorchError: If no proposer is given, or its result is malformed.
        """
        propose = check_callable("propose", self._propose if propose is None else propose)
        if propose is None:
            raise InputDataError(
                "`propose` is needed, such as a DelayAwareProposer: pass it to `ask`, or when the "
                "ledger is made."
            )
        with self._storage.choosing():
            while True:
                num_trials = len(self)
                chosen = propose(self)
                x, decision = chosen if isinstance(chosen, DecidedQuery) else (chosen, None)
                query = self._query(x, decision, "propose(ledger)")
                if ids := self._storage.append([query], expected=num_trials):
                    return self[ids[0]]

    def tell(
        self,
        trial_id: int,
        y: object,
        yvar: float | None = None,
        time: float | None = None,
        outcomes: Mapping[str, object] | None = None,
        context: object = None,
        beyond: Mapping[str, int] | None = None,
    ) -> None:
        """Record the value of a pending or expired trial, with the variance of its noise if known.

        Args:
            trial_id: The trial's id, such as ``ask().id``.
            y: The value, a finite number or a tensor of one element.
            yvar: The variance of the noise of ``y``. For a mean of ``k`` repetitions it is the
                variance of one repetition, divided by ``k``. A `DelayAwareProposer` fits one common
                variance for values without a ``yvar``. NaN means that it is unknown.
            time: Time of arrival (default: now). The value stays hidden until this time.
            outcomes: A dictionary of the outcomes that the trial's decision names; None for an
                unknown outcome. If the decision names only one outcome, the default is ``y``.
            context: The uncontrolled inputs of the evaluation, of shape ``d_c``; see `contexts`.
            beyond: Maps the name of an outcome for which only a bound is known to 1 if the outcome
                is above the given number, or to -1 if it is below.

        Raises:
            UnknownTrialError: If the trial does not exist.
            TrialStateError: If the trial already has a value or has failed.
            BotorchError: If an argument is malformed, or ``outcomes`` do not match the decision.

        Warns:
            InputDataWarning: If ``time`` is None and the value is recorded too late to be used.
        """
        arguments = self._checked(y, yvar, _named(outcomes, beyond), context)
        self._change(trial_id, lambda entry, at: entry.observed(at, **arguments), time)
        # Callers that give times, as simulations do, know which values are late: do not warn them.
        # Avoid PyTorch here, since it could hang in a process that is forked meanwhile.
        if time is None and self.late == "discard" and self._view_of(trial_id).expired[0]:
            warn(  # without the trial's id, so that it is shown once per line of code
                f"A value has arrived after `max_wait` ({self.max_wait:g}), or for an abandoned "
                "trial: it is recorded, but not used, and the trial stays expired. Wait longer "
                "or, to use such values, make the ledger with `late='use'`.",
                InputDataWarning,
            )

    def observe(self, trial_id: int, y: object, time: float | None = None) -> None:
        """Record a value with unknown noise: `tell` without ``yvar``."""
        self.tell(trial_id, y, time=time)

    def amend(
        self,
        trial_id: int,
        y: object,
        yvar: float | None = None,
        time: float | None = None,
        outcomes: Mapping[str, object] | None = None,
        context: object = None,
    ) -> None:
        """Replace the value of a trial, for example to correct a typo.

        `Trial.earlier` holds the replaced values. Methods that read the ledger return the value
        that was valid at their argument ``now``.

        Args:
            trial_id: The trial's id.
            y: The corrected value.
            yvar: The variance of the noise of ``y``, or NaN if unknown (default: unchanged).
            time: Time from which ``y`` is valid (default: now), not before the time from which the
                previous value was valid.
            outcomes: See `tell` (default: unchanged).
            context: See `tell` (default: unchanged); an empty context removes the old one. The
                length may change only if no other trial has a context.

        Raises:
            TrialStateError: If the trial has no value.
            BotorchError: If the trial does not exist, or an argument is malformed.
        """
        arguments = self._checked(y, yvar, _named(outcomes), context)
        self._change(trial_id, lambda entry, at: entry.amended(at, **arguments), time)

    def add(
        self,
        X: object,
        Y: object,
        Yvar: object = None,
        time: float | None = None,
        contexts: object = None,
    ) -> list[int]:
        """Record queries together with their values, and return the ids of the new trials.

        If an argument is malformed, nothing is recorded.

        Args:
            X: The queries, a tensor or array ``n x d``.
            Y: The values, ``n x 1`` or ``n``.
            Yvar: The noise variances, ``n x 1`` or ``n``; NaN if unknown, None if all are.
            time: Time of submission and arrival (default: now).
            contexts: The contexts of the values, ``n x d_c``, or None.

        Raises:
            BotorchError: If an argument is malformed.
        """
        queries = check_array("X", X, (None, self.dim)).astype(DOUBLE)
        num = len(queries)
        columns = {
            "x": [x.tobytes() for x in queries],
            "y": check_array("Y", Y, (num, 1), (num,)).ravel().tolist(),
        }
        if Yvar is not None:
            given = check_array("Yvar", Yvar, (num, 1), (num,), allow_nan=True).flat
            columns["yvar"] = [known_variance(check_variance("Yvar", yvar)) for yvar in given]
        if contexts is not None:
            rows = check_array("contexts", contexts, (num, None)).tolist()
            columns["context"] = [tuple(row) or None for row in rows]
        by_trial = zip(*columns.values(), strict=True)
        trials = (dict(zip(columns, values, strict=True)) for values in by_trial)
        return self._storage.append(trials, _checked_time(time))

    def fail(
        self,
        trial_id: int,
        reason: str = "",
        time: float | None = None,
        outcomes: Mapping[str, object] | None = None,
        beyond: Mapping[str, int] | None = None,
    ) -> None:
        """Record that no value will arrive for a trial, for a ``reason`` such as an error message.

        The trial is failed from ``time`` (default: now) on, and is left out of all data. Outcomes
        of its decision still count if they are known: see `tell` for ``outcomes`` and ``beyond``.
        For a query that ran out of 24 GB of memory, pass ``outcomes={"memory": 24.0}`` and
        ``beyond={"memory": 1}``.

        Raises:
            LedgerError: If the trial does not exist, already has a value or has failed.
            InputDataError: If ``time`` is before the trial's submission, or an argument is
                malformed.
        """
        # Messages of exceptions may contain lone surrogates, which UTF-8 cannot encode.
        note = str(reason).encode("utf-8", "backslashreplace").decode()
        known = _named(outcomes, beyond)
        self._change(trial_id, lambda entry, at: entry.failed(note, at, known), time)

    def abandon(self, trial_id: int, time: float | None = None) -> None:
        """Stop waiting for a trial. It is expired from ``time`` (default: now) on.

        Raises the errors of `fail`, and ``TrialStateError`` if the trial is already abandoned.
        """
        self._change(trial_id, Entry.abandoned, time)

    def _checked(self, y: object, yvar: object, named: Named, context: object) -> dict[str, Any]:
        """Return the validated arguments of `tell` or `amend` as a dictionary by name."""
        if context is not None:
            context = tuple(check_array("context", context, (None,), (1, None)).ravel().tolist())
        yvar = None if yvar is None else check_variance("yvar", yvar)
        return {"y": check_number("y", y), "yvar": yvar, "outcomes": named, "context": context}

    def _change(self, trial_id: int, transition: Transition, time: object) -> None:
        self._storage.replace(trial_id, transition, _checked_time(time))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, in order of id, with their current states."""
        return self.trials_at(None)

    def trials_at(self, now: float | None = None) -> tuple[Trial, ...]:
        """The trials submitted up to ``now``, in order of id, with their states at that time."""
        view = self._view(now)
        return view.trials(np.flatnonzero(view.submitted))

    def __len__(self) -> int:
        return len(self._storage.contents)

    def __bool__(self) -> bool:
        return True  # even without trials, for expressions such as `ledger or FeedbackLedger(2)`

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __getitem__(self, trial_id: int) -> Trial:
        return self._view_of(trial_id).trials(np.zeros(1, dtype=np.intp))[0]

    def best(self, maximize: bool | None = None, now: float | None = None) -> Trial | None:
        """Return the trial with the best value, or None if there is no usable value.

        A value is usable if it has arrived by ``now`` (default: the current time), unless it came
        late and ``late`` is ``"discard"``. Of trials with the same value, the first to arrive is
        returned. The greatest value is best if ``maximize`` (default: the ledger's setting) is
        True, else the least value.

        Raises:
            InputDataError: If ``maximize`` contradicts the ledger's setting.
        """
        maximize = self.checked_maximize(maximize)
        view = self._view(now)
        rows = view.rows(view.usable, "observed_at")
        if not len(rows):
            return None
        values = view.values(rows).squeeze(-1).numpy()
        index = np.argmax(values) if maximize else np.argmin(values)
        return view.trials(rows[[index]])[0]

    def summary(self, now: float | None = None) -> LedgerSummary:
        """The best trial, and the numbers of observed, failed and pending trials, at ``now``."""
        view = self._view(now)
        numbers = [int(mask.sum()) for mask in (view.arrived, view.failed, view.pending)]
        return LedgerSummary(self.best(now=now), *numbers)

    def to_observations(self, now: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the queries ``X`` (``n x d``) and values ``Y`` (``n x 1``) of ``n`` usable values.

        A value is usable if it has arrived by ``now`` (default: the current time), unless it came
        late and ``late`` is ``"discard"``. Other trials are left out. The rows are in order of
        arrival, then of id, in double precision.
        """
        view = self._view(now)
        rows = view.rows(view.usable, "observed_at")
        return view.queries(rows), view.values(rows)

    def noise_variances(self, now: float | None = None) -> Tensor:
        """Noise variances ``n x 1`` of the values from `to_observations`; NaN if unknown."""
        view = self._view(now)
        return view.variances(view.rows(view.usable, "observed_at"))

    def contexts(self, now: float | None = None) -> Tensor:
        """Contexts ``n x d_c`` of the values from `to_observations`; NaN if missing.

        If other threads write to the ledger, call both methods on the same `snapshot`.
        """
        view = self._view(now)
        return view.contexts(view.rows(view.usable, "observed_at"))

    def training_data(self, now: float | None = None) -> tuple[Tensor, Tensor]:
        """Return queries ``X`` (``n x d``) and values ``Y`` (``n x 1``), censored if missing.

        These are the data of [Verma2022]_, eq. 1, at ``now``, in order of submission and without
        failed trials. ``Y`` is ``censor_value`` for queries whose value has not arrived or is
        discarded because it was late. If ``censor_value`` is None, these queries are left out.
        """
        view = self._view(now)
        is_censored = self.censor_value is not None
        rows = view.rows(view.usable | view.incomplete if is_censored else view.usable)
        return view.queries(rows), view.values(rows, self.censor_value)

    def queries(self, now: float | None = None) -> Tensor:
        """Return the queries ``n x d`` of the trials that `trials_at` returns, but faster."""
        view = self._view(now)
        return view.queries(np.flatnonzero(view.submitted))

    def statuses(self, now: float | None = None) -> list[TrialStatus]:
        """Return the states of the trials that `trials_at` returns, but faster."""
        view = self._view(now)
        return view.statuses(np.flatnonzero(view.submitted))

    def waits(self, now: float | None = None) -> list[int]:
        """Return, for each trial, how many queries were submitted after it and before it ended.

        A trial ends with its value, its failure, its abandonment, after ``max_wait`` or, if none of
        these has happened, at ``now``. Queries submitted at the time when the trial was submitted
        or ended do not count. Trials are in order of id.
        """
        view = self._view(now)
        return view.waits[view.submitted].tolist()

    def arrival_probability(
        self, wait: float | None = None, confidence: float = 0.95, now: float | None = None
    ) -> ArrivalProbability:
        """Estimate the probability that a value arrives within a wait.

        The probability is ``rho_m`` of [Verma2022]_, Theorem 1. The Kaplan-Meier estimate uses the
        delays of values, and the waits so far of trials without a value. Failed trials and trials
        with a delay of 0, such as those from `add`, are left out. Delays are assumed to be
        independent and identically distributed.

        Args:
            wait: The wait, in units of the clock (default: `max_wait`, if finite).
            confidence: Coverage probability of the interval, in (0, 1).
            now: Time up to which all arrivals are recorded (default: now; for iterations, the
                previous iteration, as more values may arrive in the current one).

        Raises:
            InputDataError: If the wait is not finite, or an argument is malformed.
        """
        if now is None and self.clock == "iterations":
            now = self.now() - 1.0
        wait = self.max_wait if wait is None else check_number("wait", wait, allow_inf=True)
        if not 0.0 <= wait < math.inf:
            raise InputDataError(
                f"`wait` must be finite and at least 0, got {wait!r}: pass `wait` if the ledger's "
                "`max_wait` is infinite."
            )
        return kaplan_meier(*self._view(now).delays, wait, confidence)

    def decisions(self, now: float | None = None) -> list[dict[str, Any]]:
        """Rows of the decisions about queries, in order of id, with the outcomes known at ``now``.

        Queries without a decision are left out. To continue a campaign, pass this list as ``rows``
        to a `ChanceConstraint`. A late value is an outcome even with ``late="discard"``. A
        certified query counts as a violation until its outcomes are known.
        """
        view = self._view(now)
        entries = (view.entry(row) for row in np.flatnonzero(view.submitted).tolist())
        found = (entry.decided(view.now) for entry in entries)
        return [row for row in found if row is not None]

    def pending(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` of pending trials, in order of submission."""
        view = self._view(now)
        return view.queries(view.rows(view.pending))

    def incomplete(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` of pending and expired trials, in order of submission.

        These are the queries that [Verma2022]_, eq. 1, censors.
        """
        view = self._view(now)
        return view.queries(view.rows(view.incomplete))

    def window(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` submitted at most ``max_wait`` before ``now``, without failed trials.

        They are in order of submission: the window of [Verma2022]_, eq. 2.
        """
        view = self._view(now)
        return view.queries(view.rows(view.window))

    def to_records(self, now: float | None = None) -> list[dict[str, Any]]:
        """Return a dictionary for each trial, in order of id.

        The keys are ``id``, ``x_0``, ``x_1`` and so on for the query, and the names of these fields
        of `Trial`: ``y``, ``yvar``, ``submitted_at``, ``observed_at``, ``status`` (as a string) and
        ``note``.
        """
        return [
            {
                "id": trial.id,
                **{f"x_{i}": value for i, value in enumerate(trial.x.tolist())},
                **{name: vars(trial)[name] for name in RECORDED},
                "status": trial.status.value,
            }
            for trial in self.trials_at(now)
        ]

    def to_dataframe(self, now: float | None = None) -> pandas.DataFrame:
        """The records of `to_records` as a pandas data frame with one row per trial."""
        import pandas

        names = ["id", *(f"x_{i}" for i in range(self.dim)), *RECORDED]
        frame = pandas.DataFrame(self.to_records(now), columns=names)
        # Otherwise, columns without any number would have the dtype object.
        numbers = [name for name in names if name not in ("id", "status", "note")]
        return frame.astype({"id": "int64", **dict.fromkeys(numbers, "float64")})

    def snapshot(self) -> Self:
        """Return a copy in memory, without the proposer, that does not change with this ledger."""
        return self._of(Storage(self._storage.contents))

    def _view(self, now: float | None) -> ViewAtTime:
        contents = self._storage.contents
        now = contents.now() if now is None else check_number("now", now, allow_inf=True)
        return ViewAtTime(contents, now)

    def _view_of(self, trial_id: int) -> ViewAtTime:
        """Return the current view of one trial, in a time that does not grow with the ledger."""
        contents = self._storage.contents
        entry = contents.entries[contents.place(trial_id)]
        return ViewAtTime(replace(contents, entries=[entry]), contents.now())


def _checked_time(time: object) -> float | None:
    return None if time is None else check_number("time", time) + 0.0  # turns -0.0 into 0.0


def _named(outcomes: Mapping[str, object] | None, beyond: Mapping[str, int] | None = None) -> Named:
    """Return validated outcomes by name, or None if ``outcomes`` is None.

    An outcome named in ``beyond`` becomes a pair of its bound and 1 (above) or -1 (below).
    """
    for argument, value in {"outcomes": outcomes, "beyond": beyond}.items():
        if not isinstance(value, Mapping | None):
            raise InputDataError(f"`{argument}` must be a dictionary by name, got {value!r}.")
    named: dict[str, Outcome] = {
        name: None if each is None else check_number(f"outcomes[{name!r}]", each)
        for name, each in (outcomes or {}).items()
    }
    for name, side in (beyond or {}).items():
        bound = named.get(name)
        if not isinstance(bound, float) or side not in (1, -1):
            raise InputDataError(
                f"`beyond` must map names in `outcomes` to 1 or -1, got {beyond!r}."
            )
        named[name] = bound, int(side)  # JSON has no NumPy integers
    return None if outcomes is None else named


def _recorded(decision: Any, query: NDArray[np.float64]) -> str:
    """Validate the row of a decision about a query, and return it as JSON."""
    try:
        point = [*map(float, decision["point"])]
        text = json.dumps({**decision, "outcomes": dict(decision["outcomes"])})
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise InputDataError(
            "`decision` must be a row such as `ChanceConstraint.decide` returns, got "
            f"{reprlib.repr(decision)}."
        ) from error
    # The query has the elements of the point, up to single precision, in the same order. It may
    # also have contexts or a task, which the point lacks, so elements may be skipped.
    columns, is_close = iter(query), partial(math.isclose, rel_tol=1e-6, abs_tol=1e-12)
    if not point or not all(any(is_close(v, p) for v in columns) for p in point):
        raise InputDataError(
            f"`decision` is about the point {point}, and the query is {query.tolist()}: give the "
            "row of the decision about this query."
        )
    return text

"""`FeedbackLedger`: which queries were made, and which values have come back."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from botorch_calib.ledger.arguments import as_number, as_query, as_trial_id
from botorch_calib.ledger.database import SQLiteStorage
from botorch_calib.ledger.moment import Moment
from botorch_calib.ledger.storage import MemoryStorage, Storage, check_known
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Settings, Trial


class FeedbackLedger:
    """A book of queries and their delayed values, in memory or, by `open`, in a file.

    **Time.** With ``clock="iterations"`` the time of a query is the number of queries before
    it. At iteration ``t``, the choice of query ``t``, the queries are ``0, ..., t - 1``, and a
    value is there if and only if it was ``observed_at <= t``. With ``clock="seconds"`` time is
    that of ``time.time()`` (or whatever clock the given times are on), and at ``now`` there is
    what has a time of ``now`` or before. Every view takes ``now`` and sees only what had
    happened by then, also when later entries have been made.

    **States.** A trial is *pending* until its value arrives. It is *expired* once
    ``now - submitted_at > max_wait``, or from the time at which it is abandoned. It is *observed*
    once a value has arrived in time. A value that arrives for an expired trial is late:
    with ``late="use"`` it counts from then on, with ``late="discard"`` (the paper) the trial
    stays expired, and the value is only kept in the records. A trial is *failed* when no value
    will come; it is left out of all data.

    All data are those of [Verma2022]_, eq. 1, ``y~_s = y_s 1{d_s <= min(m, t - s)}``, in which
    ``m`` is ``max_wait``, ``d_s = observed_at - submitted_at``, and 0 is ``censor_value``. With
    ``late="use"`` the condition is ``d_s <= t - s``.

    Threads and forked processes may share a ledger. A pickled ledger in memory is a copy; a
    pickled ledger in a file is the same ledger.

    Args:
        dim: Number ``d`` of elements of a query.
        censor_value: What stands for a value that is not there, in units of the outcome: the
            least value that the objective can take (for minimisation, the greatest).
        max_wait: How long a value is waited for: ``m`` iterations, or seconds.
        late: ``"use"`` or ``"discard"``: what happens to values after ``max_wait``.
        clock: ``"iterations"`` or ``"seconds"``.

    Raises:
        InputDataError: If ``dim`` is not a positive integer, ``censor_value`` is not a finite
            number, ``max_wait`` is negative or NaN, or ``late`` or ``clock`` is unknown.

    Example:
        >>> ledger = FeedbackLedger(dim=2, censor_value=0.0, max_wait=20)
        >>> trial_id = ledger.submit(torch.tensor([0.3, 0.7]))
        >>> ledger.pending().shape
        torch.Size([1, 2])
        >>> ledger.observe(trial_id, 0.9)
        >>> X, Y = ledger.training_data()

    .. [Verma2022]
        A. Verma, Z. Dai, B. K. H. Low. Bayesian optimization under stochastic delayed feedback.
        ICML 2022.
    """

    def __init__(
        self,
        dim: int,
        censor_value: float | None = None,
        max_wait: float = math.inf,
        late: str = "use",
        clock: str = "iterations",
    ) -> None:
        self._settings = Settings(dim, censor_value, max_wait, late, clock)
        self._storage: Storage = MemoryStorage(Table(self._settings.dim))

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
    ) -> Self:
        """The ledger in a file, which is made if there is none.

        The file is an SQLite database. Several processes of one machine may write to it at the
        same time, and a process that is killed loses nothing that a call has returned from.
        Beside the file there is, only while a change is made or after a process was killed in
        the midst of one, a second file that ends in ``-journal``: never delete it, and move or copy
        the ledger together with it. Network file systems whose locks are unreliable are no
        place for a ledger.

        An empty file is a new ledger: a process that is killed while it makes one leaves that.

        Args:
            path: The file; its folder must exist.
            dim: See the class; needed for a new file.
            censor_value: See the class. For this and what follows, None is what the file says
                or, for a new file, the default of the class.
            max_wait: See the class.
            late: See the class.
            clock: See the class.

        Raises:
            InputDataError: If a setting is invalid or contradicts that of the file, ``dim`` is
                missing for a new file, or ``path`` is a folder or lies in none.
            DamagedLedgerError: If the file is damaged, is not a ledger, or has a newer format.
            LedgerError: If the file cannot be used for another reason.
        """
        settings = {
            "dim": dim,
            "censor_value": censor_value,
            "max_wait": max_wait,
            "late": late,
            "clock": clock,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        storage = SQLiteStorage.create_or_open(path, given)
        return cls._of(storage.settings, storage)

    @classmethod
    def _of(cls, settings: Settings, storage: Storage) -> Self:
        ledger = cls.__new__(cls)
        ledger._settings, ledger._storage = settings, storage
        return ledger

    # ------------------------------------------------------------ settings

    @property
    def dim(self) -> int:
        """Number ``d`` of elements of a query."""
        return self._settings.dim

    @property
    def censor_value(self) -> float | None:
        """What stands for a value that is not there."""
        return self._settings.censor_value

    @property
    def max_wait(self) -> float:
        """How long a value is waited for."""
        return self._settings.max_wait

    @property
    def late(self) -> str:
        """``"use"`` or ``"discard"``."""
        return self._settings.late

    @property
    def clock(self) -> str:
        """``"iterations"`` or ``"seconds"``."""
        return self._settings.clock

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._storage.path

    def now(self) -> float:
        """The present: the number of trials submitted so far, or ``time.time()``."""
        return self._settings.now(len(self) if self.clock == "iterations" else 0)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self._settings).items())
        return f"{type(self).__name__}({settings}, path={str(self.path) if self.path else None!r})"

    # ------------------------------------------------------------ entries

    def submit(self, x: Any, time: float | None = None) -> int:
        """Enter a query. Do so before its evaluation starts, so that none is forgotten.

        Args:
            x: The query, a tensor or array of shape ``d`` or ``1 x d``.
            time: When it was submitted, by default now. Given times need not be in order.

        Returns:
            The id of the trial: the number of trials before it.

        Raises:
            BotorchTensorDimensionError: If ``x`` has another shape.
            InputDataError: If ``x`` or ``time`` holds NaN or infinite values.
        """
        query = as_query(x, self.dim)
        moment = _as_time(time)
        return self._storage.append(
            query, lambda count: self._settings.now(count) if moment is None else moment
        )

    def observe(self, trial_id: int, y: Any, time: float | None = None) -> None:
        """Enter the value of a trial, which may be pending or expired.

        Args:
            trial_id: The trial.
            y: Its value, a finite number or a tensor of one element.
            time: When it arrived, by default now. It may lie ahead of now, as in simulations:
                until then, no view shows the value.

        Raises:
            UnknownTrialError: If there is no such trial.
            TrialStateError: If the trial has a value already or has failed.
            InputDataError: If ``y`` or ``time`` is NaN or infinite, or ``time`` lies before the
                submission.
            BotorchTensorDimensionError: If ``y`` has several elements or none.
        """
        trial_id, value, moment = as_trial_id(trial_id), as_number("y", y), _as_time(time)
        self._storage.change(
            trial_id,
            lambda entry, count: entry.observed(value, moment, self._settings.now(count)),
        )

    def fail(self, trial_id: int, reason: str = "", time: float | None = None) -> None:
        """Enter that no value will come for a trial, which leaves it out of all data.

        Args:
            trial_id: The trial.
            reason: Kept as the trial's note.
            time: From when on, by default now.

        Raises:
            UnknownTrialError: If there is no such trial.
            TrialStateError: If the trial has a value or has failed already.
            InputDataError: If ``time`` is NaN, infinite or before the submission.
        """
        trial_id, moment = as_trial_id(trial_id), _as_time(time)
        # Messages of exceptions may hold lone surrogates, which no encoding can keep.
        note = str(reason).encode("utf-8", "backslashreplace").decode()
        self._storage.change(
            trial_id, lambda entry, count: entry.failed(note, moment, self._settings.now(count))
        )

    def abandon(self, trial_id: int, time: float | None = None) -> None:
        """Stop waiting for a trial: it counts as expired, before ``max_wait`` is over.

        Args:
            trial_id: The trial.
            time: From when on, by default now.

        Raises:
            UnknownTrialError: If there is no such trial.
            TrialStateError: If the trial has a value, has failed, or was abandoned before.
            InputDataError: If ``time`` is NaN, infinite or before the submission.
        """
        trial_id, moment = as_trial_id(trial_id), _as_time(time)
        self._storage.change(
            trial_id, lambda entry, count: entry.abandoned(moment, self._settings.now(count))
        )

    # ------------------------------------------------------------ trials

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials in order of id, as of now."""
        return self.trials_at(None)

    def trials_at(self, now: float | None = None) -> tuple[Trial, ...]:
        """The trials submitted by the time ``now``, in order of id, as known then."""
        moment = self._moment(now)
        return moment.trials(np.flatnonzero(moment.submitted))

    def __len__(self) -> int:
        return self._storage.count()

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __getitem__(self, trial_id: int) -> Trial:
        trial_id = as_trial_id(trial_id)
        table = self._storage.table()
        check_known(trial_id, len(table))
        return self._known(table, None).trials(np.array([trial_id]))[0]

    def best(self, maximize: bool = True, now: float | None = None) -> Trial | None:
        """The trial of the best usable value, of equal ones the first to arrive, or None.

        Args:
            maximize: Whether the greatest value is best, or the least.
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        rows = moment.by_arrival(moment.usable)
        if not len(rows):
            return None
        values = moment.values(rows).squeeze(-1).numpy()
        index = np.argmax(values) if maximize else np.argmin(values)
        return moment.trials(rows[[index]])[0]

    # ------------------------------------------------------------ data

    def to_observations(self, now: float | None = None) -> tuple[Tensor, Tensor]:
        """``X`` (``n x d``) and ``Y`` (``n x 1``) of all usable values, in order of arrival.

        Args:
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        rows = moment.by_arrival(moment.usable)
        return moment.queries(rows), moment.values(rows)

    def training_data(self, now: float | None = None) -> tuple[Tensor, Tensor]:
        """``X`` (``n x d``) and ``Y`` (``n x 1``) of eq. 1: all queries, censored.

        They are in order of submission, without those that have failed. ``Y`` holds the value
        where there is a usable one, else ``censor_value``. Without a ``censor_value``, only
        queries with a usable value are in it.

        Args:
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        if self.censor_value is None:
            rows = moment.by_submission(moment.usable)
            return moment.queries(rows), moment.values(rows)
        rows = moment.by_submission(moment.usable | moment.incomplete)
        return moment.queries(rows), moment.values(rows, self.censor_value)

    def pending(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` whose values are still waited for, in order of submission.

        Args:
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        return moment.queries(moment.by_submission(moment.pending))

    def incomplete(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` that eq. 1 censors: pending and expired, in order of submission.

        Args:
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        return moment.queries(moment.by_submission(moment.incomplete))

    def window(self, now: float | None = None) -> Tensor:
        """Queries ``n x d`` of the last ``max_wait``, the sum in eq. 2 of the paper.

        These are all with ``now - submitted_at <= max_wait``, arrived or not, in order of
        submission, without those that have failed.

        Args:
            now: See the class; by default the present.
        """
        moment = self._moment(now)
        return moment.queries(moment.by_submission(moment.window))

    def to_records(self, now: float | None = None) -> list[dict[str, Any]]:
        """The trials as dictionaries of plain Python values, in order of id, as for pandas.

        The keys are ``id``, ``x_0``, ``x_1``, ..., ``y``, ``submitted_at``, ``observed_at``,
        ``status`` and ``note``, as in `Trial`.

        Args:
            now: See the class; by default the present.
        """
        return [
            {
                "id": trial.id,
                **{f"x_{i}": value for i, value in enumerate(trial.x.tolist())},
                "y": trial.y,
                "submitted_at": trial.submitted_at,
                "observed_at": trial.observed_at,
                "status": trial.status.value,
                "note": trial.note,
            }
            for trial in self.trials_at(now)
        ]

    def snapshot(self) -> Self:
        """A copy in memory, which later entries leave as it is.

        Where other processes or threads write to the ledger, the views of a snapshot agree
        with each other.
        """
        return self._of(self._settings, MemoryStorage(self._storage.table()))

    def _moment(self, now: float | None) -> Moment:
        if now is not None:
            now = as_number("now", now, finite=False)
        return self._known(self._storage.table(), now)

    def _known(self, table: Table, now: float | None) -> Moment:
        now = self._settings.now(len(table)) if now is None else now
        return Moment(table, self._settings, now)


def _as_time(time: float | None) -> float | None:
    # Adding 0 turns -0.0, which a file would not keep, into 0.0.
    return None if time is None else as_number("time", time) + 0.0

"""`Presence`: how a run shares a ledger with other runs, in this process or in others.

What a run decides on, it decides within one transaction: no trial is evaluated by two runs, no two
queries are chosen without knowledge of each other, and no more trials are started than are needed.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from botorch_calib.exceptions import LedgerError
from botorch_calib.ledger.argument_checks import as_query
from botorch_calib.ledger.owners import BEAT_SECONDS, Owner, Stillness, Watch
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.storage_in_memory import Change, Storage
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Entry
from botorch_calib.ledger.view_at_time import ViewAtTime

logger = logging.getLogger(__name__)

# Seconds after which others no longer wait for a run that is choosing a query. Its choice is then
# only accepted if no other query has been submitted meanwhile.
TURN_SECONDS = 600.0

# Seconds between two looks at whether it is one's turn.
TURN_POLL = 0.05


@dataclass(frozen=True)
class Stock:
    """What is done and what is under way in a ledger.

    Attributes:
        num_resolved: Number of trials with a value, in time or late, or marked as failed.
        num_running: Number of other trials that a living run evaluates, or is about to.
        orphans: Pending trials that nobody evaluates.
    """

    num_resolved: int
    num_running: int
    orphans: tuple[int, ...]

    @property
    def num_taken(self) -> int:
        """Number of trials that are resolved or will be."""
        return self.num_resolved + self.num_running


class Presence:
    """A run's use of a ledger, within a ``with`` block; runs that do something are listed there.

    A trial that a run has submitted or claimed is its own until it is resolved. If the run ends
    or dies before, others may claim it. Queries are chosen in turns: a run that chooses sees all
    queries before.

    Args:
        storage: The ledger's storage.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._owner = Owner.here()
        self._watch = Watch()
        self._turns = Stillness()
        self._num_turns = 0
        self._is_listed = False
        # Trials that were submitted by hand belong to nobody. Those of later on are somebody's
        # whom this run does not know.
        self._num_before, _ = storage.extent()
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat_until_over, daemon=True)

    def __enter__(self) -> Self:
        if self._storage.path is not None:  # others may be in other processes
            self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        try:
            if self._heart.is_alive():
                self._heart.join()
            if self._is_listed:
                with self._storage.transaction() as change:
                    change.owners.pop(self._owner.name, None)
        except LedgerError as error:
            # Others notice when this process has ended.
            logger.warning("This run stays on the list of those that use the ledger: %s", error)
        finally:
            self._owner.ended()

    def stock(self) -> Stock:
        """What is done and under way; runs that have died are taken off the list."""
        table, owners = self._storage.stock()
        dead = self._watch.dead(owner for owner in owners.values() if not self._is_own(owner))
        if dead:
            with self._storage.transaction() as change:
                for name in dead:
                    if change.owners.get(name) == owners[name]:  # without a heartbeat meanwhile
                        logger.warning("A run has died: its trials can be run again.")
                        del change.owners[name]
            table, owners = self._storage.stock()
        return self._stock_of(table, owners, self._storage.settings)

    def claim(self, goal: float) -> int | None:
        """Make an orphan this run's own, if fewer trials than ``goal`` are taken; its id."""
        with self._storage.transaction() as change:
            stock = self._stock_of(change.table(), change.owners, change.settings)
            if stock.num_taken >= goal or not stock.orphans:
                return None
            self._relist(change)
            change.replace(
                stock.orphans[0], lambda entry, clock: replace(entry, owner=self._owner.name)
            )
            return stock.orphans[0]

    def take_turn(self) -> bool:
        """Whether this run may choose the next query, after which it must `submit` or pass."""
        with self._storage.transaction() as change:
            for owner in change.owners.values():
                if owner.turn and not self._is_own(owner):
                    if self._turns.seconds(owner.name, owner.turn) < TURN_SECONDS:
                        return False
            self._num_turns += 1
            self._relist(change, self._num_turns)
        return True

    def pass_turn(self) -> None:
        """End the turn without a query."""
        with self._storage.transaction() as change:
            self._relist(change, turn=0)

    def submit(self, x: Any, num_trials: int, goal: float | None = None) -> int | None:
        """Record a query, and end the turn; without a goal, also the place on the list.

        Args:
            x: The query, as in `FeedbackLedger.submit`.
            num_trials: Number of trials that were known when the query was chosen.
            goal: Number of trials that suffice, with the query the run's own; None for a query
                that somebody else evaluates.

        Returns:
            The id of the trial; None if other queries have been submitted since, which would have
            to be known, or if enough trials are taken.
        """
        query = as_query(x, self._storage.settings.dim, "propose(ledger)")
        try:
            with self._storage.transaction() as change:
                self._relist(change, turn=0)
                if change.num_trials != num_trials:
                    return None
                if goal is not None:
                    stock = self._stock_of(change.table(), change.owners, change.settings)
                    if stock.num_taken >= goal:
                        return None
                owner = "" if goal is None else self._owner.name
                time = change.clock.submission(num_trials)
                change.append(Entry(num_trials, query, time, owner=owner))
                if goal is None:
                    del change.owners[self._owner.name]
                    self._is_listed = False
        except BaseException:
            self._is_listed = True  # nothing has changed, and `__exit__` tries again
            raise
        return num_trials

    def _is_own(self, owner: Owner) -> bool:
        return owner.name == self._owner.name

    def _relist(self, change: Change, turn: int | None = None, beats: int = 0) -> None:
        """Update this run on the list, on which it may not be yet, or in error not any more."""
        self._is_listed = True
        listed = change.owners.get(self._owner.name, self._owner)
        turn = listed.turn if turn is None else turn
        change.owners[listed.name] = replace(listed, beat=listed.beat + beats, turn=turn)

    def _stock_of(self, table: Table, owners: dict[str, Owner], settings: Settings) -> Stock:
        view = ViewAtTime(table, settings, settings.now(len(table), table.latest))
        owned = table.owners()
        # A trial that has expired is evaluated nevertheless, if it has an owner.
        running = [i for i, owner in owned.items() if owner in owners and not view.resolved[i]]
        left = [
            i
            for i in np.flatnonzero(view.pending).tolist()
            if owned.get(i) not in owners and (i in owned or i < self._num_before)
        ]
        return Stock(int(view.resolved.sum()), len(running), tuple(left))

    def _beat_until_over(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                with self._storage.transaction() as change:
                    if self._is_listed:
                        self._relist(change, beats=1)
            except LedgerError as error:
                logger.debug("A heartbeat was not recorded: %s", error)

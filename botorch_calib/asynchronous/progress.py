"""The progress bar of a run, and its summary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tqdm.auto import tqdm

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import Trial, TrialStatus


@dataclass(frozen=True)
class RunSummary:
    """The state of a ledger after a run.

    Attributes:
        best: The trial with the best value, or None if no value has arrived.
        num_observed: Number of trials whose value has arrived, late values included.
        num_failed: Number of failed trials.
        num_pending: Number of trials whose value may still arrive.
        seconds: Duration of the run.
        stopped: Whether its ``stop`` rule has ended it.
    """

    best: Trial | None
    num_observed: int
    num_failed: int
    num_pending: int
    seconds: float
    stopped: bool = False


def summarize(ledger: FeedbackLedger, seconds: float, stopped: bool) -> RunSummary:
    """The summary of a run that took so many seconds, and whether a rule has stopped it."""
    trials = ledger.trials
    status = Counter(trial.status for trial in trials)
    return RunSummary(
        best=ledger.best(),
        num_observed=sum(trial.y is not None for trial in trials),
        num_failed=status[TrialStatus.FAILED],
        num_pending=status[TrialStatus.PENDING],
        seconds=seconds,
        stopped=stopped,
    )


class ProgressBar(tqdm):
    """A bar that counts resolved trials and shows the best value so far.

    tqdm's monitoring thread, which process pools that fork would inherit, is left out.
    """

    monitor_interval = 0
    _drawn: object = None

    def show(self, num_resolved: int, num_running: int, ledger: FeedbackLedger) -> None:
        """Update the bar; it is drawn again only if something has changed."""
        if self.disable:
            return
        best = ledger.best()
        values = {} if best is None else {"best": f"{best.y:.6g}"}
        state = num_resolved, {**values, "running": num_running}
        if state == self._drawn:
            return
        self.set_postfix(state[1], refresh=False)
        # tqdm skips some of several changes in quick succession, and returns True if it has drawn.
        if self.update(num_resolved - self.n):
            self._drawn = state

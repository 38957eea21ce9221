"""The progress bar of an asynchronous optimiser."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm

from botorch_calib.ledger.trials import Trial


class _Bar(tqdm):
    """A bar without tqdm's monitoring thread, which process pools that fork would inherit."""

    monitor_interval = 0


class ProgressBar:
    """A bar that counts resolved trials and shows the best value so far.

    Args:
        enabled: Whether to show anything.
        total: Number of trials to resolve.
        initial: How many of them are resolved already.
    """

    def __init__(self, enabled: bool, total: int, initial: int) -> None:
        self._bar: Any = None
        self._drawn: object = None
        if enabled:
            # Without `miniters`, a change of the postfix alone would not be drawn.
            self._bar = _Bar(total=total, initial=initial, desc="evaluations", miniters=0)

    def show(self, num_resolved: int, num_running: int, best: Trial | None) -> None:
        """Bring the bar up to date; it is drawn again if something has changed."""
        values = {} if best is None else {"best": f"{best.y:.6g}"}
        state = num_resolved, {**values, "running": num_running}
        if self._bar is None or state == self._drawn:
            return
        self._bar.set_postfix(state[1], refresh=False)
        # Changes in quick succession are not all drawn.
        if self._bar.update(num_resolved - self._bar.n):
            self._drawn = state

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

"""Four workers: evaluations of different durations, one that fails, and some still running."""

import torch
from matplotlib.figure import Figure

from botorch_calib import FeedbackLedger
from botorch_calib.plotting import plot_timeline


def ledger() -> FeedbackLedger:
    """A ledger by a simulated clock: whoever is free gets the next query."""
    torch.manual_seed(2)
    now = 0.0
    found = FeedbackLedger(dim=2, clock="seconds")
    running: list[tuple[float, int]] = []
    for _ in range(18):
        if len(running) == 4:
            now, done = min(running)
            running.remove((now, done))
            if done == 6:
                found.fail(done, time=now)
            else:
                found.tell(done, torch.rand(1).item(), time=now)
        trial = found.submit(torch.rand(2, dtype=torch.double), time=now)
        duration = float(torch.distributions.Gamma(2.0, 0.4).sample())
        running.append((now + duration, trial))
    return found


def draw() -> Figure:
    """One bar for each trial."""
    return plot_timeline(ledger().trials).figure

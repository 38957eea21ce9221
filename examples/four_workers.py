# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3

# %% [markdown]
# # What if one of four workers dies?
#
# Four kilns fire glazes side by side, and each firing takes its own time. Whoever is free gets the
# next query, chosen with the three others in mind. In the middle of it, a worker process is killed,
# as happens when memory runs out. Nobody restarts anything.
#
# Worker processes import the experiment, so from a notebook it has to be a module of its own:
#
# ```{literalinclude} ../../examples/experiments/kiln.py
# :language: python
# ```

# %%
import json
import os
import tempfile

import matplotlib.pyplot as plt
from experiments.kiln import FAULT, LOG, hardness

from botorch_calib import AsynchronousOptimizer, DelayAwareProposer, FeedbackLedger
from botorch_calib.plotting import COLORS

os.chdir(tempfile.mkdtemp())  # where workers write their log
if __name__ == "__main__":  # worker processes import this file, if it is a script
    FAULT.touch()  # the first one that sees it dies
    ledger = FeedbackLedger.open("run.ledger", dim=2)
    propose = DelayAwareProposer([[0, 0], [1, 1]])
    optimizer = AsynchronousOptimizer(objective=hardness, ledger=ledger, propose=propose, workers=4)
    print(optimizer.run(num_evaluations=20, progress=False))

# %% [markdown]
# No value is missing. The query of the dead worker was run again, by a process that took its
# place, while the other three went on.

# %% tags=["hide-input"] mystnb={"image": {"alt": "A timeline with one row per process. Four processes start, each with a bar per firing. The row of one ends in a cross; a fifth process starts after it, and its first bar has the number of the firing that was lost. The three others go on."}}
if __name__ == "__main__":
    events = [json.loads(line) for line in LOG.read_text().splitlines()]
    origin = events[0][3]
    numbers = {tuple(trial.x.tolist()): trial.id for trial in ledger.trials}
    ends = {(pid, tuple(x)): time for event, pid, x, time in events if event == "end"}
    rows: dict = {}
    figure, ax = plt.subplots(figsize=(12, 4.2), layout="constrained")
    for event, pid, x, time in events:
        if event == "end":
            continue
        row = rows.setdefault(pid, len(rows))
        number, end = numbers[tuple(x)], ends.get((pid, tuple(x)))
        if end is None:
            ax.plot(time - origin, row, marker="X", ms=14, color=COLORS[1])
        else:
            ax.barh(row, end - time, left=time - origin, color=COLORS[0], edgecolor="white")
            ax.text((time + end) / 2 - origin, row, number, color="white", ha="center", va="center")
    plt.show()

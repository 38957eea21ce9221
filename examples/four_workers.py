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
# ---

# %% [markdown]
# # What if one of four workers dies?
#
# Four kilns fire glazes side by side, and each firing takes its own time. A free kiln gets the next
# query, which is chosen with the pending ones in mind. In the middle of the run a worker process is
# killed, as happens when memory runs out. Nobody restarts anything.
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
from functools import partial

import matplotlib.pyplot as plt
from experiments.kiln import FAULT, LOG, hardness

if __name__ == "__main__":  # worker processes import this file, if it is a script
    from botorch_calib import AsynchronousOptimizer, DelayAwareProposer, FeedbackLedger
    from botorch_calib.asynchronous import PebbleExecutor
    from botorch_calib.plotting import COLORS

    os.chdir(tempfile.mkdtemp())  # where workers write their log
    FAULT.touch()  # the first one that sees it dies
    ledger = FeedbackLedger.open("run.ledger", dim=2)
    propose = DelayAwareProposer([[0, 0], [1, 1]])
    kilns = partial(PebbleExecutor, 4)
    optimizer = AsynchronousOptimizer(kilns, hardness, ledger, propose, max_parallel=4)
    summary = optimizer.run(num_evaluations=16, progress=False)
    print("failed:", [trial.note for trial in ledger if trial.y is None])
    print(f"best hardness: {summary.best.y:.3f} of 1")

# %% [markdown]
# One trial has failed, and the others went on: a new process took the place of the dead one. In the
# picture each row is a process, and each bar a firing with the number of its trial.

# %% tags=["hide-input"] mystnb={"image": {"alt": "A timeline with one row per process and a bar for each firing. The row of one process ends in a cross, and a fifth process takes its place. The other processes go on."}}
if __name__ == "__main__":
    events = [json.loads(line) for line in LOG.read_text().splitlines()]
    origin = events[0][3]
    numbers = {tuple(trial.x.tolist()): trial.id for trial in ledger.trials}
    ends = {(pid, tuple(x)): time for event, pid, x, time in events if event == "end"}
    rows = {}
    figure, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
    for event, pid, x, time in events:
        if event == "end":
            continue
        row = rows.setdefault(pid, len(rows))
        begin, end, number = time - origin, ends.get((pid, tuple(x))), numbers[tuple(x)]
        if end is None:
            ax.barh(row, 1.0, left=begin, color=COLORS[1], alpha=0.4)
            ax.plot(begin + 1.0, row, marker="X", ms=16, color=COLORS[1])
            ax.text(begin + 0.4, row, number, ha="center", va="center")
        else:
            ax.barh(row, end - time, left=begin, color=COLORS[0], edgecolor="white")
            middle = begin + (end - time) / 2
            ax.text(middle, row, number, color="white", ha="center", va="center")
    ax.set_yticks(range(len(rows)), [f"process {row + 1}" for row in range(len(rows))])
    ax.invert_yaxis()
    ax.set_xlabel("seconds")
    ax.spines[["top", "right"]].set_visible(False)
    plt.show()

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
# # Evaluations that take their time
#
# A training run takes minutes or hours, and nobody can tell in advance. With four workers, three
# evaluations are always under way when the fourth is chosen. Two things are needed: a rule that
# takes the other three into account, and a record of running evaluations that survives its process.

# %% tags=["remove-cell"]
# Installs the package if it is missing: from this checkout, or from PyPI.
from importlib.util import find_spec
from pathlib import Path

if find_spec("botorch_calib") is None:
    package = ".." if Path("../pyproject.toml").exists() else "botorch_calib"
    # %pip install --quiet {package}[plot,bench]

# %%
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    DelayAwareProposer,
    DelayedUpperConfidenceBound,
    FeedbackLedger,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.asynchronous import DelayStrategy, SearchSettings
from botorch_calib.plotting import plot_timeline
from botorch_calib.test_functions import DelayedProblem, PoissonDelay

torch.set_num_threads(1)  # small matrices gain nothing from more

# %% [markdown]
# ## The ledger
#
# Every query is recorded before it starts, every value when it arrives. Here the clock counts
# queries; with `clock="seconds"` it is the time of day.

# %%
ledger = FeedbackLedger(dim=1, censor_value=0.0)
first = ledger.submit([0.2])
second = ledger.submit([0.7])
ledger.observe(first, 0.81)
for trial in ledger.trials:
    print(f"{trial.id}  x = {trial.x.item():.1f}  y = {trial.y}  {trial.status}")

# %% [markdown]
# A ledger gives a model its data: the values that have arrived, and the queries that are still
# running.

# %%
X, Y = ledger.to_observations()
print(f"observed: {X.flatten().tolist()} -> {Y.flatten().tolist()}")
print(f"pending: {ledger.pending().flatten().tolist()}")

# %% [markdown]
# ## A model that accounts for running queries
#
# A search that ignores pending queries asks for the same point again and again, since its data have
# not changed. Below are three models of six values, with two queries pending. The first ignores the
# pending queries. *Hallucination* treats them as if their values had come out as predicted.
# *Censoring* assumes the worst: until their values arrive, they count as 0, the least value
# possible.


# %% mystnb={"image": {"alt": "Three panels of a model of six values, with two dotted lines at pending queries, and the next query as a star. Without imputation the star is next to a pending query. By hallucination the uncertainty at the pending queries is gone, and the star is a little farther off. By censoring the mean dips to 0 at both, swings up at the right edge, and the star is there."}}
def fit(X, Y):
    """A Gaussian process, fitted by marginal likelihood."""
    gp = SingleTaskGP(
        X,
        Y,
        input_transform=Normalize(1, bounds=torch.tensor([[0.0], [1.0]], dtype=X.dtype)),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def objective(X):
    """To be maximised; it is never below 0."""
    return 0.5 + 0.4 * (9 * X).sin() * (1 - 0.5 * X)


X = torch.tensor([[0.02], [0.3], [0.45], [0.6], [0.75], [0.97]], dtype=torch.double)
gp = fit(X, objective(X))
X_pending = torch.tensor([[0.16], [0.86]], dtype=torch.double)
grid = torch.linspace(0, 1, 301, dtype=torch.double).unsqueeze(-1)

figure, panels = plt.subplots(1, 3, figsize=(9, 3.6), sharey=True, layout="constrained")
for panel, imputation in zip(panels, ("none", "hallucinate", "censor"), strict=True):
    model = CensoredDelayModel(gp, X_pending, censor_value=0.0, imputation=imputation)
    window = X_pending if imputation == "censor" else None
    acqf = DelayedUpperConfidenceBound(model, beta=1.0, X_window=window)
    with torch.no_grad():
        posterior, bound = model.posterior(grid), acqf(grid.unsqueeze(-2))
    mean, deviation = posterior.mean.flatten(), posterior.variance.sqrt().flatten()
    x = grid.flatten()
    panel.fill_between(x, mean - deviation, mean + deviation, alpha=0.25, label="mean ± 1 sd")
    panel.plot(x, mean)
    panel.plot(x, bound, "--", color="0.3", label="acquisition function")
    panel.plot(X, objective(X), "ko", label="observed")
    for place in X_pending.flatten():
        panel.axvline(place, color="tab:orange", ls=":")
    panel.plot(x[bound.argmax()], bound.max(), "r*", markersize=14, label="next query")
    panel.set(title=f'imputation="{imputation}"', xlabel="x (dotted: pending)")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# Two deep holes in a smooth function bend it elsewhere, too: the mean in the right panel now swings
# up at the edge. A bound far below all values, as 0 is here, makes the search explore boldly. If a
# ledger has no `censor_value`, a `DelayAwareProposer` takes the worst value observed, which is
# milder.
#
# In the right panel the acquisition function also widens the confidence bound, to allow for the
# error of the censored values: that is GP-UCB-SDF of Verma, Dai and Low (2022). The standard
# deviation is multiplied by the root of `beta` (the `beta` of BoTorch's `UpperConfidenceBound`)
# plus `feedback_bound` times the sum of the standard deviations at the pending points.
# `feedback_bound` is in reciprocal units of the outcome; its default, 1, is for outcomes of order
# one. The model itself goes into any acquisition function, and composes with calibration. A
# calibrator learns only from values that have arrived.

# %%
calibrated = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))
model = CensoredDelayModel(calibrated, X_pending, censor_value=0.0)
acqf = LogCalibratedExpectedImprovement(model, best_f=objective(X).max())
bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
candidate, _ = optimize_acqf(acqf, bounds=bounds, q=1, num_restarts=5, raw_samples=64)
print(f"next query by calibrated expected improvement: {candidate.item():.3f}")

# %% [markdown]
# ## Does it matter? Try it on a simulated clock
#
# `DelayedProblem` adds random delays to any test problem, without anybody having to wait. The value
# of each query comes after a Poisson number of further queries, 8 on average.


# %%
def search(imputation, window, seed, num_queries=30):
    """Distinct queries, and the best value that has arrived after each query."""
    problem = DelayedProblem(Branin(negate=True), PoissonDelay(8.0), seed=seed)
    ledger = FeedbackLedger(dim=2, censor_value=-310.0)  # Branin's least value, negated
    strategy = DelayStrategy(imputation=imputation, window=window, max_censored=None)
    propose = DelayAwareProposer(problem.bounds, strategy, search=SearchSettings(seed=seed))
    trials, best = {}, []
    for step in range(num_queries):
        for ticket, y, _ in problem.arrivals(step):
            ledger.observe(trials[ticket], y)
        x = propose(ledger)
        (ticket,) = problem.start(x.unsqueeze(0), step)
        trials[ticket] = ledger.submit(x)
        arrived = ledger.best()
        best.append(float("nan") if arrived is None else arrived.y)
    queries = torch.stack([trial.x for trial in ledger.trials])
    return len(queries.round(decimals=3).unique(dim=0)), best


for name, imputation, window in (
    ("ignoring delays (GP-UCB)", "none", None),
    ("hallucinating (GP-BUCB)", "hallucinate", None),
    ("censoring (GP-UCB-SDF)", "censor", "pending"),
):
    runs = [search(imputation, window, seed) for seed in range(3)]
    distinct = ", ".join(str(count) for count, _ in runs)
    final = ", ".join(f"{best[-1]:.2f}" for _, best in runs)
    print(f"{name:26} distinct of 30 queries: {distinct:12} best (optimum -0.40): {final}")

# %% [markdown]
# A search that ignores running queries repeats itself; the others do not. Three seeds reveal little
# about regret: the suite `delay` of the benchmarks compares ten methods on eight problems.
#
# Censoring is for few workers. With dozens of values pending at -310 the model would bend
# everywhere. By default a `DelayAwareProposer` hallucinates, with `beta=4`. A censoring strategy
# hallucinates, too, once more than 10 queries are pending, except with `max_censored=None`, as
# here. Which strategy for how many workers?
#
# * **Up to about 20:** the default, `"hallucinate"`.
# * **More:** the default as well. While more than 20 queries are pending, every second one is a
#   point of a Sobol sequence, and the others maximise random draws from the model. A bound would
#   search the edges of the box in the long time before the first values arrive.
# * **Censoring, `"ucb"`,** with up to 10, to follow the paper's rule.
#
# This advice follows from the [results](../docs/results/delay_workers.md) of suite `delay_workers`, with
# 10 to 100 workers.
#
# ## For real: processes, killed and resumed
#
# `tutorials/scripts/tune_svc.py` tunes a support vector classifier on two worker processes. Its
# evaluations take between a tenth of a second and two. Start it, and kill it as soon as six values
# have arrived, by `SIGKILL`, which no process can catch.

# %%
script = next(
    folder / "tutorials" / "scripts" / "tune_svc.py"
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "tutorials" / "scripts" / "tune_svc.py").exists()
)
file = Path(tempfile.mkdtemp()) / "run.sqlite"
command = [sys.executable, str(script), str(file), "--evaluations", "16"]

process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
while process.poll() is None:
    time.sleep(0.1)
    is_made = file.exists() and file.stat().st_size > 0
    if is_made and len(FeedbackLedger.read(file).to_observations()[0]) >= 6:
        os.killpg(process.pid, signal.SIGKILL)  # the script and its workers
        process.wait()
print(f"ended by signal {-process.returncode}")

# %%
ledger = FeedbackLedger.read(file)
print(ledger)
for trial in ledger.trials:
    print(trial.id, [round(value, 2) for value in trial.x.tolist()], trial.y, trial.status)

# %% [markdown]
# The ledger is complete: it has the values that had arrived, and any queries that were still
# running, as pending ones. (`read` makes a copy, since only one process at a time can write to a
# ledger.) The same command resumes the run. It runs the pending queries again, under their old
# numbers, and then new ones.

# %% mystnb={"image": {"alt": "A timeline of sixteen trials on the ledger's clock, two at a time, all of them observed."}}
finished = subprocess.run(command, capture_output=True, text=True, check=True)
print(finished.stdout)
ledger = FeedbackLedger.read(file)
plot_timeline(ledger.trials).set_title("two at a time; the first bars ended before the kill")
plt.show()

# %% [markdown]
# The records go into a data frame, or anything else:

# %%
for record in ledger.to_records()[:3]:
    print(record)

# %% [markdown]
# In short:
#
# * **Write queries into a `FeedbackLedger`** before they start: `FeedbackLedger.open(path, dim)`.
# * **Give the model the running queries**: `CensoredDelayModel.from_ledger(ledger, fit)`, or, with
#   a model at hand, `CensoredDelayModel(gp, ledger.incomplete(), censor_value)`.
# * **Or automate everything**: `AsynchronousOptimizer` with `propose = DelayAwareProposer(bounds)`
#   and an executor on threads, processes or Dask.
# * **Or ask for one query at a time**, if people evaluate: `trial = ledger.ask(propose)`, and hours
#   later `ledger.tell(trial.id, y)`.

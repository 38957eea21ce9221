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
# # Is my surrogate calibrated, and what to do if not?
#
# An 80 % interval that contains 40 % of the observations is worse than none: the acquisition
# function trusts it. This page shows how to find out whether a Gaussian process can be trusted, how
# to read the report, what to do about a bad one, and when nothing helps.

# %% tags=["remove-cell"]
# Installs the package if it is missing: from this checkout, or from PyPI.
from importlib.util import find_spec
from pathlib import Path

if find_spec("botorch_calib") is None:
    package = ".." if Path("../pyproject.toml").exists() else "botorch_calib"
    # %pip install --quiet {package}[plot,bench]

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.kernels import ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    QuantileRecalibrator,
    calibration_report,
)
from botorch_calib.plotting import (
    plot_coverage_over_time,
    plot_intervals,
    plot_pit_histogram,
    plot_reliability,
)

# Refits and short histories bring warnings, which are expected here.
warnings.simplefilter("ignore", BotorchWarning)
torch.set_num_threads(1)  # small matrices gain nothing from more

bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
grid = torch.linspace(0, 1, 501, dtype=torch.double).unsqueeze(-1)


def objective(X):
    """Forrester's function with its sign changed: to be maximised, optimum 6.02 at 0.757."""
    return -(6 * X - 2).square() * (12 * X - 4).sin()


def fit(X, Y, noise, lengthscale=None):
    """A GP with a given standard deviation of the noise, and perhaps a given lengthscale."""
    kernel = ScaleKernel(get_covar_module_with_dim_scaled_prior(ard_num_dims=1))
    if lengthscale is not None:
        kernel.base_kernel.lengthscale = lengthscale
        kernel.base_kernel.requires_grad_(False)
    gp = SingleTaskGP(
        X,
        Y,
        train_Yvar=torch.full_like(Y, noise**2),
        covar_module=kernel,
        input_transform=Normalize(1, bounds=bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


# %% [markdown]
# ## A search that is sure of itself
#
# The search starts from three evaluations without noise, all on the left. Then, 25 times, it
# evaluates the point at which the upper end of the model's 80 % interval is highest. With one
# input, a grid is the surest way to find that point.

# %%
X = torch.tensor([[0.05], [0.25], [0.45]], dtype=torch.double)
Y = objective(X)
for _ in range(25):
    gp = fit(X, Y, noise=0.01)
    acqf = UpperConfidenceBound(gp, beta=1.2816**2)
    with torch.no_grad():
        x = grid[acqf(grid.unsqueeze(-2)).argmax()].unsqueeze(0)
    X, Y = torch.cat([X, x]), torch.cat([Y, objective(x)])


def count(low, high):
    """Number of evaluations between two inputs."""
    return int(((X > low) & (X < high)).sum())


print(f"evaluations within 0.01 of the local optimum, x = 0.143: {count(0.133, 0.153)} of {len(X)}")
print(f"evaluations in [0.6, 0.9], around the optimum: {count(0.6, 0.9)}")
print(f"best value {Y.max().item():.2f}, that of the optimum 6.02")

# %% [markdown]
# The search has settled on a hill of height 1 and never looks at the one of height 6. Does the
# model state its ignorance there? Ask for a report. It goes through the observations in their
# order, and compares each with the model's prediction from the earlier ones.

# %%
gp = fit(X, Y, noise=0.01)
print(calibration_report(gp, num_initial=3))

# %% [markdown]
# How to read it:
#
# * **coverage**: the share of observations inside their 80 % interval; in brackets, its binomial
#   95 % interval.
# * **calibration error**: the sum, over levels, of the squared difference between the level and the
#   share of observations at or below that quantile. The shares themselves stand at the bottom. For
#   a correct model and nine levels expect $1.65 / n$, here 0.07.
# * **width** and **standard deviation**: how sharp the predictions are. Of two calibrated models
#   the sharper one is better.
# * **interval score** and **CRPS** judge both at once; smaller is better. The first is the width
#   plus a penalty for misses; the second compares whole distributions.
# * **coverage by region**: the inputs are cut at medians into four cells, with equally many
#   observations if no point is repeated.
# * **observation noise**: the noise that the model states, and the noise that the data support if
#   everything else in the model is fixed. Here there is no noise, and stating a little does no
#   harm.
#
# At 96 % the coverage looks fine, if anything too high. The shares are more informative: hardly any
# observation lies below its median, and nearly nine in ten lie below the 60 % quantile. Predictions
# of the same point, again and again, look like that. The regions say where the evidence comes from:
# 19 of the 25 observations lie between 0.142 and 0.143.
#
# **A report judges a model at its observations.** A search that has settled has no evidence about
# the rest of the domain, and no statistic of its own history can supply it.
#
# ## A held-out check
#
# The remedy costs evaluations at points that the search did not choose. Here we can afford fifty.

# %%
X_test = torch.linspace(0.01, 0.99, 50, dtype=torch.double).unsqueeze(-1)
print(calibration_report(gp, X_test, objective(X_test)))

# %% [markdown]
# On the left, where the search has been, the intervals are good; on the right they contain almost
# nothing. With one input and no noise, a picture shows why.

# %% mystnb={"image": {"alt": "The true function rises to its peak of 6 on the right, where nothing was measured. There the interval of the Gaussian process lies far below the truth, and the calibrated band is narrower still and lies inside it."}}
calibrated = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))
ax = plot_intervals(calibrated, grid, X, Y, truth=objective(grid))

# %% [markdown]
# The dashed lines are the interval of the Gaussian process. The band is calibrated on the history
# of this search, and it is worse. Again and again the calibrator has seen an interval at the same
# place that covered its observation, and almost none elsewhere. It has learned that intervals are
# too wide, even on the right, where they are far too narrow.
#
# Is this typical? A study (`benchmarks/studies/forrester.py` of commit 1ce965b8) repeats the search
# from 20 random starts, with four calibrators in the loop from the beginning and the bound at two
# levels: 0.9, as here, and 0.975. Its table is `benchmarks/tables/forrester.md`. At level 0.9 the
# plain search finds the optimum's hill in 5 of 20 runs, the calibrated ones in 6 to 8; at level
# 0.975 the plain one in 15, the calibrated ones in 12 to 16. Differences of three or four runs in
# 20 may be chance. The level matters; calibration hardly does. Until the hill is found, the
# calibrated bounds at level 0.9 lie 0.93 to 1.04 standard deviations above the mean at the optimum
# (medians), lower than the plain bound with its 1.28.
#
# ## Evidence from everywhere
#
# Calibration can do more where observations are spread out. Take the same function, measured
# with noise at 100 random inputs. The lengthscale is known from similar curves. The data sheet of
# the instrument gives 0.4 as the standard deviation of the noise; in truth it is 1.

# %%
STATED, TRUE = 0.4, 1.0


def measure(n, seed):
    """Noisy measurements at random inputs."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 1, dtype=torch.double, generator=generator)
    return X, objective(X) + TRUE * torch.randn(n, 1, dtype=torch.double, generator=generator)


X, Y = measure(100, seed=0)
gp = fit(X, Y, noise=STATED, lengthscale=0.2)
model = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))
report = calibration_report(model)
print(report)

# %% [markdown]
# For a calibrated model the report has a second column. It replays an untrained calibrator over the
# history. Each observation is judged by the interval that was stated before it, so the record
# includes the learning phase.
#
# The intervals of the Gaussian process contain half as many observations as they should. The
# calibrated ones are wider by half, and still score better. The last lines name a suspect, here the
# right one: the stated noise is 0.4, and the data support about 1.
#
# ## Three pictures
#
# **Reliability.** The share of observations at or below each quantile. A curve flatter than the
# diagonal belongs to distributions that are too narrow. The grey band is the range of a correct
# model with this number of observations.

# %% mystnb={"image": {"alt": "The share of observations at or below each quantile against its level. The curve of the Gaussian process runs from 0.29 at level 0.1 to 0.70 at level 0.9, flatter than the diagonal, and leaves the grey band at both ends; the calibrated one stays in the band."}}
ax = plot_reliability(report)

# %% [markdown]
# **PIT histogram.** It counts the probabilities that the model gave to values below the observed
# ones, which are uniform for a correct model. High bars at both ends show that many observations
# lie far out in the tails: the distributions are too narrow. A hump in the middle shows that they
# are too wide, and a slope that they are biased. The calibrated bars have a hump, because
# `LocalizedConformal` calibrates only one interval, here the middle 80 %. It spreads the mass
# inside evenly, while most errors are small.

# %% mystnb={"image": {"alt": "A histogram of ten bars. The first and the last of the Gaussian process reach three times the uniform height, the others lie below it. The calibrated bars lie within the grey band around the uniform height, with a hump in the middle."}}
ax = plot_pit_histogram(report)

# %% [markdown]
# **Coverage over time.** The solid lines count all observations so far, the dashed ones the last
# 20. The calibrator starts with the intervals of the Gaussian process. After some thirty
# observations its coverage is within the band that chance allows.

# %% mystnb={"image": {"alt": "Coverage over 100 observations. That of the Gaussian process falls to 0.4. The calibrated one leaves it after a dozen observations, rises into the grey band around the target of 0.8 and stays at its lower edge."}}
ax = plot_coverage_over_time(report)

# %% [markdown]
# And the intervals themselves:

# %% mystnb={"image": {"alt": "100 noisy observations around the curve. Many lie outside the interval of the Gaussian process; the calibrated band is about half as wide again on the left, where most observations are, and hardly wider at the right end."}}
ax = plot_intervals(model, grid, X, Y, truth=objective(grid))

# %% [markdown]
# ## What to do: which calibrator?
#
# * `LocalizedConformal(alpha)` calibrates one central interval. It learns the distance over which
#   the correction changes (`lengthscale="auto"`, its default).
# * `QuantileRecalibrator()` calibrates 19 quantiles, by default with one correction for all
#   inputs and with steps that do not shrink, so that it can follow a model that changes.
#   `lengthscale="auto"` localizes it; `step_decay` lets the steps shrink.
# * `QuantileRecalibrator(method="exact")` takes the observations as a set, not a sequence, and
#   goes together with leave-one-out residuals: each observation is predicted from all others.
#   `residuals="loo"` works with every calibrator.
#
# A report on the history judges calibrators while they learned. The next decision depends on the
# present model, so let us judge that model on 500 new observations, for eight data sets: mean ±
# standard deviation between data sets.

# %%
CANDIDATES = {
    "LocalizedConformal": (LocalizedConformal(0.2), "prequential"),
    "    leave-one-out": (LocalizedConformal(0.2), "loo"),
    "QuantileRecalibrator": (QuantileRecalibrator(), "prequential"),
    "    shrinking steps": (QuantileRecalibrator(step_size=0.1, step_decay=0.5), "prequential"),
    '    lengthscale="auto"': (QuantileRecalibrator(lengthscale="auto"), "prequential"),
    "    exact, leave-one-out": (QuantileRecalibrator(method="exact", step_size=0.5), "loo"),
}
SCORES = {
    "coverage": "coverage",
    "calibration error": "calibration_error",
    "CRPS": "mean_crps",
}


def compare(n, stated):
    """Judge all candidates on new data, after ``n`` observations."""
    found = {name: [] for name in ("Gaussian process", *CANDIDATES)}
    X_new, Y_new = measure(500, seed=1000)
    for seed in range(100, 108):
        gp = fit(*measure(n, seed), noise=stated, lengthscale=0.2)
        for name, (calibrator, residuals) in CANDIDATES.items():
            model = CalibratedModel.from_history(gp, calibrator, residuals=residuals)
            report = calibration_report(model, X_new, Y_new)
            found[name].append(report.calibrated)
        found["Gaussian process"].append(report.base)
    print(f"{n} observations, noise {stated:g} stated, {TRUE:g} true")
    print(" " * 26 + "".join(f"{score:20}" for score in SCORES).rstrip())
    for name, forecasts in found.items():
        values = torch.tensor([[getattr(f, key) for key in SCORES.values()] for f in forecasts])
        cells = zip(values.mean(dim=0).tolist(), values.std(dim=0).tolist(), strict=True)
        print(f"{name:26}" + "".join(f"{f'{m:.2f} ± {sd:.2f}':20}" for m, sd in cells).rstrip())


compare(100, STATED)

# %% [markdown]
# Each calibrator brings the coverage from 39 % to within five points of 80 %, and lowers the CRPS
# by a tenth. The calibrators differ from one another no more than the data sets do. The plain
# `QuantileRecalibrator` has the largest calibration error: as its steps do not shrink, its 19
# quantiles keep moving.

# %% [markdown]
# ## The objective, or an observation of it?
#
# Calibrators correct the distribution of observations, since observations can be checked. By
# default (`denoise=True`) a `CalibratedModel` then removes the noise, and its posterior is the
# distribution of the objective. With `denoise=False` it is the distribution of the observation, as
# in the paper on quantile recalibration. Without noise the two are the same. When does the choice
# matter? Here are two hills. On the right there is hardly any noise; on the left, where the lower
# hill is, it may be louder.


# %%
def hills(X):
    """A hill of height 0.7 at 0.2, and one of height 1 at 0.8."""
    return 0.7 * torch.exp(-((X - 0.2) / 0.1).square()) + torch.exp(-((X - 0.8) / 0.1).square())


def observe(X, loud, generator):
    """Noise of standard deviation 0.05 on the right, and ``loud`` on the left."""
    noise = torch.randn(len(X), 1, dtype=torch.double, generator=generator)
    return hills(X) + torch.where(X < 0.5, loud, 0.05) * noise


def two_models(loud, generator):
    """Models of the objective and of an observation, from 40 random inputs."""
    X = torch.rand(40, 1, dtype=torch.double, generator=generator)
    gp = SingleTaskGP(
        X,
        observe(X, loud, generator),
        input_transform=Normalize(1, bounds=bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    calibrator = LocalizedConformal(alpha=0.2)
    models = [CalibratedModel.from_history(gp, calibrator, denoise=d) for d in (True, False)]
    return models, gp.posterior(X).mean.max().detach()


def improvement(model, best):
    """Expected improvement on the largest posterior mean so far, over the grid."""
    acqf = LogCalibratedExpectedImprovement(model, best)
    with torch.no_grad():
        return acqf(grid.unsqueeze(-2)).exp()


def held(model, values):
    """Share of values over the grid within their 80 % intervals."""
    posterior = model.posterior(grid)
    low, high = (posterior.quantile(torch.tensor(level)) for level in (0.1, 0.9))
    return ((low <= values) & (values <= high)).double().mean().item()


print("           distribution  80 % intervals hold           next query on the")
print("loudness   of the        objective   observations      loud side")
for loud in (0.05, 0.4, 1.0):
    rows = {"objective": [], "observation": []}
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        models, best = two_models(loud, generator)
        new = observe(grid, loud, generator)
        for row, model in zip(rows.values(), models, strict=True):
            on_the_left = (grid[improvement(model, best).argmax()] < 0.5).double().item()
            row.append((held(model, hills(grid)), held(model, new), on_the_left))
    for name, row in rows.items():
        shares = torch.tensor(row).mean(dim=0).tolist()
        print(f"{loud:8}   {name:12}" + "".join(f"{share:13.0%}" for share in shares))

# %% [markdown]
# Each distribution covers its own values, and not the other's. (With the loudest noise, the one
# level that the process has learned is far off on both sides, and the intervals for the objective
# are too narrow.) Decisions differ, too: under the distribution of an observation a lucky draw
# counts as an improvement, and calibration, which is local here, has learned where the noise is
# loud. So the search goes there more often. If the left is as quiet as the right, both
# distributions lead to the higher hill. Keep the default if the objective counts; choose
# `denoise=False` if each observation is the payoff itself. Below are both distributions for one of
# the data sets.

# %% mystnb={"image": {"alt": "Above, a lower hill on the left and a higher one on the right, with 80 % intervals: those of observations are wider, most of all on the left. Below, expected improvement: by the distribution of the objective it is four times as high on the right as on the left, by that of the observation nearly as high on the left."}}
models, best = two_models(0.4, torch.Generator().manual_seed(0))
figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, layout="constrained")
top.plot(grid, hills(grid), "k--", label="objective")
for model, name in zip(models, ("objective", "observation"), strict=True):
    posterior = model.posterior(grid)
    low, high = (posterior.quantile(torch.tensor(q)).detach().flatten() for q in (0.1, 0.9))
    top.fill_between(
        grid.flatten(), low, high, alpha=0.3, label=f"80 %, distribution of the {name}"
    )
    bottom.plot(grid, improvement(model, best), label=f"distribution of the {name}")
bottom.set(xlabel="x", ylabel="expected improvement")
top.legend(fontsize=9)
bottom.legend(fontsize=9)
plt.show()

# %% [markdown]
# ## How many observations are needed?
#
# To judge whether 80 % are covered one has to see at least a few misses. The share that $n$
# observations show has a standard deviation of $\sqrt{0.16 / n}$: 14 points for 8 observations, 8
# for 25, 4 for 100. A calibrator cannot estimate the coverage more precisely. The package warns if
# there are fewer observations than `calibrator.num_needed`, the number at which one miss is
# expected at each level:

# %%
for text, calibrator in (
    ("LocalizedConformal(0.2)", LocalizedConformal(0.2)),
    ("LocalizedConformal(0.05)", LocalizedConformal(0.05)),
    ("QuantileRecalibrator()", QuantileRecalibrator()),
):
    print(f"{text:26}{calibrator.num_needed}")
print()
compare(8, STATED)
print()
compare(25, STATED)

# %% [markdown]
# With 8 observations the coverage rises, but on a single data set it may be anything. With 25 and
# leave-one-out residuals it is within ten points or so of the target. Leave-one-out residuals do
# better here than one-step-ahead residuals. The first predictions one step ahead rest on almost no
# data: their intervals are wide for any stated noise, and reveal little about later ones. Learned
# online, 19 quantiles need more data than one interval.
#
# ## When it does not help
#
# First, if the model is right. Here is the same comparison with the true noise:

# %%
compare(100, TRUE)
plt.close("all")

# %% [markdown]
# There is nothing to gain, and little is lost: the coverage is the same on average, but it now
# differs more from data set to data set, since some of the learned correction is chance.
#
# Second, far from all observations, as in the search above: the calibrator then carries over its
# corrections from elsewhere, for better or worse. Third, if the mean is wrong: the interval becomes
# wider, as it should, but the prediction is as bad as before. Only a better model helps there.
#
# In short:
#
# * **Ask for a report** before you trust a surrogate: `print(calibration_report(model))`.
# * **Check where its observations lie.** A search reports on the places it has visited. A few
#   evaluations at random inputs are more informative than many at the search's favourite point.
# * **Wrap the model** if the report is bad: `LocalizedConformal(alpha)` for an interval,
#   `QuantileRecalibrator` for all quantiles, with steps that shrink if the data are not a stream.
# * **With few observations** use leave-one-out residuals, and do not expect much.
# * **Keep `denoise=True`** unless single observations count.
# * **Calibration corrects the width, not the mean,** and only where it has evidence. It is no
#   substitute for exploration.

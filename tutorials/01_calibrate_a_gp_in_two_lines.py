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
# # Calibrate a GP in two lines
#
# A Gaussian process predicts a value and states how sure it is: "with 80 % probability the next
# observation falls into this interval". Acquisition functions rely on that statement. It is often
# wrong: the noise may differ from place to place, the hyperparameters are estimated from a handful
# of points, and the function may be rougher than the kernel assumes.
#
# `botorch_calib` compares these statements with the observations, corrects them, and returns an
# ordinary BoTorch model. This page shows how to use it, its results, and when it is worthwhile.

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
from botorch.acquisition import (
    LogExpectedImprovement,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.exceptions.warnings import BotorchWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_calib import (
    CalibratedModel,
    LocalizedConformal,
    LogCalibratedExpectedImprovement,
    OnlineConformal,
)
from botorch_calib.models.residuals import prequential_residuals
from botorch_calib.plotting import plot_intervals, plot_threshold_map, prediction_interval
from botorch_calib.test_functions import HeteroscedasticAckley, IntervalStudy1d

# A fit that needs a second attempt says so; with few points that is no news.
warnings.simplefilter("ignore", BotorchWarning)
torch.set_num_threads(1)  # small matrices gain nothing from more
torch.manual_seed(0)


def fit(X, Y, bounds):
    """An ordinary Gaussian process with one noise level."""
    gp = SingleTaskGP(
        X,
        Y,
        input_transform=Normalize(X.shape[-1], bounds=bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


# %% [markdown]
# ## A model that is right on average and wrong everywhere
#
# The function is $x \sin 2x + \cos \pi x$ on $[-5, 5]$. The variance of the noise,
# $(|x| + 1) / 10$, is six times as large at the ends as in the middle, but the Gaussian process
# has a single noise level.

# %%
study = IntervalStudy1d()


def draw(n):
    """Noisy observations at random inputs."""
    X = 10 * torch.rand(n, 1, dtype=torch.double) - 5
    return X, study(X).unsqueeze(-1)


X, Y = draw(300)
gp = fit(X, Y, study.bounds)

# %% [markdown]
# ## The two lines
#
# Make a calibrator, and wrap the model. `alpha=0.2` asks for intervals that miss 20 % of the
# observations. `lengthscale` is the distance over which the correction may change, in units of the
# model's transformed inputs: here the unit interval, because of `Normalize`.
#
# `from_history` goes through the training data in their order: it checks how well the model
# predicts each observation from the earlier ones, and widens or narrows the interval near that
# point accordingly. No model is refitted; one triangular solve gives all of these predictions.

# %%
calibrator = LocalizedConformal(
    alpha=0.2, lengthscale=0.2, scale=2.0, step_size=0.03, step_decay=0.3
)
model = CalibratedModel.from_history(gp, calibrator, num_initial=5)

# %% [markdown]
# Every argument of the calibrator but `alpha` has a default. With a few hundred observations,
# smaller steps that shrink, as here, are better than the default, which is meant for short
# histories: with large steps the intervals keep moving.
#
# ## The calibrated posterior
#
# `model.posterior(X)` is the distribution of the objective, and `model.posterior(X,
# observation_noise=True)` is the distribution of an observation. Both have closed forms for the
# mean, the variance, quantiles, the distribution function, the density and the expected
# improvement.

# %%
point = torch.tensor([[0.0]], dtype=torch.double)
levels = torch.tensor([0.1, 0.9], dtype=torch.double)
for name, m in (("Gaussian process", gp), ("calibrated", model)):
    outcome = m.posterior(point, observation_noise=True).quantile(levels).flatten().tolist()
    objective = m.posterior(point).quantile(levels).flatten().tolist()
    print(f"{name} at x = 0, 80 % intervals:")
    print(f"    observation [{outcome[0]:.2f}, {outcome[1]:.2f}]")
    print(f"    objective   [{objective[0]:.2f}, {objective[1]:.2f}]")
truth = study(point, noise=False).item()
posterior = model.posterior(point)
print(f"truth {truth:.2f}")
print(f"P(objective <= truth) = {posterior.cdf(truth).item():.2f}")
print(f"expected improvement over the truth = {posterior.expected_improvement(truth).item():.4f}")

# %% [markdown]
# ## Intervals before and after
#
# The calibrated interval follows the noise: narrow in the middle, wide at the ends.

# %% mystnb={"image": {"alt": "300 observations around a curve with peaks at -4 and 4. The interval of the Gaussian process has the same width everywhere. The calibrated one is narrower in the middle and wider at the ends, where the observations scatter more."}}
grid = torch.linspace(-5, 5, 401, dtype=torch.double).unsqueeze(-1)
true_mean = study(grid, noise=False).unsqueeze(-1)
ax = plot_intervals(model, grid, X, Y, truth=true_mean)

# %% [markdown]
# How often does a new observation fall inside? We know the truth here, so we can compute it. We
# repeat this with a few data sets to see the effect of chance.


# %%
def coverage(m):
    """Probability at each grid point that a new observation falls into the 80 % interval."""
    low, high = prediction_interval(m, grid, level=0.8)
    noise = study.noise_variance(grid).sqrt().unsqueeze(-1)
    return torch.special.ndtr((high - true_mean) / noise) - torch.special.ndtr(
        (low - true_mean) / noise
    )


distance = grid.abs()
regions = {
    "middle, |x| < 1": distance < 1,
    "between": (distance >= 1) & (distance <= 4),
    "ends, |x| > 4": distance > 4,
}
num_data_sets = 8
found = torch.zeros(2, len(regions), num_data_sets)
for i in range(num_data_sets):
    plain = fit(*draw(300), study.bounds)
    for j, m in enumerate((plain, CalibratedModel.from_history(plain, calibrator, num_initial=5))):
        found[j, :, i] = torch.stack([coverage(m)[mask].mean() for mask in regions.values()])

print("coverage of 80 % intervals, mean ± standard error over data sets")
for j, name in enumerate(("Gaussian process", "calibrated")):
    for k, region in enumerate(regions):
        mean, error = found[j, k].mean(), found[j, k].std() / num_data_sets**0.5
        print(f"    {name:17} {region:16} {100 * mean:5.1f} ± {100 * error:.1f} %")

# %% [markdown]
# ## In a Bayesian optimization loop
#
# A calibrated model goes wherever a BoTorch model goes. In a loop that fits a model in every round,
# the two lines follow the fit. Here we maximise a function of two variables whose noise grows
# outwards; its optimum, 0, lies at the origin.

# %%
problem = HeteroscedasticAckley()
bounds = problem.bounds


def initial_data():
    """Five random observations."""
    X = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(5, 2, dtype=torch.double)
    return X, problem(X).unsqueeze(-1)


def maximise(acqf, q=1):
    """Optimise an acquisition function over the box."""
    candidate, _ = optimize_acqf(acqf, bounds=bounds, q=q, num_restarts=4, raw_samples=64)
    return candidate


X, Y = initial_data()
for _ in range(8):
    gp = fit(X, Y, bounds)
    model = CalibratedModel.from_history(gp, LocalizedConformal(0.2, 0.25), num_initial=5)
    x = maximise(LogCalibratedExpectedImprovement(model, best_f=Y.max()))
    X, Y = torch.cat([X, x]), torch.cat([Y, problem(x).unsqueeze(-1)])
best = Y.argmax()
print(f"best observation {Y[best].item():.2f} at {X[best].tolist()}")

# %% [markdown]
# ## The stateful form
#
# Replaying a history has a catch. The hyperparameters were fitted to all of it, so past
# observations look better predicted than they were at the time. If the fit itself is the problem,
# as with few data, the replay does not show it.
#
# The alternative is to keep the calibrator. `observe` scores a new observation with the model that
# predicted it, and the calibrator moves on to the next fit. The guarantee is for this form: for any
# observations, the share of misses tends to `alpha`. It takes [hundreds of
# observations](../docs/guides/calibration.md#what-is-guaranteed) to be informative.

# %%
X, Y = initial_data()
calibrator = LocalizedConformal(0.2, 0.25)
num_misses, num_rounds = 0, 20
at_the_time = []
for _ in range(num_rounds):
    gp = fit(X, Y, bounds)
    model = CalibratedModel(gp, calibrator)
    x = maximise(LogCalibratedExpectedImprovement(model, best_f=Y.max()))
    y = problem(x).unsqueeze(-1)
    low, high = prediction_interval(model, x, level=0.8)
    num_misses += int(not low <= y <= high)
    with torch.no_grad():
        base = gp.posterior(x, observation_noise=True)
        at_the_time.append((y - base.mean) / base.variance.sqrt())
    # All data go into the next fit, so the old model need not be conditioned on the new ones.
    model.observe(x, y, condition=False)
    X, Y = torch.cat([X, x]), torch.cat([Y, y])
print(f"calibrated 80 % intervals that missed: {num_misses} of {num_rounds}")

residuals = {
    "at the time": torch.cat(at_the_time),
    "in hindsight": prequential_residuals(fit(X, Y, bounds))[5:],
}
for name, z in residuals.items():
    size, misses = z.square().mean().sqrt().item(), int((z.abs() > 1.2816).sum())
    print(f"{name:13} residuals of size {size:.2f} (1 if the model is right), ", end="")
    print(f"{misses} of {num_rounds} outside the Gaussian process's own interval")

# %% [markdown]
# This is one short run; the share of misses has a standard error of about 10 points. Without a
# refit, `observe` with its default `condition=True` also adds the data to the model.
#
# ## BoTorch's own acquisition functions
#
# They take the model as it is. Monte Carlo acquisition functions draw joint samples, whose
# marginals are the calibrated distributions and whose correlations are those of the Gaussian
# process. BoTorch's analytic ones, such as `LogExpectedImprovement`, see a normal distribution with
# the calibrated mean and variance; `LogCalibratedExpectedImprovement` uses the exact distribution.

# %%
for acqf, q in (
    (LogExpectedImprovement(model, best_f=Y.max()), 1),
    (qLogExpectedImprovement(model, best_f=Y.max()), 2),
    (qLogNoisyExpectedImprovement(model, X), 2),
    (qUpperConfidenceBound(model, beta=2.0), 2),
):
    points = [[round(value, 1) for value in row] for row in maximise(acqf, q).tolist()]
    print(f"{type(acqf).__name__:28} {points}")

# %% [markdown]
# ## The effect of localization
#
# With `scale=0`, or with `OnlineConformal`, one threshold serves all inputs: it corrects the
# coverage on average. With localization, the half-width of the interval depends on the place. The
# map shows it in predictive standard deviations, for 250 evenly spread observations of the same
# function. White is the half-width of the Gaussian process itself, 1.28.
#
# Here the intervals are widened near the peak and narrowed far from it. The noise is smallest at
# the peak, but the interval has to cover the whole error, and the model predicts that region worse
# than it states. The outline depends on the data: it moves with another draw of the noise.

# %% mystnb={"image": {"alt": "A map of the half-width over the square. It is up to 1.6 standard deviations in a region right of the centre, bounded by a dashed line at 1.28, and about 1.1 far from it."}}
X = draw_sobol_samples(bounds, n=250, q=1, seed=1).squeeze(-2)
gp = fit(X, problem(X).unsqueeze(-1), bounds)
model = CalibratedModel.from_history(
    gp, LocalizedConformal(0.2, 0.25, scale=2.0, step_size=0.03, step_decay=0.3), num_initial=5
)
ax = plot_threshold_map(model, bounds, X)
for name, place in (("centre", [0.5, 0.5]), ("corner", [0.95, 0.95])):
    width = model.calibrator.half_width(torch.tensor([place], dtype=torch.double)).item()
    print(f"half-width at the {name}: {width:.2f} standard deviations")

# %% [markdown]
# ## When it helps, and when it does not
#
# Calibration pays if the model misjudges its error. To see both extremes, we state the noise
# variance of the one-dimensional problem first ten times too small, then as its true average. Then
# `OnlineConformal` predicts one observation after the other.

# %%
X, Y = draw(150)
for name, variance in (("ten times too small", 0.035), ("the true average", 0.35)):
    gp = SingleTaskGP(
        X,
        Y,
        train_Yvar=torch.full_like(Y, variance),
        input_transform=Normalize(1, bounds=study.bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    z = prequential_residuals(gp)[20:]
    points = gp.transform_inputs(X)[20:]
    online = OnlineConformal(alpha=0.2)
    misses = 0.0
    for x, residual in zip(points.split(1), z.split(1), strict=True):
        misses += float(residual.abs() > online.half_width(x).squeeze(-1))
        online.update(x, residual)
    own = (z.abs() > 1.2816).double().mean().item()
    print(f"noise {name}: misses {100 * own:.0f} % by itself, ", end="")
    print(f"{100 * misses / len(z):.0f} % calibrated (20 % is right)")

plt.close("all")

# %% [markdown]
# In short:
#
# * **It helps** when noise varies over the domain, when noise or lengthscales are fixed or
#   estimated badly, and when you want to report reliable intervals.
# * **It does little** when the model is right: the correction then fluctuates around the right
#   width, and more so with larger steps.
# * **It needs observations.** A correction learned from a dozen is rough; a local correction needs
#   about as many in every neighbourhood of size `lengthscale`.
# * **It calibrates what you ask for.** `LocalizedConformal` calibrates one interval, with
#   miscoverage `alpha`. Inside it, the mass is spread evenly, so other levels are not tuned.
# * **Calibrated is not the same as optimal.** Better intervals seldom make regret smaller (see the
#   [results](../docs/results/index.md)). Compare both on your problem, over several seeds.

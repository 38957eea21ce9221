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
# # Which classifier misses few cancers?
#
# Hyperparameters are mostly tuned for accuracy, where a missed cancer counts as much as a false
# alarm. Here a limit comes first: among other patients, at most 6 % of the cancers may be missed,
# with a probability of 90 %. Among the settings that keep this limit, we want the one with the
# fewest false alarms.
#
# The data, 569 tumours of which 212 are malignant, come with scikit-learn. An evaluation trains a
# support vector machine on a random 60 % of the patients and counts errors among the others. So
# outcomes are noisy, and a setting whose *mean* is at the limit breaks it about half of the time.

# %%
import matplotlib.pyplot as plt
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.decisions import recommend
from botorch_calib.plotting import COLORS, plot_certified_region

torch.manual_seed(0)
LIMIT = 0.06
bounds = torch.tensor([[-1.0, 0.0], [1.0, 1.5]], dtype=torch.double)
settings = torch.cartesian_prod(*(torch.linspace(*b, 33, dtype=torch.double) for b in bounds.T))
measurements, labels = load_breast_cancer(return_X_y=True)
malignant = labels == 0


def evaluate(x, seed):
    """Shares of cancers missed and of false alarms, by log10 of C and of the weight of a cancer."""
    train, test, is_train, is_test = train_test_split(
        measurements, malignant, test_size=0.4, stratify=malignant, random_state=seed
    )
    C, weight = (10.0**x).tolist()
    classifier = make_pipeline(StandardScaler(), SVC(C=C, class_weight={True: weight}))
    alarm = classifier.fit(train, is_train).predict(test)
    return 1 - alarm[is_test].mean(), alarm[~is_test].mean()


def fitted(X, Y):
    """A Gaussian process of one of the two outcomes."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(2, bounds=bounds), outcome_transform=Standardize(1)
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


# %% [markdown]
# The search tries sixteen settings at random, then 20 that a `ChanceConstraint` certifies, each on
# a split of its own.

# %%
X = settings[torch.randperm(len(settings))[:16]]
Y = torch.tensor([evaluate(x, seed) for seed, x in enumerate(X)])
constraint = ChanceConstraint(fitted(X, Y[:, :1]), upper=LIMIT, level=0.9)
for seed in range(16, 36):
    acqf = UpperConfidenceBound(fitted(X, Y[:, 1:]), beta=4.0, maximize=False)
    x, _, _ = optimize_chance_constrained(acqf, constraint, None, choices=settings)
    y = torch.tensor([evaluate(x[0], seed)])
    constraint.observe(x, y[:, :1], condition=False)
    X, Y = torch.cat([X, x]), torch.cat([Y, y])
    constraint = constraint.with_model(fitted(X, Y[:, :1]))
print(constraint)

# %% [markdown]
# `recommend` names the setting to stop at: its quantile is within the limit with a confidence of
# 95 %. We compare it with the usual choice, scikit-learn's default, on 200 new splits.

# %%
kept = recommend(fitted(X, Y[:, 1:]), constraint, choices=settings, maximize=False)
print(f"certified: {kept.certified}, C and weight:", (10 ** kept.candidate[0]).round(decimals=2))
new = {}
for name, x in (("default", torch.zeros(2)), ("recommended", kept.candidate[0])):
    new[name] = torch.tensor([evaluate(x, seed) for seed in range(1000, 1200)])
    missed, alarms = new[name].T
    print(
        f"{name:12} misses {missed.mean():.1%}, more than {LIMIT:.0%} in "
        f"{(missed > LIMIT).double().mean():.0%} of the splits; false alarms {alarms.mean():.1%}"
    )

# %% tags=["hide-input"] mystnb={"image": {"alt": "On the left a map of the two hyperparameters. The certified ones are those with a C below about 2 and a large weight of cancers; the recommended one lies well inside. On the right the shares of cancers missed in 200 splits: the default is beyond the limit of 6 % in many of them, the recommended setting in few."}}
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=(1.2, 1)
)
plot_certified_region(constraint, bounds, X, constraint.violated(Y[:, :1]), ax=left)
left.scatter(*kept.candidate[0], marker="*", s=350, color=COLORS[2], edgecolor="white", zorder=5)
left.set(xlabel="log10 of C", ylabel="log10 of the weight of a cancer")
steps = torch.arange(13) / 85  # there are 85 cancers in a split
for (name, outcome), color in zip(new.items(), (COLORS[1], COLORS[0]), strict=True):
    right.hist(outcome[:, 0], steps - 0.5 / 85, color=color, alpha=0.6, label=name)
right.axvline(LIMIT, color="black", ls="--", label="limit")
right.set(xlabel="share of cancers missed", ylabel="splits, of 200")
right.spines[["top", "right"]].set_visible(False)
right.legend(frameon=False)
plt.show()

# %% [markdown]
# The default breaks the limit more than one time in ten. The recommended setting keeps it, and is
# even safer than it had to be, since a few noisy splits have to show its safety with confidence. The
# price is more false alarms. Splits of one data set share their patients, so this is no evidence about
# another hospital. There, confirm it with a {any}`ConfirmationTest`.

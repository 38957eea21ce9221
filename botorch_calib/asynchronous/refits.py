"""Models of a ledger: fitted on a schedule, then conditioned on later values and imputed values.

Imputed values replace the missing values of failed and pending queries. A fit to ``n`` values needs
dozens of factorizations, each ``O(n^3)``; conditioning on one more value takes ``O(n^2)``.
Fits and their starting points depend only on the values and their order, so a resumed run repeats
the same computations.
"""

from __future__ import annotations

import math
from contextlib import suppress
from copy import deepcopy
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.settings import validate_input_scaling
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_calib._validation import check_count
from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.failed_queries import with_failures_imputed
from botorch_calib.exceptions import warn
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.delayed import Fit, fitted_model, queries_to_impute
from botorch_calib.models.hyperparameter_fits import fit_in_logarithms
from botorch_calib.models.partly_known_noise import PartlyKnownNoiseGP
from botorch_calib.models.process import (
    checked_observations,
    like,
    likelihood_of,
    observed_process,
)
from botorch_calib.optim.random_seeds import derived_seed, random_stream

# The first fit needs two values, as a single value has no standard deviation.
FIRST_FIT = 2
# With at least this many values, a fit starts from the result of an earlier fit. With fewer values,
# a fit takes less time than the queries until the next fit (`docs/results/simpler_forms.md`), and
# the best hyperparameters may be far from the earlier result.
LEAST_FOR_WARM_START = 500
# A warm-started fit stops once an iteration decreases the objective by less than this fraction.
# L-BFGS-B's default, 2e-9, gains a few tenths of log likelihood, but takes two to ten times as many
# evaluations.
TOLERANCE = 1e-6
# Noise variance of standardised outcomes at the second starting point of a fit. At the first
# starting point it has BoTorch's initial value, 0.007.
SECOND_NOISE = 0.1

# Hyperparameters of a Gaussian process: the state dict of each submodule named in `PARTS`.
State = dict[str, dict[str, Tensor]]
PARTS = ("mean_module", "covar_module", "likelihood")


def check_refit_every(value: int | float) -> int | float:
    """Return ``value`` if it is an integer of at least 1 or a finite float above 1.

    Any other value raises ``InputDataError``.
    """
    with suppress(InputDataError):
        return check_count("refit_every", value)
    if isinstance(value, Real) and not isinstance(value, Integral) and 1.0 < value < math.inf:
        return float(value)
    raise InputDataError(
        "`refit_every` must be a number of values (an integer of at least 1) or a factor by "
        f"which their number grows (a float above 1), got {value!r}."
    )


def fitted_count(num: int, every: int | float) -> int:
    """Return the number of values in the last scheduled fit, if ``num >= 2`` values have arrived.

    The first fit uses the first 2 values. After a fit to the first ``k`` values, the next fit uses
    ``k + every`` values if ``every`` is an integer, and ``max(k + 1, floor(k every))`` values if it
    is a float.
    """
    if isinstance(every, int):
        return num - (num - FIRST_FIT) % every
    count = following = FIRST_FIT
    while following <= num:
        count, following = following, max(following + 1, int(following * every))
    return count


def with_later_values(model: Model, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
    """Return a copy of a fitted model that is also conditioned on ``Y``, ``n x 1``, at ``X``.

    ``X``, ``n x d``, must be in order of arrival, because the calibrator of a `CalibratedModel`
    learns from the values one by one. Hyperparameters stay. The noise variances ``Yvar``,
    ``n x 1``, are ignored if the model has learned its noise.
    """
    X, Y = like(model, X), like(model, Y)
    takes_noise = isinstance(likelihood_of(observed_process(model)), FixedNoiseGaussianLikelihood)
    Yvar = like(model, Yvar) if takes_noise and Yvar is not None else None
    with torch.no_grad():
        if not isinstance(model, CalibratedModel):
            return with_observations(model, X, Y, Yvar)
        extended = model.with_model(model.model, deepcopy(model.calibrator))
        X, Y, Yvar = checked_observations(extended.model, X, Y, Yvar)
        noises = [None] * len(Y) if Yvar is None else Yvar.split(1)
        for x, y, noise in zip(X.split(1), Y.split(1), noises, strict=True):
            extended.learn(x, y, noise)  # not `observe`: a repeated row is a new observation
    return extended


def fit_single_task_gp(
    X: Tensor,
    Y: Tensor,
    bounds: Tensor | None = None,
    Yvar: Tensor | None = None,
    start: State | None = None,
) -> SingleTaskGP:
    """Fit a ``SingleTaskGP`` with ``Normalize`` and ``Standardize`` by marginal likelihood.

    The data are ``X``, ``n x d``, and ``Y``, ``n x 1``. ``Normalize`` maps the box ``bounds``,
    ``2 x d``, to the unit cube; without ``bounds``, inputs must be in the unit cube. The noise
    variances ``Yvar``, ``n x 1``, are used where they are known. If ``Yvar`` is None or has NaN,
    the unknown variance is fitted, from two starting points. If ``start`` has the hyperparameters
    of an earlier fit, the fit starts only from these and stops at `TOLERANCE`.
    """
    # Values whose standard deviation is below `equal` are not rescaled: they differ by rounding
    # only, or their variance would underflow. BoTorch's limit, 1e-8, is absolute, so its effect
    # would depend on the unit of the values.
    accuracy = torch.finfo(Y.dtype)
    equal = max(4.0 * accuracy.eps * Y.abs().amax().item(), accuracy.tiny**0.5)
    if Yvar is not None:
        # GPyTorch would increase noise variances of standardized values to 1e-6, and warn. So
        # smaller variances are increased here, without a warning.
        scale = Y.std()
        Yvar = Yvar.clamp_min(1.01e-6 * (scale.square().item() if scale >= equal else 1.0))

    def unfitted(*batch: int) -> PartlyKnownNoiseGP:
        # BoTorch would warn of equal values and of inputs outside of the box, which users of a
        # proposer cannot avoid. So its warnings are turned off.
        with validate_input_scaling(False):
            return PartlyKnownNoiseGP(
                X.expand(*batch, *X.shape),
                Y.expand(*batch, *Y.shape),
                None if Yvar is None else Yvar.expand(*batch, *Yvar.shape),
                input_transform=None if bounds is None else Normalize(X.shape[-1], bounds=bounds),
                outcome_transform=Standardize(1, min_stdv=equal, batch_shape=torch.Size(batch)),
            )

    gp = searched = unfitted()
    options: dict[str, Any] = {}
    noises = [name for name, _ in gp.named_parameters() if name.endswith("raw_noise")]
    if start is not None:
        options = {"ftol": TOLERANCE}
        for part, state in start.items():
            # If the earlier fit knew all noise variances, it has no noise parameter to load.
            gp.get_submodule(part).load_state_dict(state, strict=False)
    elif noises:
        searched = unfitted(2)
        for name in noises:
            searched.get_parameter(name).data[1] = SECOND_NOISE
    mll = ExactMarginalLogLikelihood(searched.likelihood, searched)
    fit_gpytorch_mll(mll, optimizer=fit_in_logarithms, optimizer_kwargs={"options": options})
    with torch.no_grad():
        for name, own in gp.named_parameters():
            own.copy_(searched.get_parameter(name).view(-1, *own.shape)[0])
    return gp.eval()


def _bits(*data: Tensor | None) -> tuple[bytes, ...]:
    """The bytes of each tensor (none for None). In a comparison of bytes, NaN equals NaN."""
    return tuple(b"" if each is None else each.cpu().numpy().tobytes() for each in data)


def fit_with_noise(fit: Fit, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    """Return the model that ``fit`` builds from ``X``, ``n x d``, and ``Y``, ``n x 1``.

    ``fit`` also gets the noise variances ``Yvar``, ``n x 1``, if it has a parameter of this name.
    If it has none, and ``Yvar`` is not None, ``InputDataWarning`` is issued.
    """
    known = {} if Yvar is None else {"Yvar": Yvar}
    if known and "Yvar" not in signature(fit).parameters:
        known = {}
        warn(
            "The known variances of the noise are not used, as `fit` has no parameter `Yvar`: the "
            "model learns the noise instead.",
            InputDataWarning,
        )
    return fit(X, Y, **known)


class _Remembered(NamedTuple):
    """A model, and the `_bits` of the data from which it was built; both empty at the start."""

    data: tuple[bytes, ...] = ()
    model: Any = None


class ScheduledFit:
    """Builds models of growing data: fitted on a schedule, and conditioned between two fits.

    For ``fit`` and ``refit_every`` see `DelayAwareProposer`. During a fit, torch's random numbers
    on the CPU and on ``device`` have a seed that is derived from the integers ``stream`` and the
    number of values in the fit.
    """

    def __init__(
        self, fit: Fit, refit_every: int | float, device: torch.device, stream: tuple[int, ...]
    ) -> None:
        self.fit, self.refit_every, self.device, self.stream = fit, refit_every, device, stream
        # The model fitted to the first values, and this model conditioned on the later values. Both
        # are stored, because there may be many calls per new value.
        self._first = self._all = _Remembered()

    def __getstate__(self) -> dict[str, Any]:
        # Models are not pickled, as they may be large and outdated. A copy fits its own models.
        return {**self.__dict__, "_first": _Remembered(), "_all": _Remembered()}

    def of_data(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
        """Return a model that is conditioned on all values ``Y``, ``n x 1``, at ``X``, ``n x d``.

        The rows of ``X``, ``Y`` and the noise variances ``Yvar``, ``n x 1``, must be in order of
        arrival. The hyperparameters are fitted to the first `fitted_count` rows only.
        """
        count = fitted_count(len(Y), self.refit_every)
        first = X[:count], Y[:count], None if Yvar is None else Yvar[:count]
        if self._first.data != (data := _bits(*first)):
            with random_stream(derived_seed(*self.stream, count), self.device):
                self._first = _Remembered(data, fit_with_noise(self.fit, *first))
        if count == len(Y):
            return self._first.model
        if self._all.data != (data := _bits(X, Y, Yvar)):
            later = X[count:], Y[count:], None if Yvar is None else Yvar[count:]
            self._all = _Remembered(data, with_later_values(self._first.model, *later))
        return self._all.model


class WarmStartedFit:
    """Calls `fit_single_task_gp`, with a warm start from `LEAST_FOR_WARM_START` values on.

    A warm start begins at the hyperparameters of an earlier fit to about the first half of the
    values: to the last number of values in the schedule ``refit_every`` that is at most half of
    them. The earlier fit is repeated for this purpose, and may have a warm start itself. The model
    is on the device of the box ``bounds``, ``2 x d``. The ``seed`` matters only if a fit fails and
    is tried again.
    """

    def __init__(self, bounds: Tensor, refit_every: int | float, seed: int = 0) -> None:
        self.bounds, self.refit_every, self.seed = bounds, refit_every, seed

    def __call__(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> SingleTaskGP:
        """Return the model fitted to ``X``, ``n x d``, and ``Y``, ``n x 1``, in order of arrival.

        ``Yvar``, ``n x 1``, has the noise variances of ``Y``, NaN if unknown (None: all unknown).
        """
        start = None
        if len(Y) >= LEAST_FOR_WARM_START:
            half = fitted_count(len(Y) // 2, self.refit_every)
            first = self(X[:half], Y[:half], None if Yvar is None else Yvar[:half])
            start = {part: first.get_submodule(part).state_dict() for part in PARTS}
        device = self.bounds.device
        noise = None if Yvar is None else Yvar.to(device)
        with random_stream(derived_seed(self.seed, len(Y)), device):
            return fit_single_task_gp(X.to(device), Y.to(device), self.bounds, noise, start)


class LedgerModel(ScheduledFit):
    """Builds the model of a ledger at the time ``now``.

    The model is conditioned on the values that have arrived by ``now``. Queries without a value
    (failed, expired or pending) get imputed values or are ignored, as the ``strategy`` says.
    """

    def __call__(
        self, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
    ) -> CensoredDelayModel:
        imputation = strategy.imputation
        if imputation == "censor":
            _warn_of_wrong_sign(ledger, now)
        Yvar = ledger.noise_variances(now)
        fit = partial(self.of_data, Yvar=None if Yvar.isnan().all() else Yvar)
        model = fitted_model(ledger, fit, "observed", now)
        model = with_failures_imputed(model, ledger, now, strategy)
        pending = queries_to_impute(ledger, imputation, now)
        censor_value = ledger.censor_value
        if imputation == "censor" and censor_value is None:
            _, Y = ledger.to_observations(now)
            censor_value = (Y.min() if ledger.maximize else Y.max()).item()  # worst observed value
        return CensoredDelayModel(model, pending, censor_value, imputation)


def _warn_of_wrong_sign(ledger: FeedbackLedger, now: float) -> None:
    """Warn if the ledger's ``censor_value`` is better than all values observed by ``now``.

    The value should be the worst that the objective can take, so its sign may be wrong.
    """
    value, (_, Y) = ledger.censor_value, ledger.to_observations(now)
    if value is None or not (Y < value if ledger.maximize else Y > value).all():
        return
    kind = "least" if ledger.maximize else "greatest"
    warn(
        f"`censor_value` {value} of the ledger is better than every value observed, with "
        f"`maximize={ledger.maximize}`. It should be the {kind} value that the objective can "
        "take: queries under evaluation now look attractive.",
        InputDataWarning,
    )

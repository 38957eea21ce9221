"""Queries that fail or hang: a model of where they do, and what follows for the search."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import normalize, t_batch_mode_transform
from numpy.typing import ArrayLike
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.ledger.trials import are_among
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.matching_rows import is_any_of
from botorch_calib.models.process import like, observed_process
from botorch_calib.robust.contexts import pairwise_distances

# A point closer to a failed query than this, in units of the box in every coordinate, repeats it.
SAME = 1e-6
# A pending query counts as so many times as likely to fail as is predicted.
RISK = 4.0
# Pending queries with a prediction of at least this are left out.
SAFE = 0.999
# So many more queries at borders than elsewhere, with no better value, and the next is elsewhere.
PATIENCE = 5

# Lengthscales to choose from, in units of the box, times the square root of the dimension.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)
# Variance of a label about the model, in units of its prior variance: neighbours may differ.
NOISE = 1e-2

# Distance from a failure up to which a query is at its border, in units of the box, times the
# square root of the dimension.
BORDER = 0.1
# Width of the step from predicted failure to predicted success.
WIDTH = 0.1
# After so many lost evaluations the threshold of the prediction is half way from 1/2 to 1.
CAUTION = 4.0


def are_near(X: Tensor, failures: Tensor) -> Tensor:
    """Which of the points ``n x d`` of the unit cube are at the border of which of ``m``."""
    return pairwise_distances(X, failures) < BORDER * math.sqrt(X.shape[-1])


class Feasibility:
    r"""Predicts from values and failures whether a query brings a value.

    The label of a query is 1 if its value has arrived and 0 if it has failed. Labels are modeled by
    a Gaussian process with mean 1 (untried queries succeed) and an isotropic Matern-5/2 kernel over
    the unit cube, with the lengthscale of `LENGTHSCALES` that maximizes the likelihood. With the
    labels less 1 as ``r``, ``K`` their correlation matrix with `NOISE` on its diagonal, and
    ``k(x)`` the correlations with ``x``, the prediction is ``p(x) = 1 + k(x)' K^{-1} r``. The
    variance that maximizes the likelihood is ``r'K^{-1}r / n``, and the log likelihood then is, up
    to a constant, ``-n/2 log(r'K^{-1}r / n) - 1/2 log det K``.

    ``p`` comes near 1/2 half way between a value and a failure. The score of a query is

        ``Phi((p(x) - t) / 0.1)``  with  ``t = 1 - 1 / (2 (1 + F / 4))``

    after failures that cost ``F`` evaluations. At first the search halves the distance to a region
    that fails again and again, as the best point may lie on its border; the more has been lost, the
    closer to known values it stays.

    At least one of the queries ``X``, ``n x d``, has ``failed``: ``n`` booleans, or degrees from 0
    to 1. They cost the search so many evaluations (default: one each).
    """

    def __init__(
        self, X: Tensor, failed: Tensor, bounds: Tensor, cost: float | None = None
    ) -> None:
        self.bounds = bounds
        self.X = normalize(X, bounds)
        self.failures = self.X[failed.to(self.X) == 1.0]
        cost = float(failed.sum()) if cost is None else cost
        self.threshold = 1.0 - 0.5 / (1.0 + cost / CAUTION)
        residuals = -failed.to(self.X).unsqueeze(-1)
        lengthscales = self.X.new_tensor(LENGTHSCALES) * math.sqrt(X.shape[-1])
        K = _matern(pairwise_distances(self.X, self.X) / lengthscales.view(-1, 1, 1))
        K.diagonal(dim1=-2, dim2=-1).add_(NOISE)
        L = torch.linalg.cholesky(K)
        whitened = torch.linalg.solve_triangular(L, residuals, upper=False)
        variances = whitened.square().mean(dim=(-2, -1))
        log_roots = L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        best = int((-0.5 * len(X) * variances.log() - log_roots).argmax())
        self.lengthscale = float(lengthscales[best])
        self.weights = torch.linalg.solve_triangular(L[best].mT, whitened[best], upper=True)

    def predict(self, X: Tensor) -> Tensor:
        """The predicted label at ``X``, ``batch_shape x d``, of shape ``batch_shape``."""
        unit = normalize(X.to(self.bounds), self.bounds)
        k = _matern(pairwise_distances(unit, self.X) / self.lengthscale)
        return 1.0 + (k @ self.weights).squeeze(-1)

    def score(self, X: Tensor) -> Tensor:
        """The score of ``X``, ``batch_shape x d``: the share of a gain that counts, from 0 to 1."""
        return torch.special.ndtr((self.predict(X) - self.threshold) / WIDTH)

    def are_at_border(self, X: Tensor) -> Tensor:
        """Which of the points ``n x d`` are at the border of a failure."""
        return are_near(normalize(X, self.bounds), self.failures).any(dim=-1)

    def safest(self, X: Tensor) -> Tensor:
        """The one of the points ``n x d`` that is the most likely to bring a value, ``d``.

        Points at the border of a failure are passed over if there is another one.
        """
        near = self.are_at_border(X)
        return X[self.predict(X).masked_fill(near & ~near.all(), -math.inf).argmax()]


class FeasibleAcquisition(AcquisitionFunction):
    """An acquisition function for which a query that fails is as good as a ``poor`` value.

    A value ``a > poor`` becomes ``poor + s (a - poor)``, with the score ``s``; the logarithm of an
    improvement, for which ``poor`` is None, ``a + log(s)``.
    """

    def __init__(
        self, acqf: AcquisitionFunction, model: Model, feasibility: Feasibility, poor: float | None
    ) -> None:
        super().__init__(model=model)
        self.acqf, self.feasibility, self.poor = acqf, feasibility, poor

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        values: Tensor = self.acqf(X)
        scores = self.feasibility.score(X.squeeze(-2)).to(values)
        if self.poor is None:
            return values + scores.clamp_min(torch.finfo(X.dtype).tiny).log()
        gains = values - self.poor
        return self.poor + torch.where(gains > 0.0, scores * gains, gains)


def _matern(distances: Tensor) -> Tensor:
    """Matern-5/2 correlations at distances in units of the lengthscale."""
    scaled = math.sqrt(5.0) * distances
    return (1.0 + scaled + scaled.square() / 3.0) * (-scaled).exp()


def queries_in(ledger: FeedbackLedger, now: float, *wanted: TrialStatus) -> Tensor:
    """The queries ``n x d`` of trials in some states, by id."""
    return ledger.queries(now)[are_among(ledger.statuses(now), wanted)]


def have_failed(points: Tensor, failed: Tensor, bounds: Tensor) -> Tensor:
    """Which of the points, ``batch_shape x d``, are the same as a failed query, ``n x d``."""
    scale = bounds[1] - bounds[0]
    return is_any_of(points / scale, failed / scale, SAME)


def poor_value(ledger: FeedbackLedger, now: float) -> float:
    """The mean of the values less their standard deviation, with their sign if minimized."""
    _, Y = ledger.to_observations(now)
    return float((Y if ledger.maximize else -Y).mean() - Y.std())


def with_failures_imputed(
    model: Model, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
) -> Model:
    """The model conditioned on poor values at lost queries, or on poorer predictions.

    The worst observed value would also bend a smooth model next to the region that fails, where the
    best point may lie; the mean would draw the search back two or three times as often.
    """
    lost = queries_in(ledger, now, *strategy.lost_statuses)
    if not len(lost) or not strategy.imputes_failures:
        return model
    X, sign = like(model, lost), 1.0 if ledger.maximize else -1.0
    poor = poor_value(ledger, now)
    with torch.no_grad():
        values = sign * (sign * observed_process(model).posterior(X).mean).clamp_max(poor)
        return with_observations(model, X, values)


def feasibility_of(
    ledger: FeedbackLedger, now: float, strategy: DelayStrategy, bounds: Tensor
) -> Feasibility | None:
    """Where queries bring values; None if none has failed or failures do not matter.

    A pending query near failures counts as failed in part, by `RISK` times what its prediction
    lacks to 1. Without it ten workers would try one border at once, and up to nearly twice as many
    queries fail. Counted in full, failures that have nothing to do with the query would drive the
    search away from the best pending queries.
    """
    statuses = ledger.statuses(now)
    lost = are_among(statuses, strategy.lost_statuses)
    if strategy.failures == "ignore" or not lost.any():
        return None
    has_value = are_among(statuses, (TrialStatus.OBSERVED,))
    is_pending = are_among(statuses, (TrialStatus.PENDING,))
    X, known = ledger.queries(now), lost | has_value
    # A failure costs at least an evaluation, and more if it took longer than any value.
    waits = torch.tensor(ledger.waits(now), dtype=torch.double)
    longest = torch.cat([waits[has_value], waits.new_ones(1)]).max()
    cost = float((waits[lost] / longest).clamp_min(1.0).sum())
    feasibility = Feasibility(X[known], lost[known], bounds, cost)
    risks = 1.0 - feasibility.predict(X[is_pending])
    at_risk = risks > 1.0 - SAFE
    if not at_risk.any():
        return feasibility
    failed = torch.cat([lost[known].to(risks), (RISK * risks[at_risk]).clamp_max(1.0)])
    X = torch.cat([X[known], X[is_pending][at_risk]])
    return Feasibility(X, failed, bounds, cost)


def borders_are_overdrawn(
    ledger: FeedbackLedger, now: float, strategy: DelayStrategy, bounds: Tensor
) -> bool:
    """Whether borders have had enough queries in vain, so that the next one belongs elsewhere.

    Each query since the best one, pending or not, adds 1 to a count if it failed or was made within
    `BORDER` of an earlier failure; each other one takes 1 off it, down to 0. If queries made at a
    count of `PATIENCE` are elsewhere and do not fail, at most ``(PATIENCE + T) / 2`` of any ``T``
    in a row are at borders, and at most `PATIENCE` one after the other.
    """
    best, X = ledger.best(now=now), ledger.queries(now)
    lost = are_among(ledger.statuses(now), strategy.lost_statuses).nonzero()[:, 0]
    since = torch.arange(0 if best is None else best.id + 1, len(X))
    unit = normalize(X, bounds)
    near = are_near(unit[since], unit[lost]) & (lost <= since.unsqueeze(-1))
    count = 0
    for at_border in near.any(dim=-1).tolist():
        count = max(count + (1 if at_border else -1), 0)
    return count >= PATIENCE


# ------------------------------------------------------------ queries that hang


def hanging_places(submitted: ArrayLike, arrived: ArrayLike) -> list[int]:
    """Trials without a value that more later trials have overtaken than any trial before.

    One trial overtakes another if it was submitted later, by its place and by its time, and has
    its value no later. If ``W`` evaluations of similar length run at a time, fewer than ``W``
    overtake one of them; one that hangs is overtaken by all that other workers finish. A trial is
    hanging if it has been overtaken by more than ``max(W, M)`` trials, where ``W`` is the most
    trials that were without a value at once since it was submitted, and ``M`` the most that have
    overtaken a trial with a value. Only the order of times matters: neither pauses nor batches do.

    If lengths vary widely, some trials set a record and bring a value nevertheless: of 120 with
    exponential or log-normal lengths, 2 to 4 with four workers and 6 to 12 with twenty.

    Submissions are in order; times of arrival are infinite where no value has come.
    """
    starts, ends = np.asarray(submitted, dtype=float), np.asarray(arrived, dtype=float)
    has_value = np.isfinite(ends)

    def overtaken(place: int) -> int:
        later = slice(place + 1, None)
        overtakes = has_value[later] & (starts[later] >= starts[place])
        return int(np.count_nonzero(overtakes & (ends[later] <= ends[place])))

    at_once = [np.searchsorted(np.sort(times), starts, side="right") for times in (starts, ends)]
    widest = np.maximum.accumulate((at_once[0] - at_once[1])[::-1])[::-1]
    pending, known = (np.flatnonzero(which).tolist() for which in (~has_value, has_value))
    late = {place: count for place in pending if (count := overtaken(place)) > widest[place]}
    most = max(map(overtaken, known), default=0) if late else 0
    return [place for place, count in late.items() if count > most]


def hanging(ledger: FeedbackLedger, now: float) -> list[int]:
    """Ids of the pending trials of a ledger at ``now`` that are hanging (`hanging_places`).

    Trials that failed or expired do not count, nor do values that were known upon submission.
    """
    if not len(ledger.pending(now)):
        return []
    trials = [
        trial
        for trial in ledger.trials_at(now)
        if trial.status is TrialStatus.PENDING
        or (trial.status is TrialStatus.OBSERVED and trial.observed_at != trial.submitted_at)
    ]
    places = hanging_places(
        [trial.submitted_at for trial in trials],
        # A value that is recorded ahead of its time has not arrived.
        [math.inf if trial.observed_at is None else trial.observed_at for trial in trials],
    )
    return [trials[place].id for place in places]


def with_hanging_failed(ledger: FeedbackLedger, now: float) -> FeedbackLedger:
    """The ledger or, if trials are hanging, a copy in which they have failed.

    Those whose value is recorded ahead of its time, as in simulations, stay pending.
    """
    late = hanging(ledger, now)
    if not late:
        return ledger
    copy = ledger.snapshot()
    for trial_id in late:
        with suppress(TrialStateError):
            copy.fail(trial_id, "hangs", now)
    return copy

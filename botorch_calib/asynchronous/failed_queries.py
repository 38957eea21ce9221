"""Queries that fail or hang: a model of failures, and how the search avoids failures.

A query is *lost* if it has failed or, unless the strategy censors it, expired (see
`DelayStrategy.lost_statuses`). Points are in the box ``bounds``, ``2 x d``.
"""

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
from botorch_calib.models.outcome_transforms import has_affine_outcomes, outcome_map_of
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import like, observed_process, with_task_feature
from botorch_calib.robust.contexts import pairwise_distances

# A point repeats a failed query if the two differ by no more than this in every coordinate, as a
# fraction of the width of the box.
SAME = 1e-6
# A pending query whose predicted label (1 for a value, 0 for a failure) is at least `SAFE` does not
# count as a failure. With a smaller label ``p`` it counts as a failure to the degree ``RISK (1 -
# p)``, or fully if this exceeds 1.
RISK = 4.0
SAFE = 0.999
# Once queries near failures outnumber other queries by this number, counted after the best query,
# the next query keeps away from failures: see `borders_are_overdrawn`.
PATIENCE = 5

# Candidate lengthscales of `Feasibility`, in units of the box times the square root of the
# dimension.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)
# Noise variance of labels, in units of the prior variance. It lets labels of neighbours differ.
NOISE = 1e-2

# A trial hangs if more than ``W + OVERDUE M`` trials have overtaken it: see `hanging_places`.
OVERDUE = 4

# A point is at the border of a failure, or near the failure, if its distance is less than this. The
# unit is the width of the box times the square root of the dimension.
BORDER = 0.1
# The score of `Feasibility` increases from 0.16 to 0.84 while the predicted label increases from
# `WIDTH` below the threshold to `WIDTH` above it.
WIDTH = 0.1
# Number of lost evaluations after which the threshold of the score is half way from 1/2 to 1.
CAUTION = 4.0


def are_near(X: Tensor, failures: Tensor) -> Tensor:
    """Return whether each point ``X``, ``n x d``, is near each failure, ``m x d``, as ``n x m``.

    Points and failures are in the unit cube. For "near" see `BORDER`.
    """
    return pairwise_distances(X, failures) < BORDER * math.sqrt(X.shape[-1])


class Feasibility:
    r"""Predicts from values and failures whether a query returns a value.

    The label of a query is 1 if its value has arrived and 0 if it has failed. Labels are modeled by
    a Gaussian process with mean 1 (untried queries succeed) and an isotropic Matern-5/2 kernel over
    the unit cube. The lengthscale is the element of `LENGTHSCALES` that maximizes the likelihood.
    Let ``r`` be the labels minus 1, ``K`` the correlation matrix of the labels with `NOISE` added
    to the diagonal, and ``k(x)`` their correlations with the label at ``x``. The predicted label is
    ``p(x) = 1 + k(x)' K^{-1} r``. The prior variance that maximizes the likelihood is ``r' K^{-1} r
    / n``, and the log likelihood is then ``-n/2 log(r' K^{-1} r / n) - 1/2 log det K``, up to a
    constant.

    ``p`` is near 1/2 half way between a value and a failure. The score of a query is

        ``Phi((p(x) - t) / 0.1)``  with  ``t = 1 - 1 / (2 (1 + F / 4))``

    after failures that cost ``F`` evaluations. At first ``t`` is near 1/2, so the search halves its
    distance to a failing region with each query, as the best point may be on the border of the
    region. With a larger ``F`` it stays closer to successful queries.

    Args:
        X: Queries, ``n x d``, that have failed or returned a value.
        failed: For each query a boolean, or a degree of failure in [0, 1], of shape ``n``. At least
            one query has failed.
        bounds: The box, ``2 x d``.
        cost: ``F``, the number of evaluations that the failures have cost.
    """

    def __init__(self, X: Tensor, failed: Tensor, bounds: Tensor, cost: float) -> None:
        self.bounds = bounds
        self.X = normalize(X, bounds)
        self.failures = self.X[failed.to(self.X) == 1.0]
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
        """The predicted labels ``p`` at the points ``X``, ``batch_shape x d``: ``batch_shape``."""
        unit = normalize(X.to(self.bounds), self.bounds)
        k = _matern(pairwise_distances(unit, self.X) / self.lengthscale)
        return 1.0 + (k @ self.weights).squeeze(-1)

    def score(self, X: Tensor) -> Tensor:
        """The scores, in [0, 1], of the points ``X``, ``batch_shape x d``: ``batch_shape``.

        A score is used as a factor of the gain that is expected at the point.
        """
        return torch.special.ndtr((self.predict(X) - self.threshold) / WIDTH)

    def are_at_border(self, X: Tensor) -> Tensor:
        """Return, for each point of ``X``, ``n x d``, whether a failure is near (see `BORDER`)."""
        return are_near(normalize(X, self.bounds), self.failures).any(dim=-1)

    def safest(self, X: Tensor) -> Tensor:
        """Return the point of ``X``, ``n x d``, with the largest predicted label, of shape ``d``.

        Points at the border of a failure are left out, unless all points are at a border.
        """
        near = self.are_at_border(X)
        return X[self.predict(X).masked_fill(near & ~near.all(), -math.inf).argmax()]


class FeasibleAcquisition(AcquisitionFunction):
    """An acquisition function that values a failure as much as a ``poor`` outcome.

    At each point, let ``a`` be the value of ``acqf`` and ``s`` the score of ``feasibility``, in
    [0, 1]. If ``poor`` is a number, it is in units of ``a``: ``a > poor`` becomes ``poor + s (a -
    poor)``, and ``a <= poor`` stays. If ``poor`` is None, ``a`` must be the logarithm of an
    improvement, and becomes ``a + log(s)``.
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
    """The queries ``n x d`` of all trials in the ``wanted`` states at ``now``, ordered by id."""
    return ledger.queries(now)[are_among(ledger.statuses(now), wanted)]


def have_failed(points: Tensor, failed: Tensor, bounds: Tensor) -> Tensor:
    """Return whether each point repeats a failed query (see `SAME`), of shape ``batch_shape``.

    The points are ``batch_shape x d``, the failed queries ``n x d``, and the bounds ``2 x d``.
    """
    scale = bounds[1] - bounds[0]
    return is_any_of(points / scale, failed / scale, SAME)


def poor_value(ledger: FeedbackLedger, now: float) -> float:
    """The mean of the values observed by ``now``, minus their standard deviation.

    If the objective is minimized, the values are negated first, so a smaller result is worse.
    """
    _, Y = ledger.to_observations(now)
    return float((Y if ledger.maximize else -Y).mean() - Y.std())


def with_failures_imputed(
    model: Model, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
) -> Model:
    """Return the model, conditioned on imputed values of lost queries if the strategy imputes them.

    An imputed value is the worse of `poor_value` and the model's prediction. Under a nonlinear
    outcome transform, the mean and the standard deviation in `poor_value` are those of the targets,
    and the result is transformed back. The worst observed value would distort a smooth model near
    the failing region, where the best point may be. With the mean of the values, the search would
    return to the region two or three times as often.
    """
    lost = queries_in(ledger, now, *strategy.lost_statuses)
    if not len(lost) or not strategy.imputes_failures:
        return model
    X, sign = like(model, lost), 1.0 if ledger.maximize else -1.0
    process, poor = observed_process(model), X.new_tensor(poor_value(ledger, now))
    with torch.no_grad():
        mean, _ = mean_and_deviation(process, X)
        if not has_affine_outcomes(process):  # the poor value may be outside its domain
            known, Y = (like(process, values) for values in ledger.to_observations(now))
            here, there = (with_task_feature(process, points) for points in (X, known))
            targets = outcome_map_of(process, there).latent(Y)
            poor = targets.mean() - sign * targets.std()
            poor = sign * outcome_map_of(process, here).outcome(poor.expand(len(X), 1))
        values = sign * (sign * mean).clamp(max=poor)
        return with_observations(model, X, values)


def feasibility_of(
    ledger: FeedbackLedger, now: float, strategy: DelayStrategy, bounds: Tensor
) -> Feasibility | None:
    """The model of failures at ``now``; None without lost queries, or if failures are ignored.

    A pending query with a predicted label ``p < SAFE`` counts as a failure to the degree ``min(1,
    RISK (1 - p))``. If pending queries did not count, ten workers would try one border at once, and
    up to nearly twice as many queries would fail. If all of them counted fully, failures unrelated
    to the query would drive the search away from the best pending queries.
    """
    statuses = ledger.statuses(now)
    lost = are_among(statuses, strategy.lost_statuses)
    if strategy.failures == "ignore" or not lost.any():
        return None
    has_value = are_among(statuses, (TrialStatus.OBSERVED,))
    is_pending = are_among(statuses, (TrialStatus.PENDING,))
    X, known = ledger.queries(now), lost | has_value
    # A failure costs one evaluation. If it took longer than every value, it costs more, in
    # proportion to its time, which is measured as a number of queries.
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
    """Whether the next query must keep away from failures, after many queries near failures.

    A count starts at 0 after the best query. Each later query, pending or not, adds 1 to the count
    if it is lost or was within `BORDER` of a query that is lost and was submitted earlier.
    Otherwise it subtracts 1, down to 0. The result is whether the count has reached `PATIENCE`. If
    the next query then keeps away from failures and does not fail, at most ``(PATIENCE + T) / 2``
    of ``T`` successive queries are near failures or fail, and at most `PATIENCE` in a row.
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
    """Indices of the trials that hang: far more later trials than usual have overtaken them.

    A later trial overtakes an earlier trial if the later trial's value has arrived, and the earlier
    trial's value has not, or not before it. If ``W`` evaluations of similar length run in parallel,
    fewer than ``W`` of them overtake the same trial, while every evaluation that other workers
    finish overtakes a hanging trial. A trial without a value hangs if more than ``W + 4 M`` trials
    have overtaken it. Here ``W`` is the largest number of trials that were without a value at the
    same time, since the trial was submitted. ``M`` is the largest number of trials that have
    overtaken a trial with a value, and increases with the spread of the evaluations' lengths. Only
    the order of times matters, so pauses between evaluations have no effect.

    Trials that are merely slow seldom hang by this rule. In the tests at most 10 of 1,800 trials do
    for a while, with log-normal lengths (``sigma`` of 0.5 and 1) and two, four or twenty workers.

    Args:
        submitted: Times of submission, ``n``, in increasing order.
        arrived: Times of arrival of the values, ``n``; infinity for trials without a value.
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
    late = {i: count for i in pending if (count := overtaken(i)) > widest[i]}
    most = max(map(overtaken, known), default=0) if late else 0
    return [i for i, count in late.items() if count > widest[i] + OVERDUE * most]


def hanging(ledger: FeedbackLedger, now: float) -> list[int]:
    """Ids of the pending trials of a ledger at ``now`` that hang, by the rule of `hanging_places`.

    The rule compares only pending trials and trials with values. Trials that have failed or expired
    are left out, and so are trials whose value was recorded at their submission.
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
        # A value that arrives after ``now`` has no time of arrival in `trials_at`.
        [math.inf if trial.observed_at is None else trial.observed_at for trial in trials],
    )
    return [trials[place].id for place in places]


def with_hanging_failed(ledger: FeedbackLedger, now: float) -> FeedbackLedger:
    """Return the ledger or, if trials hang (`hanging`), a copy in which they have failed.

    A hanging trial stays pending if its value is recorded ahead of time, as in simulations.
    """
    late = hanging(ledger, now)
    if not late:
        return ledger
    copy = ledger.snapshot()
    for trial_id in late:
        with suppress(TrialStateError):
            copy.fail(trial_id, "hangs", now)
    return copy

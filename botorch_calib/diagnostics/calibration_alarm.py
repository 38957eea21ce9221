r"""`CalibrationAlarm`: a sequential test of predicted probabilities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.posteriors import TorchPosterior
from torch import Tensor

from botorch_calib._validation import (
    check_bounds,
    check_open_unit,
    check_pairs,
    check_positive,
    check_tensor,
    check_unit_interval,
)
from botorch_calib.exceptions import warn
from botorch_calib.models.predict import outcome_posterior
from botorch_calib.posteriors import normal_scores

# Each bet is on an event, a tail with one of these predicted probabilities, and on the ratio of the
# event's true odds to its predicted odds, one of `_ODDS`. A bet on the upper half of a distribution
# equals a bet on the lower half with the inverse ratio, so 0.5 is listed for the lower half only.
_TAILS = {"below": (0.05, 0.1, 0.25, 0.5), "above": (0.05, 0.1, 0.25), "both": (0.1, 0.2, 0.5)}
_EVENTS = [(side, p) for side, masses in _TAILS.items() for p in masses]
# Share of an event's probability that is in the lower tail. An event occurs if the probability
# integral transform is below its row of `_LOW` or above its row of `_HIGH`.
_LOWER = {"below": 1.0, "above": 0.0, "both": 0.5}
_LOW = torch.tensor([[_LOWER[side] * p] for side, p in _EVENTS], dtype=torch.double)
_HIGH = torch.tensor([[1.0 - (1.0 - _LOWER[side]) * p] for side, p in _EVENTS], dtype=torch.double)
_ODDS = (0.25, 0.5, 2.0, 4.0)


class Finding(NamedTuple):
    """The strongest evidence that an alarm has found against the predictions.

    Attributes:
        event: The event that occurs too often or too rarely.
        stated: The predicted probability of the event.
        met: The share of outcomes in the region for which the event occurred.
        region: The region of the inputs.
        wealth: The wealth of the best bet on this event in this region, at most ``e^700``.
    """

    event: str
    stated: float
    met: float
    region: str
    wealth: float

    def __str__(self) -> str:
        return f"{self.event}: stated {self.stated:.3g}, met {self.met:.3g} {self.region}"


class CalibrationAlarm:
    r"""Sequential test that raises an alarm once bets against predictions have won enough.

    Let ``F_x`` be the predicted distribution function of the outcome ``y`` at the point ``x``. If
    the predictions are right, the probability integral transform (PIT) ``u = F_x(y)`` is uniform
    given the past, however points are chosen. Let an event ``A`` (``u`` is in a lower tail, in an
    upper tail, or in one of both) have the predicted probability ``p``. A bet that the odds of
    ``A`` are ``k`` times the predicted odds multiplies its wealth by ``r / p`` if ``A`` occurs, and
    by ``(1 - r) / (1 - p)`` otherwise, with ``r / (1 - r) = k p / (1 - p)``. There is a bet for
    each combination of event, factor ``k`` and region: the whole box, or one half of the box along
    one input. Each call of `observe` is a round. A share ``1 / (s (s + 1))`` of the initial wealth
    of each bet is first bet in round ``s``, so that late changes are detected too. The total wealth
    is the weighted mean over all bets. Bets on the whole box have half of the weight (without
    ``bounds``, the whole weight).

    **Proof.** If the predictions are right, each factor of the wealth has mean 1 given the past,
    since ``P(A) = p``. So the wealth is a nonnegative martingale that starts at 1, and the
    probability that it ever reaches ``1 / false_alarm`` is at most ``false_alarm`` (Ville's
    inequality). The wealth may be checked after each outcome. Outcomes that are passed in one call,
    predicted by the same model, may be dependent: their factors are averaged, and the average also
    has mean 1.

    **Counts and rounded values.** ``F_x(y)`` is uniform only for continuous outcomes: with a
    correct model of Poisson counts, 16 % of runs raised the alarm. A random number between
    ``P(outcome < y)`` and ``P(outcome <= y)`` is uniform for all outcomes: pass both probabilities
    to `observe`, or the ``grid`` to `watch`.

    Use predictions made before the outcomes were known: call the alarm before the model learns from
    the outcomes. The bound on false alarms does not hold for an alarm that `calibration_report`
    replays over training data.

    Args:
        false_alarm: Largest probability of ever raising the alarm if all predictions are right.
        bounds: A box ``2 x d``. The halves of the box along each input are regions in addition to
            the whole box (default: a single region, of all points).

    Example:
        >>> alarm = CalibrationAlarm(false_alarm=0.05)
        >>> for _ in range(60):
        ...     raised = alarm.observe(torch.tensor([0.999]))  # a PIT: the outcome was far too high
        >>> raised
        True
    """

    def __init__(self, false_alarm: float = 0.05, bounds: Tensor | None = None) -> None:
        self.false_alarm = check_open_unit("false_alarm", false_alarm)
        self.bounds = None if bounds is None else check_bounds(bounds).detach().cpu().double()
        stated = torch.tensor([p for _, p in _EVENTS], dtype=torch.double).view(-1, 1, 1)
        odds = torch.tensor(_ODDS, dtype=torch.double).view(-1, 1) * stated / (1.0 - stated)
        bet = odds / (1.0 + odds)
        # Factors of the wealth if the event occurs and if it does not, of shape events x odds x 1.
        # The last dimension is for regions.
        self._if_met, self._if_not = bet / stated, (1.0 - bet) / (1.0 - stated)
        regions = 1 if self.bounds is None else 1 + 2 * self.bounds.shape[-1]
        # Logarithm of the part of each bet's wealth that has been bet. The wealth itself would
        # overflow in long runs.
        self._bets = torch.full((*odds.shape[:2], regions), -torch.inf, dtype=torch.double)
        self._counts = torch.zeros(len(_EVENTS), regions, dtype=torch.double)
        self._seen = torch.zeros(regions, dtype=torch.double)
        # Weights of the regions: bets on the whole box, region 0, have half of the weight.
        self._stakes = torch.full((regions,), 0.5 / max(regions - 1, 1), dtype=torch.double)
        self._stakes[0] = 1.0 if regions == 1 else 0.5
        #: Wealth after each call of `observe`, capped at e^700.
        self.history: list[float] = []
        #: The strongest evidence when the alarm was raised; None before the alarm.
        self.finding: Finding | None = None
        #: Number of the `observe` call that raised the alarm, from 1; None before the alarm.
        self.raised_at: int | None = None
        # Points, with their outcomes, passed to `watch` when no grid was given
        self._watched: set[tuple[float, ...]] = set()
        self._has_warned = False

    @property
    def raised(self) -> bool:
        """Whether the alarm has been raised, after any outcome so far."""
        return self.finding is not None

    @property
    def wealth(self) -> float:
        """The present wealth; the alarm is raised once it reaches ``1 / false_alarm``."""
        return self.history[-1] if self.history else 1.0

    @torch.no_grad()
    def observe(self, pits: Tensor, X: Tensor | None = None, below: Tensor | None = None) -> bool:
        """Record outcomes, given as probability integral transforms (PITs).

        Args:
            pits: PITs ``n`` in [0, 1], from predictions made before the outcomes were known: the
                predicted probability of a value of at most the outcome.
            X: The points ``n x d`` of the outcomes, required if the alarm has ``bounds``.
            below: For outcomes on a grid, the predicted probabilities ``n`` of a value below the
                outcome. PyTorch's generator then draws PITs uniformly between ``below`` and
                ``pits``.

        Returns:
            Whether the alarm has been raised, by these or by earlier outcomes.

        Raises:
            InputDataError: If a value is outside [0, 1], or ``below`` exceeds ``pits``.
        """
        u = check_unit_interval("pits", pits).detach().cpu().double().reshape(-1)
        if below is not None:
            least = check_unit_interval("below", below).detach().cpu().double().reshape(-1)
            if least.shape != u.shape or bool((least > u).any()):
                raise InputDataError("`below` must hold a probability of at most each of `pits`.")
            u = least + torch.rand_like(u) * (u - least)
        within = self._regions_of(X, len(u))
        if not len(u):
            return self.raised
        met = (u < _LOW) | (u > _HIGH)  # events x n
        hit = met.view(len(_EVENTS), 1, 1, -1)
        factors = torch.where(hit, self._if_met.unsqueeze(-1), self._if_not.unsqueeze(-1))
        factors = torch.where(within, factors, 1.0).mean(dim=-1)
        t = len(self.history) + 1
        start = -torch.tensor(t * (t + 1), dtype=torch.double).log()
        self._bets = torch.logaddexp(self._bets, start) + factors.log()
        self._counts += (met.unsqueeze(1) & within).sum(dim=-1)
        self._seen += within.sum(dim=-1)
        share = self._stakes / self._bets[..., 0].numel()
        not_started = -torch.tensor(t + 1, dtype=torch.double).log()
        wealth = torch.logaddexp(self._bets, not_started) + share.log()
        self.history.append(_exp(wealth.flatten().logsumexp(dim=0)))
        if self.finding is None and self.wealth >= 1.0 / self.false_alarm:
            self.finding, self.raised_at = self.suspicion, t
        return self.raised

    @torch.no_grad()
    def watch(self, model: Any, X: Tensor, Y: Tensor, grid: float | None = None) -> bool:
        """Record outcomes, and compare them with a model's predictions.

        Args:
            model: A model of one outcome that has not seen ``Y``. Its posterior of observations is
                assumed to be normal before the model's outcome transform, unless the posterior has
                a ``cdf`` or `normal_scores`.
            X: Points ``n x d``.
            Y: Outcomes ``n x 1`` at these points.
            grid: The distance between possible outcomes if they lie on a grid, such as 1 for
                counts (None: outcomes are continuous). The predicted probability of an outcome is
                then the probability of the interval that extends half of this distance to both
                sides.

        Returns:
            Whether the alarm has been raised, by these or by earlier outcomes.

        Raises:
            UnsupportedError: If the model has several outputs, or is an ensemble.

        Warns:
            CalibrationWarning: Once, if many outcomes at different points are equal and ``grid`` is
                None.
        """
        check_pairs(X, Y)
        posterior = outcome_posterior(model, X.unsqueeze(-2))
        if posterior.mean.shape != (len(X), 1, 1):
            raise UnsupportedError(
                "`model` must predict one outcome with one distribution, got a "
                f"{type(model).__name__} with several: pass probability integral transforms to "
                "`observe`."
            )

        def cdf(values: Tensor) -> Tensor:
            if hasattr(type(posterior), "cdf"):
                return posterior.cdf(values)
            if type(posterior) is TorchPosterior:  # not its Gaussian subclass
                return torch.special.ndtr(normal_scores(posterior).latent(values))
            return torch.special.ndtr((values - posterior.mean) / posterior.variance.sqrt())

        if grid is None:
            self._notice_ties(X, Y)
            return self.observe(cdf(Y.unsqueeze(-2)), X)
        half = 0.5 * check_positive("grid", grid)
        return self.observe(cdf(Y.unsqueeze(-2) + half), X, cdf(Y.unsqueeze(-2) - half))

    def _notice_ties(self, X: Tensor, Y: Tensor) -> None:
        """Warn once if many outcomes at different points are equal, as on a grid."""
        self._watched.update(map(tuple, torch.cat([X, Y], dim=-1).tolist()))
        num = len(self._watched)
        ties = num - len({row[-1] for row in self._watched})
        if not self._has_warned and ties >= max(3, num / 4):
            self._has_warned = True
            warn(
                f"{ties} of {num} outcomes equal outcomes at other points, while the bound on "
                "false alarms holds for continuous outcomes: pass the distance of possible "
                "outcomes, such as `grid=1.0` for counts, or the probabilities `below` to "
                "`observe`."
            )

    @property
    def suspicion(self) -> Finding:
        """The event and the region of the bet that has the largest wealth so far."""
        place, (_, odds, regions) = int(self._bets.argmax()), self._bets.shape
        event, region = place // (odds * regions), place % regions
        side, p = _EVENTS[event]
        text = {
            "below": f"outcomes below the {p:.3g}-quantile",
            "above": f"outcomes above the {1 - p:.3g}-quantile",
            "both": f"outcomes outside the central {1 - p:.3g} interval",
        }[side]
        met = self._counts[event, region] / self._seen[region].clamp_min(1.0)
        return Finding(text, p, float(met), self._name_of(region), _exp(self._bets.max()))

    def _regions_of(self, X: Tensor | None, num: int) -> Tensor:
        """Whether each of ``num`` points lies in each region, as booleans ``regions x num``.

        The regions are the whole box and, with ``bounds``, its lower and then its upper halves.
        """
        everywhere = torch.ones(1, num, dtype=torch.bool)
        if self.bounds is None:
            return everywhere
        if X is None or check_tensor("X", X).shape != (num, self.bounds.shape[-1]):
            raise BotorchTensorDimensionError(
                f"`X` must have shape {num} x {self.bounds.shape[-1]}, as there are `bounds`, got "
                f"{None if X is None else tuple(X.shape)}."
            )
        upper = (X.detach().cpu().double() > self.bounds.mean(dim=0)).mT
        return torch.cat([everywhere, ~upper, upper])

    def _name_of(self, region: int) -> str:
        if region == 0 or self.bounds is None:
            return "everywhere"
        column, is_upper = (region - 1) % self.bounds.shape[-1], region > self.bounds.shape[-1]
        middle = float(self.bounds[:, column].mean())
        return f"where input {column} is {'above' if is_upper else 'at most'} {middle:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and text for ``json.dumps``, with the wealth after each call."""
        return {
            "false_alarm": self.false_alarm,
            "raised_at": self.raised_at,
            "finding": self.finding and self.finding._asdict(),
            "wealth": [*self.history],
        }

    def __str__(self) -> str:
        if self.finding is not None:
            return f"Calibration alarm in round {self.raised_at}: {self.finding}"
        return (
            f"No calibration alarm after {len(self.history)} rounds: wealth {self.wealth:.3g} of "
            f"{math.ceil(1.0 / self.false_alarm)}"
        )

    __repr__ = __str__


def replayed_alarm(pits: Tensor, X: Tensor | None, bounds: Tensor | None) -> CalibrationAlarm:
    """Return an alarm that has observed the ``pits``, ``n``, one by one.

    With ``bounds``, ``2 x d``, the points ``X``, ``n x d``, are needed. Otherwise ``X`` is ignored.
    """
    alarm = CalibrationAlarm(bounds=bounds)
    places = [None] * len(pits) if X is None or bounds is None else X.cpu().split(1)
    for pit, place in zip(pits.cpu().split(1), places, strict=True):
        alarm.observe(pit, place)
    return alarm


def _exp(log_wealth: Tensor) -> float:
    """Return the wealth, given its logarithm, but at most e^700, to avoid an overflow."""
    return math.exp(min(float(log_wealth), 700.0))

"""`RemainingGainRule`: stops a run when little is left to gain."""

from __future__ import annotations

from botorch.exceptions.errors import UnsupportedError

from botorch_calib._validation import check_count, check_instance, check_positive
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.asynchronous.proposer import DelayAwareProposer
from botorch_calib.decisions import RemainingGain, remaining_gain
from botorch_calib.decisions.remaining_gain import check_paths
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models.inspection import like


class RemainingGainRule:
    """A ``stop`` of `AsynchronousOptimizer.run`: at most ``eps`` is to be gained, by the model.

    It asks `remaining_gain` of the proposer's model of the values that have arrived, over the box
    or the choices of the proposer; pending queries state nothing. The answer follows from the
    ledger alone, so a run that was interrupted stops as well, and one that was stopped stays so.

    Args:
        proposer: Of the run. Calibrated, by its ``fit``, it states a calibrated bound.
        eps: In units of the objective.
        delta: Probability, in (0, 1), with which more may be gained.
        every: It is judged after so many values, which takes about as long as a choice.
        min_values: Number of values before which it does not stop (default: ten for each feature).
        num_paths: As in `remaining_gain`: at least ``3 / delta``.

    Attributes:
        gain: The last answer of `remaining_gain`, whose candidate is the point to stop at; None
            before.

    Raises:
        InputDataError: If an argument is malformed.
        UnsupportedError: If the proposer's fixed features are a function: what may be gained
            depends on the next context.

    Example:
        >>> rule = RemainingGainRule(DelayAwareProposer(bounds), eps=0.05)
        >>> rule(ledger)  # as `AsynchronousOptimizer.run` asks it: after two values it is too early
        False
    """

    gain: RemainingGain | None = None

    def __init__(
        self,
        proposer: DelayAwareProposer,
        eps: float,
        delta: float = 0.05,
        every: int = 5,
        min_values: int | None = None,
        num_paths: int = 128,
    ) -> None:
        self.proposer = check_instance("proposer", proposer, DelayAwareProposer)
        if callable(proposer.fixed_features):
            raise UnsupportedError(
                "What may be gained depends on the next context: `fixed_features` of the "
                "`proposer` must be values, not a function."
            )
        self.eps = check_positive("eps", eps)
        self.delta, self.num_paths = check_paths(delta, num_paths)
        self.every = check_count("every", every)
        least = 10 * proposer.dim if min_values is None else min_values
        self.min_values = check_count("min_values", least, 2)
        self._num_judged = 0

    def __call__(self, ledger: FeedbackLedger) -> bool:
        """Whether to stop; False between its turns."""
        ledger = ledger.snapshot()
        num = len(ledger.to_observations()[1])
        due = num // self.every > self._num_judged // self.every or not self._num_judged
        if num < self.min_values or not due:
            return False
        self._num_judged = num
        model, proposer = self.proposer.model(ledger), self.proposer
        is_box = proposer.choices is None
        points = proposer.bounds if is_box else proposer.choices
        domain = like(model, with_features(points, proposer.fixed_features or {}))
        self.gain = remaining_gain(
            model,
            **({"bounds": domain} if is_box else {"choices": domain.unique(dim=0)}),
            num_paths=self.num_paths,
            maximize=ledger.maximize,
        )
        return self.gain.bound(self.delta) <= self.eps

"""`EvaluationLimits`: how long an evaluation may take, what is retried, when a run gives up."""

from __future__ import annotations

from dataclasses import dataclass

from botorch_calib._validation import check_count, check_positive


@dataclass(frozen=True)
class EvaluationLimits:
    """When an `AsynchronousOptimizer` gives up an evaluation, a trial or the whole run.

    Args:
        timeout: Longest duration of an evaluation in seconds, or None for no limit.
        max_retries: How often a trial that was lost with its worker is run again.
        max_consecutive_failures: How many failures in a row end the run with an error.
        evaluations_per_process: Number of evaluations after which a process of ``workers`` is
            replaced, such as 1 if the objective leaks memory; None to keep it.
        longest_without_workers: Seconds without workers of a Dask cluster after which the run ends
            with an error; None to wait for ever.

    Example:
        >>> limits = EvaluationLimits(timeout=60.0, max_retries=2)  # for `AsynchronousOptimizer`
    """

    timeout: float | None = None
    max_retries: int = 1
    max_consecutive_failures: int = 10
    evaluations_per_process: int | None = None
    longest_without_workers: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("timeout", "longest_without_workers"):
            if (seconds := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_positive(name, seconds))
        counts = {"max_retries": 0, "max_consecutive_failures": 1}
        if self.evaluations_per_process is not None:
            counts["evaluations_per_process"] = 1
        for name, least in counts.items():
            object.__setattr__(self, name, check_count(name, getattr(self, name), least))

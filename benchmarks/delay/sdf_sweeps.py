"""Suite `sdf_sweeps`: regret by the mean delay, and by how long a value is waited for.

Figure 1 of Verma, Dai and Low (2022) is of a draw of a Gaussian process: (a) GP-UCB-SDF for Poisson
delays with several means, m being twice the mean, and (b) for several m, the mean being 10. The
text names m = 20 and m = 40 of (b), the mean of 10 that all other experiments have, and no further
values. A value whose delay exceeds m never arrives: at a mean of 10 that is 93 % of them for m = 5,
42 % for m = 10 and 0.2 % for m = 20.

The problems are those of suite `delay` but for these two numbers, and so are the methods. Values
that are later than m are withheld from all methods, baselines included.
"""

from __future__ import annotations

from benchmarks.delay import objectives
from benchmarks.delay.replicate import DelayedTask
from benchmarks.framework.collected import Pair, Run
from botorch_calib.test_functions.delayed import PoissonDelay

# Mean delay and m: first m is twice the mean, then the mean is 10.
BY_MEAN = ((2, 4), (5, 10), (10, 20), (20, 40))
BY_WAIT = ((10, 5), (10, 10), (10, 40))


def name_of(mean: int, max_wait: int) -> str:
    """The name of a problem."""
    return f"mean_{mean}_m_{max_wait}"


def tasks() -> tuple[DelayedTask, ...]:
    """A task for each mean delay and m."""
    return tuple(
        DelayedTask(
            name_of(mean, max_wait), objectives.gp_sample(), PoissonDelay(float(mean)), max_wait
        )
        for mean, max_wait in (*BY_MEAN, *BY_WAIT)
    )


def axes() -> dict[str, dict[str, str]]:
    """The problems at each value of the two numbers."""
    by_wait = sorted({*BY_WAIT, (10, 20)})
    return {
        "mean delay, m being twice as long": {str(p[0]): name_of(*p) for p in BY_MEAN},
        "m, the mean delay being 10": {str(p[1]): name_of(*p) for p in by_wait},
    }


def _against(first: tuple[int, int], second: tuple[int, int]) -> Pair:
    """GP-UCB-SDF on two problems."""
    return Run(name_of(*first), "ucb_sdf"), Run(name_of(*second), "ucb_sdf")


# Does it lose by longer delays and by a small m, and not by a large one? Is it better than the rule
# that ignores delays?
PRIMARY: tuple[Pair, ...] = (
    _against((20, 40), (10, 20)),
    _against((10, 20), (5, 10)),
    _against((5, 10), (2, 4)),
    _against((10, 5), (10, 20)),
    _against((10, 10), (10, 20)),
    _against((10, 40), (10, 20)),
    *((Run(task.name, "ucb_sdf"), Run(task.name, "ucb")) for task in tasks()),
)

"""The demonstration, ``python -m benchmarks.demo``: under three minutes on two cores.

Each part shows one promise of the package: posteriors whose stated coverage is true
(`demo.coverage`), good decisions while evaluations are running (`demo.delays`), decisions robust to
a context that nobody controls (`demo.robustness`), and limits that are kept as often as stated
(`demo.decisions`). A part prints its results with their uncertainty, favourable or not, and writes
its pictures before the next part begins.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from benchmarks.demo import coverage, decisions, delays, robustness
from benchmarks.demo.common import Budget, Figures
from benchmarks.framework.runner import one_torch_thread, without_expected_warnings

PARTS: dict[str, tuple[str, Callable[[Budget], Figures]]] = {
    "coverage": (coverage.TITLE, coverage.run),
    "delays": (delays.TITLE, delays.run),
    "robustness": (robustness.TITLE, robustness.run),
    "decisions": (decisions.TITLE, decisions.run),
}
INTERRUPTED = 130  # exit status of a process that ctrl-C has ended


def build_parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        metavar="PART",
        help=f"only these parts: {', '.join(PARTS)}",
    )
    parser.add_argument("--seeds", type=int, default=6, help="repetitions of each method")
    parser.add_argument(
        "--iterations", type=int, default=25, help="evaluations of each run (coverage)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"largest number of queries of each run (delays: {delays.ROUNDS}, robustness: "
        f"{robustness.ROUNDS}, decisions: {decisions.ROUNDS})",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), metavar="FOLDER")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    budget = Budget(args.seeds, args.iterations, args.rounds, args.jobs)
    if min(args.seeds, args.iterations, args.jobs, budget.rounds_of(1)) < 1:
        parser.error("--seeds, --iterations, --rounds and --jobs must be at least 1")
    matplotlib.use("Agg")
    start = time.perf_counter()
    try:
        run_demo([name for name in PARTS if name in (args.only or PARTS)], budget, args.output)
    except KeyboardInterrupt:
        print("\ninterrupted: the pictures of finished parts are kept", file=sys.stderr)
        return INTERRUPTED
    print(f"finished in {time.perf_counter() - start:.0f} s")
    return 0


def run_demo(parts: Sequence[str], budget: Budget, output: Path) -> None:
    """Run the named parts, print their results and write their pictures into ``output``."""
    for name in parts:
        title, run = PARTS[name]
        print(f"{title}\n{'=' * len(title)}\n", flush=True)
        with one_torch_thread(), without_expected_warnings():
            figures = run(budget)
        paths = write_figures(figures, output)
        print("\nPictures: " + ", ".join(map(str, paths)) + "\n", flush=True)


def write_figures(figures: Figures, output: Path) -> list[Path]:
    """Write the figures into a folder, which is created if it does not exist, and close them."""
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(output / name, dpi=150)
        plt.close(figure)
    return [output / name for name in figures]


if __name__ == "__main__":
    sys.exit(main())

"""Command line: ``python -m benchmarks {list,run,report,archive,perf,gpu,support}``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.framework.report import FIGURES_DIR, TABLES_DIR, Selection, write_report
from benchmarks.framework.runner import StaleResultsError, parse_seeds, print_summary, run_suite
from benchmarks.framework.stored_results import ARCHIVES_DIR, RESULTS_DIR, ResultStore
from benchmarks.framework.suite import Suite
from benchmarks.suites import SUITES, get_suite


def build_parser() -> argparse.ArgumentParser:
    """The command-line parser; ``call`` of its result runs the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="list suites, problems and methods")
    listed.set_defaults(call=list_command)

    run = commands.add_parser("run", help="run the replicates that are missing")
    run.set_defaults(call=run_command)
    _add_store(run)
    run.add_argument("--problems", nargs="+", metavar="NAME", help="only these problems")
    run.add_argument("--methods", nargs="+", metavar="NAME", help="only these methods")
    run.add_argument("--jobs", type=int, default=1, help="worker processes")
    run.add_argument("--overwrite", action="store_true", help="run outdated results again")

    report = commands.add_parser("report", help="write the table and the figure of a suite")
    report.set_defaults(call=report_command)
    _add_store(report)
    report.add_argument("--tables", type=Path, default=TABLES_DIR, metavar="FOLDER")
    report.add_argument("--figures", type=Path, default=FIGURES_DIR, metavar="FOLDER")
    report.add_argument(
        "--without", nargs="+", default=(), metavar="METHOD", help="leave out methods"
    )

    archive = commands.add_parser("archive", help="add results to the committed archive")
    archive.set_defaults(call=archive_command)
    _add_store(archive)

    perf = commands.add_parser("perf", help="measure speed ratios")
    perf.set_defaults(call=perf_command)
    perf.add_argument("--device", default="cpu", help="cpu or cuda")
    perf.add_argument("--json", action="store_true", help="print JSON instead of a table")
    perf.add_argument(
        "--only", nargs="+", metavar="PART", help="only comparisons whose name contains PART"
    )

    support = commands.add_parser("support", help="test which models are supported, write tables")
    support.set_defaults(call=support_command)
    gpu = commands.add_parser("gpu", help="measure large batches on a device; writes gpu.md")
    gpu.set_defaults(call=gpu_command)
    gpu.add_argument("--device", default="cuda", help="cuda, or cpu to try it out")
    gpu.add_argument("--small", action="store_true", help="tiny sizes, to try it out")
    gpu.add_argument("--tables", type=Path, default=TABLES_DIR, metavar="FOLDER")
    return parser


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--seeds", type=parse_seeds, help="such as 0:30; by default the suite's")
    parser.add_argument("--results", type=Path, default=RESULTS_DIR, metavar="FOLDER")
    parser.add_argument(
        "--archives",
        type=Path,
        default=ARCHIVES_DIR,
        metavar="FOLDER",
        help="folder of archives; replicates in them are not run again",
    )


def restrict(
    suite: Suite[Any, Any], problems: Sequence[str] | None, methods: Sequence[str] | None
) -> Suite[Any, Any]:
    """The suite with only the named problems and methods."""
    known = {p.name for p in suite.problems} | {m.name for m in suite.methods}
    unknown = sorted({*(problems or ()), *(methods or ())} - known)
    if unknown:
        raise ValueError(f"Suite {suite.name!r} has no {unknown}; it has {sorted(known)}.")
    kept = tuple(m for m in suite.methods if methods is None or m.name in methods)
    return replace(
        suite,
        problems=tuple(p for p in suite.problems if problems is None or p.name in problems),
        methods=kept,
        baseline=suite.baseline if suite.baseline in {m.name for m in kept} else kept[0].name,
    )


def run_command(args: argparse.Namespace) -> int:
    """Run a suite; the exit status is 1 if a replicate failed."""
    suite = get_suite(args.suite)
    if suite.protocol is not None:
        protocol = ExperimentProtocol.load(suite.protocol)
        protocol.check(suite)
        print(*protocol.lines(), sep="\n")
    summary = run_suite(
        restrict(suite, args.problems, args.methods),
        ResultStore(args.results, args.archives),
        args.seeds,
        jobs=args.jobs,
        overwrite=args.overwrite,
    )
    print_summary(summary)
    return 1 if summary.failures else 0


def list_command(args: argparse.Namespace) -> int:
    """Print the registry."""
    for suite in SUITES.values():
        print(suite.name)
        print("  problems:", ", ".join(problem.name for problem in suite.problems))
        print("  methods: ", ", ".join(method.name for method in suite.methods))
        print(f"  seeds:    {suite.seeds.start}:{suite.seeds.stop}, baseline {suite.baseline}")
        if suite.protocol is not None:
            print(f"  protocol: {suite.protocol}")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Write and print the report of a suite."""
    store = ResultStore(args.results, args.archives)
    selection = Selection(args.seeds, tuple(args.without))
    print(write_report(get_suite(args.suite), store, args.tables, args.figures, selection))
    return 0


def archive_command(args: argparse.Namespace) -> int:
    """Write the archive of a suite."""
    store = ResultStore(args.results, args.archives)
    print(store.archive(get_suite(args.suite), args.seeds))
    return 0


def perf_command(args: argparse.Namespace) -> int:
    """Measure speed ratios."""
    from benchmarks.perf import command

    return command.main(args.device, as_json=args.json, only=args.only)


def gpu_command(args: argparse.Namespace) -> int:
    """Measure large batches."""
    from benchmarks.perf import gpu

    return gpu.main(args.device, args.tables, small=args.small)


def support_command(args: argparse.Namespace) -> int:
    """Find out which models are supported."""
    from benchmarks.support.matrix import run_matrix, write

    write(run_matrix())
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        status: int = args.call(args)
    except (StaleResultsError, FileNotFoundError, ValueError) as error:
        if args.command not in ("run", "report", "archive"):
            raise
        print(error, file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())

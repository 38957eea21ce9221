"""The command line of all studies: options, resumed runs, and the report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.framework.report import TABLES_DIR
from benchmarks.framework.runner import one_torch_thread, parse_seeds
from benchmarks.framework.stored_results import RESULTS_DIR, cut_incomplete_line, write_atomically


def study_parser(
    command: str, document: str | None, seeds: Iterable[int]
) -> argparse.ArgumentParser:
    """A parser with the options of every study.

    Args:
        command: The command that runs the study.
        document: The study's docstring, whose first line is shown.
        seeds: The default seeds.
    """
    parser = argparse.ArgumentParser(prog=command, description=str(document).split("\n")[0])
    parser.add_argument("--seeds", type=parse_seeds, default=[*seeds], help="as 1000:1010")
    parser.add_argument("--tables", type=Path, default=TABLES_DIR, metavar="FOLDER")
    return parser


def run_study(
    command: str,
    document: str | None,
    seeds: Iterable[int],
    cells: Sequence[Mapping[str, str]],
    run: Callable[[Mapping[str, str], int], Mapping[str, Any]],
    report: Callable[[list[dict[str, Any]]], str],
    argv: Sequence[str] | None = None,
) -> int:
    """Run the missing runs of a study, print and write its report, and return the exit status.

    The files of runs and of the report have the name of the study's module. For other arguments
    see `study_parser` and `resumed_runs`.

    Args:
        report: Maps all runs to the text of the report.
        argv: Command-line arguments (default: the arguments of the process).
    """
    name = command.rpartition(".")[2]
    parser = study_parser(command, document, seeds)
    parser.add_argument("--results", type=Path, default=RESULTS_DIR / f"{name}.jsonl")
    args = parser.parse_args(argv)
    text = report(resumed_runs(args.results, args.seeds, cells, run))
    print(text)
    write_atomically(args.tables / f"{name}.md", text)
    return 0


def resumed_runs(
    path: Path,
    seeds: Sequence[int],
    cells: Sequence[Mapping[str, str]],
    run: Callable[[Mapping[str, str], int], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The runs of all cells with all seeds. Runs that are in ``path`` are not run again.

    Args:
        path: A file with a line of JSON for each run, to which each new run is added when it ends.
            An incomplete last line is removed, and its run is run again.
        seeds: The seeds.
        cells: The settings of each run of a seed.
        run: Maps a cell and a seed to the results that are stored with them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as stored:
        cut_incomplete_line(stored)
    lines = path.read_text(encoding="utf-8").splitlines()
    runs = [each for each in map(json.loads, lines) if each["seed"] in seeds]
    with one_torch_thread(), path.open("a", encoding="utf-8") as file:
        for seed in seeds:
            for cell in cells:
                own = {"seed": seed, **cell}
                if any(own.items() <= each.items() for each in runs):
                    continue
                runs.append({**own, **run(cell, seed)})
                print(json.dumps(runs[-1]), file=file, flush=True)
    return runs

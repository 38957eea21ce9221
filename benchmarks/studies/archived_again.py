"""Does the code still give the numbers that the archives hold?

    python -m benchmarks run SUITE --seeds A:B --archives EMPTY_FOLDER --results FOLDER
    python -m benchmarks.studies.archived_again FOLDER

The first command is given for each suite, and the second one compares all that is in the folder.

* A run is the *same* if all that the archive keeps of it agrees, wall times aside: flags exactly,
  and numbers, which archives hold rounded, to a relative 0.002.
* Others have *parted*: sequential experiments are chaotic, so a last digit that moved can part two
  runs for good. The first round is stated in which any number differs, and by how much parted runs
  are worse: their regret, or lost reward, averaged over the rounds, less that in the archive, in
  standard deviations over the archive's seeds of the same problem and method. The interval is
  Student's, over parted runs.
* Runs that the archive does not hold with the same configuration are left out, and counted.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.framework.archive import Archive, Entry, ReplicateKey, read_archive
from benchmarks.framework.condensation import decode
from benchmarks.framework.markdown import interval, table
from benchmarks.framework.report import TABLES_DIR
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import ARCHIVES_DIR, write_atomically
from benchmarks.suites import SUITES

TOLERANCE = 2e-3
# What says how good a run was: the first one that an archive keeps, and its sign.
MEASURES = {
    "regret_by_outcome": 1.0,
    "regret_by_mean": 1.0,
    "regret": 1.0,
    "mean_reward": -1.0,
    "reward": -1.0,
}
WORSE = "parted: worse by"
HEAD = ["suite", "seeds", "runs", "the same", "parted in round", WORSE, "95 % interval"]


def traces(kept: Mapping[str, Any]) -> dict[str, Any]:
    """All that is kept of a run, wall times aside, by name."""
    named = {**{k: v for k, v in kept.items() if k not in ("seed", "extras")}, **kept["extras"]}
    return {k: decode(v) for k, v in named.items() if not k.endswith("_seconds") and v is not None}


def agree(one: float | None, other: float | None) -> bool:
    """Whether two numbers differ by no more than an archive's rounding."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-6)


def parted(new: Mapping[str, Any], old: Mapping[str, Any]) -> int | None:
    """The first round in which a trace differs, 0 if only what sums up a run does; None if none."""
    rounds = []
    for name in new.keys() | old.keys():
        pairs = zip_longest(new.get(name, []), old.get(name, []), fillvalue=math.nan)
        rounds += [i for i, pair in enumerate(pairs) if not agree(*pair)][:1]
    return min((i for i in rounds if i > 0), default=0) if rounds else None


def measure_of(named: Mapping[str, Any]) -> str:
    """What says how good a run was; what a suite does not have is kept without numbers."""
    return next(name for name in MEASURES if named.get(name))


def worse(new: Entry, archive: Archive) -> float:
    """How much worse a run is than in the archive, in standard deviations over its seeds."""
    problem, method, _ = new.key
    seeds = archive.seeds(problem, method)
    others = [archive.entries[ReplicateKey(problem, method, seed)] for seed in seeds]
    name = measure_of(traces(new.kept))
    values = [_mean(traces(entry.kept)[name]) for entry in others]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    change = _mean(traces(new.kept)[name]) - _mean(traces(archive.entries[new.key].kept)[name])
    return MEASURES[name] * change / spread if spread > 0.0 else math.nan


def _mean(trace: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in trace if value is not None)


def compared(suite: str, results: Sequence[Result], archive: Archive) -> list[str]:
    """The row of a suite."""
    same, rounds, changes, seeds, changed = 0, [], [], set(), 0
    for result in results:
        new = Entry.of(result, SUITES[suite].archive)
        old = archive.entries.get(new.key)
        if old is None or old.group.config_hash != new.group.config_hash:
            changed += 1
            continue
        seeds.add(result.seed)
        first = parted(traces(new.kept), traces(old.kept))
        if first is None:
            same += 1
            continue
        rounds.append(first)
        changes.append(worse(new, archive))
    known = [change for change in changes if not math.isnan(change)]
    runs = f"{same + len(rounds)}" + (f" (and {changed} others)" if changed else "")
    cells = ["–", "–", "–"]
    if rounds:
        cells[0] = f"{min(rounds)} to {max(rounds)}"
    if known:
        cells[1] = f"{statistics.fmean(known):+.2f}"
    if len(known) > 1:
        cells[2] = interval(known, "+.2f")
    return [suite, f"{min(seeds)} to {max(seeds)}" if seeds else "–", runs, f"{same}", *cells]


def markdown(results: Path, archives: Path) -> str:
    """The report on all suites that have results."""
    rows = []
    for suite in SUITES:
        archive = read_archive(archives, suite)
        files = sorted((results / suite).rglob("*.json"))
        if archive is not None and files:
            runs = [Result.from_json(file.read_text()) for file in files]
            rows.append(compared(suite, runs, archive))
    legend = (__doc__ or "").split("\n\n")[-1].strip()
    reproduce = "Reproduce with `python -m benchmarks.studies.archived_again FOLDER`."
    return "\n".join([reproduce, "", legend, "", *table(HEAD, rows), ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.archived_again")
    parser.add_argument("results", type=Path, help="the folder of results, a folder for each suite")
    parser.add_argument("--archives", type=Path, default=ARCHIVES_DIR, metavar="FOLDER")
    parser.add_argument("--tables", type=Path, default=TABLES_DIR, metavar="FOLDER")
    args = parser.parse_args(argv)
    report = markdown(args.results, args.archives)
    write_atomically(args.tables / "archived_again.md", report)
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

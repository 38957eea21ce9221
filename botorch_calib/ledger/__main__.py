"""The ledger for people at a bench: ``python -m botorch_calib.ledger COMMAND FILE``.

=========================== ===================================================================
command                     what it does
=========================== ===================================================================
``status FILE``             shows the best value, and what is waited for
``tell FILE ID Y``          records the value of a trial
``amend FILE ID Y``         replaces the value of a trial; the earlier one is kept
``salvage FILE``            prints what an intact part of a damaged file holds, as CSV
=========================== ===================================================================
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import BotorchError, InputDataError

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.salvage import renumbered, salvage
from botorch_calib.ledger.storage_in_memory import MemoryStorage
from botorch_calib.ledger.storage_on_disk import SQLiteStorage
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Trial, TrialStatus


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: The words of the command line, without the program (default: ``sys.argv``).

    Returns:
        The exit status: 0, or 1 after an error, which is printed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    # argparse takes a word like -1e-3 for an option, unless there is a space in it.
    options = _parser().parse_args([f" {word}" if _is_negative(word) else word for word in words])
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # such as by `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except (BotorchError, OSError) as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)  # SQLite's may be several lines
        return 1
    return 0


def _is_negative(word: str) -> bool:
    """Whether a word is a number with a minus sign."""
    try:
        float(word)
    except ValueError:
        return False
    return word.startswith("-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m botorch_calib.ledger", description="Read and write a ledger by hand."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", type=Path, help="the ledger")
        command.set_defaults(run=run)
        return command

    add("status", _status, "show the best value, and what is waited for")
    for name, run, text in (
        ("tell", _tell, "record the value of a trial"),
        ("amend", _amend, "replace the value of a trial; the earlier one is kept"),
    ):
        command = add(name, run, text)
        command.add_argument("id", type=int, help="the trial's number")
        command.add_argument("y", type=float, help="its value")
        command.add_argument("--yvar", type=float, help="the variance of its noise, where known")
    command = add("salvage", _salvage, "print what an intact part of a damaged file holds")
    command.add_argument("--into", type=Path, metavar="NEW", help="make a new ledger of it")
    return parser


def _open(options: argparse.Namespace) -> FeedbackLedger:
    if not options.file.is_file():  # a slip of the pen must not make a new ledger
        raise InputDataError(f"There is no file {options.file}.")
    return FeedbackLedger.open(options.file)


def _status(options: argparse.Namespace) -> None:
    ledger = _open(options).snapshot()
    trials = ledger.trials
    counts = Counter(trial.status for trial in trials)
    states = ", ".join(f"{counts[status]} {status}" for status in TrialStatus if counts[status])
    print(f"{len(trials)} trials" + (f": {states}" if states else ""))
    best = ledger.best()
    if best is not None:
        print(f"{'greatest' if ledger.maximize else 'least'} value {best.y!r}: {_shown(best)}")
    for trial in trials:
        if trial.status is TrialStatus.PENDING:
            print(f"pending: {_shown(trial)}")


def _shown(trial: Trial) -> str:
    return f"trial {trial.id}, x = {trial.x.tolist()}"


def _tell(options: argparse.Namespace) -> None:
    ledger = _open(options)
    ledger.tell(options.id, options.y, options.yvar)
    print(f"{_shown(ledger[options.id])}: y = {options.y!r}")


def _amend(options: argparse.Namespace) -> None:
    ledger = _open(options)
    ledger.amend(options.id, options.y, options.yvar)
    trial = ledger[options.id]
    print(f"{_shown(trial)}: y = {trial.y!r}, in the place of {trial.earlier[-1].y!r}")


def _salvage(options: argparse.Namespace) -> None:
    found = salvage(options.file)
    entries = renumbered(found.entries)
    if options.into is not None:
        try:
            options.into.touch(exist_ok=False)  # an empty file counts as none
        except FileExistsError:
            raise InputDataError(f"The file {options.into} exists already.") from None
        given = {name: value for name, value in asdict(found.settings).items() if value is not None}
        try:
            storage = SQLiteStorage.create_or_open(options.into, given)
            storage.append(lambda count, clock: entries)
        except BaseException:  # as of a full disk: what is left would stop the next attempt
            options.into.unlink(missing_ok=True)
            raise
    table = Table(found.settings.dim)
    table.write(entries)
    table.latest = found.latest
    ledger = FeedbackLedger._of(MemoryStorage(table, found.settings))
    writer = csv.writer(sys.stdout)
    for i, record in enumerate(ledger.to_records()):
        if i == 0:
            writer.writerow(record)
        writer.writerow({**record, "id": found.entries[i].id}.values())
    print(f"{len(entries)} trials are intact.", file=sys.stderr)
    if found.missing:
        print(f"Lost: {', '.join(map(str, found.missing))}.", file=sys.stderr)
    if found.header is None:
        print("The settings are lost, and maybe trials after the last one.", file=sys.stderr)
    if options.file.with_name(f"{options.file.name}-journal").exists():
        print("There is a journal: maybe the last change was not completed.", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

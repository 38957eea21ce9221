"""The command line of a ledger: ``python -m botorch_calib.ledger --help`` lists its commands."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import BotorchError, InputDataError

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.salvage import salvage
from botorch_calib.ledger.trials import Trial, TrialStatus


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: ``sys.argv``), and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    # argparse takes a word like -1e-3 for an option, unless there is a space in it.
    options = _parser().parse_args([f" {word}" if _is_negative(word) else word for word in words])
    try:
        text = options.run(options)
    except (BotorchError, OSError) as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)  # SQLite's may be several lines
        return 1
    return 0 if _print(text) else 1


def _print(text: str) -> bool:
    """Print the output of a command; False if nobody can read it, which undoes nothing."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # such as by `head`
            print("error: done, but the output is lost:", error, file=sys.stderr)
        # Python flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


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

    add("status", _status, "show the best value and the pending trials")
    for name, record, text in (
        ("tell", FeedbackLedger.tell, "record the value of a trial"),
        ("amend", FeedbackLedger.amend, "replace the value of a trial; the earlier one is kept"),
    ):
        command = add(name, _record, text)
        command.set_defaults(record=record)
        command.add_argument("id", type=int, help="the trial's number")
        command.add_argument("y", type=float, help="its value")
        command.add_argument("--yvar", type=float, help="the variance of its noise, where known")
        text_of_outcomes = "outcomes of the constraints that decided about it (default: its value)"
        command.add_argument("--outcomes", type=float, nargs="+", help=text_of_outcomes)
        command.add_argument("--context", type=float, nargs="+", help="the context it came in")
    text = "make a new ledger of what a damaged file still holds"
    command = add("salvage", lambda options: salvage(options.file, options.new), text)
    command.add_argument("new", type=Path, help="the new ledger")
    return parser


def _status(options: argparse.Namespace) -> str:
    ledger = FeedbackLedger.read(options.file)
    trials = ledger.trials
    counts = Counter(trial.status for trial in trials)
    states = ", ".join(f"{counts[status]} {status}" for status in TrialStatus if counts[status])
    lines = [f"{len(trials)} trials" + (f": {states}" if states else "")]
    best = ledger.best()
    if best is not None:
        kind = "greatest" if ledger.maximize else "least"
        lines.append(f"{kind} value {best.y!r}: {_shown(best)}")
    if counts[TrialStatus.EXPIRED] and ledger.max_wait < math.inf:
        share, low, high = ledger.arrival_probability()
        known = "unknown" if math.isnan(share) else f"{share:.0%}"
        lines.append(
            f"values that come within {ledger.max_wait:g}: {known} (95 % interval {low:.0%} to "
            f"{high:.0%})"
        )
    lines += [f"pending: {_shown(t)}" for t in trials if t.status is TrialStatus.PENDING]
    return "".join(f"{line}\n" for line in lines)


def _shown(trial: Trial) -> str:
    return f"trial {trial.id}, x = {trial.x.tolist()}"


def _record(options: argparse.Namespace) -> str:
    if not options.file.is_file():  # a slip of the pen must not leave a lock's file
        raise InputDataError(f"There is no file {options.file}.")
    with FeedbackLedger.open(options.file) as ledger:
        more = {"outcomes": options.outcomes, "context": options.context}
        options.record(ledger, options.id, options.y, options.yvar, **more)
        trial = ledger[options.id]
    earlier = f", in the place of {trial.earlier[-1].y!r}" if trial.earlier else ""
    return f"{_shown(trial)}: y = {trial.y!r}{earlier}\n"


if __name__ == "__main__":
    sys.exit(main())

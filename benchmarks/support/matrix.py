"""The tables of supported models, on a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.support.models import ENTRIES, Entry
from benchmarks.support.trials import BOTORCHS, OPERATIONS, Verdict, verdict

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "support.md"
Verdicts = dict[str, dict[str, Verdict]]


def run_matrix(entries: Iterable[Entry] = ENTRIES) -> Verdicts:
    """The verdict on each operation of each model."""
    return {
        entry.name: {name: verdict(entry, act) for name, act in OPERATIONS.items()}
        for entry in entries
    }


def page(verdicts: Verdicts) -> str:
    """The page of the documentation with the tables of these verdicts."""
    notes: list[str] = []
    rows = [operations_row(entry, verdicts[entry.name], notes) for entry in ENTRIES]
    remedies = [remedy_row(entry, verdicts[entry.name]) for entry in ENTRIES]
    head = ["model", *OPERATIONS]
    tables = {
        "models": [
            short_table(verdicts),
            "",
            "| not supported | instead |",
            "|---|---|",
            *filter(None, remedies),
        ],
        "operations": [_row(head), _row(["---"] * len(head)), *filter(None, rows)],
        "notes": [f"{i + 1}. {note}" for i, note in enumerate(notes)],
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        before, start, rest = text.partition(f"<!-- {name}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->\n")
        text = "".join([before, start, *(f"{line}\n" for line in lines), end, after])
    return text


def short_table(verdicts: Verdicts) -> str:
    """A table of the models that are supported as a whole, and in part."""
    whole: list[str] = []
    part: list[str] = []
    for entry in ENTRIES:
        row = verdicts[entry.name].values()
        # Operations that fail for BoTorch's own model do not count.
        supported = [each.supported for each in row if not each.error.startswith(BOTORCHS)]
        if any(supported):
            (whole if all(supported) else part).append(entry.name)
    lines = [f"| {kind} | {_names(names)} |" for kind, names in (("all", whole), ("a part", part))]
    return "\n".join(["| supported | models |", "|---|---|", *lines])


def write(verdicts: Verdicts) -> None:
    """Write the page."""
    PAGE.write_text(page(verdicts), encoding="utf-8")


def operations_row(entry: Entry, verdicts: dict[str, Verdict], notes: list[str]) -> str:
    """The row of a model that is supported in part; new notes are added to ``notes``."""
    if len({each.supported for each in verdicts.values()}) == 1:
        return ""
    cells = []
    for each in verdicts.values():
        if each.supported:
            cells.append("yes")
            continue
        note = _note(entry, each)
        if note not in notes:
            notes.append(note)
        cells.append(f"no ({notes.index(note) + 1})")
    return _row([_names([entry.name]), *cells])


def remedy_row(entry: Entry, verdicts: dict[str, Verdict]) -> str:
    """The row with the remedy for a model that is not supported at all."""
    if any(each.supported for each in verdicts.values()):
        return ""
    return _row([_names([entry.name]), _note(entry, verdicts["wrap"])])


def _note(entry: Entry, each: Verdict) -> str:
    """The remedy, in the same words for all models."""
    if entry.instead or not each.error:
        return entry.instead
    # Leave out the reason, which differs between models.
    note = re.sub(r" \(.*\)(?=\. Use an exact GP)", "", each.error)
    note = re.sub(rf"{entry.name.split()[0]}|NoisyEnsemble", "model", note)
    return " ".join((note[0].upper() + note[1:]).split())


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" if " " not in name else name for name in names)

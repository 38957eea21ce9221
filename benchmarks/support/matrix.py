"""The table of verdicts, in the README and on a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.support.models import ENTRIES, Entry
from benchmarks.support.trials import BOTORCHS, OPERATIONS, Verdict, verdict

ROOT = Path(__file__).parents[2]
#: The page of the documentation, and the file with the short table.
PAGE, README = ROOT / "docs" / "guides" / "support.md", ROOT / "README.md"

START, END = "<!-- support: begin -->", "<!-- support: end -->"
Verdicts = dict[str, dict[str, Verdict]]


def run_matrix(entries: Iterable[Entry] = ENTRIES) -> Verdicts:
    """The verdict on each operation of each model."""
    return {
        entry.name: {name: verdict(entry, act) for name, act in OPERATIONS.items()}
        for entry in entries
    }


def page(verdicts: Verdicts) -> str:
    """The page of the documentation."""
    notes: list[str] = []
    rows = [table_row(entry, verdicts[entry.name], notes) for entry in ENTRIES]
    head = ["model", *OPERATIONS]
    table = [_row(head), _row(["---"] * len(head)), *rows]
    numbered = [f"{i + 1}. {note}" for i, note in enumerate(notes)]
    return "\n".join([*_INTRODUCTION, "", *table, "", *numbered, ""])


def short_table(verdicts: Verdicts) -> str:
    """The models of the README, by whether all is supported, part of it or nothing."""
    whole: list[str] = []
    part: list[str] = []
    none: list[str] = []
    for entry in ENTRIES:
        row = verdicts[entry.name].values()
        # What BoTorch's own model cannot do either says nothing about us.
        supported = [each.supported for each in row if not each.error.startswith(BOTORCHS)]
        (whole if all(supported) else part if any(supported) else none).append(entry.name)
    kinds = {"everything": whole, "in part": part, "not at all": none}
    lines = [f"| {kind} | {_names(names)} |" for kind, names in kinds.items() if names]
    return "\n".join(["| supported | models |", "|---|---|", *lines])


def write(verdicts: Verdicts) -> None:
    """Write both tables."""
    PAGE.write_text(page(verdicts), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    table = short_table(verdicts)
    README.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


_INTRODUCTION = (
    "# Which models are supported",
    "",
    "This table is made by running every model class of BoTorch, and of its community package,",
    "against every operation: `python -m benchmarks support`. A test fails when it is out of date.",
    "Where an operation is not supported, an error names an alternative; the notes quote it.",
    "",
    "* *wrap*: {any}`CalibratedModel` around the model, or {any}`CalibratedModelList` where it has",
    "  several outcomes, predicts.",
    "* *replay*: `from_history`, where the training data teach the calibrator.",
    "* *observe*: new observations teach the calibrator; *condition*: the model takes them in",
    "  without a refit.",
    "* *fantasize*: as for pending points and look-ahead.",
    "* *sample*: joint samples, and BoTorch's Monte Carlo acquisition functions.",
    "* *closed-form EI*: {any}`LogCalibratedExpectedImprovement`, of a single outcome.",
    "* *chance constraint*: {any}`ChanceConstraint`.",
    "* *report*: {any}`calibration_report` on new data.",
)


def table_row(entry: Entry, verdicts: dict[str, Verdict], notes: list[str]) -> str:
    """The row of a model; notes that are not among ``notes`` are added to them."""
    cells = []
    for each in verdicts.values():
        if each.supported:
            cells.append("yes")
            continue
        note = _note(entry, each)
        if note not in notes:
            notes.append(note)
        cells.append(f"no ({notes.index(note) + 1})")
    return _row([f"`{entry.name}`" if " " not in entry.name else entry.name, *cells])


def _note(entry: Entry, each: Verdict) -> str:
    """What to do instead, in the same words for all models."""
    name = entry.name.split()[0]
    note = each.error.replace(name, "model") if each.error else ""
    return " ".join((entry.instead or note).split())


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" if " " not in name else name for name in names)

"""Protocols: files, written before the results, that state what an experiment compares and how.

A protocol is ``benchmarks/protocols/NAME.md``: a header that is read here, and a text for readers.
The header has the hash of the configurations that are to be run. A suite that names a protocol is
neither run nor reported under another hash, so that a later change of a problem or a method is
detected. Deviations are appended to the text's last section, ``## Deviations``, and every report
shows them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.framework.config import config_hash, describe
from benchmarks.framework.replicate_result import Run
from benchmarks.framework.stored_results import BENCHMARKS_DIR
from benchmarks.framework.suite import Suite

PROTOCOLS_DIR = BENCHMARKS_DIR / "protocols"

FENCE = "---"
DEVIATIONS = "## Deviations"
# A replicate as the runner names it if it raises an error
_REPLICATE = re.compile(r"`([^`/]+)/([^`/]+)/seed (\d+)`")


class ProtocolError(ValueError):
    """Raised if a protocol cannot be read, or if a suite does not agree with its protocol."""


@dataclass(frozen=True)
class ExperimentProtocol:
    """The entries of a protocol's header, and its deviations.

    Args:
        suite: Name of the suite.
        configuration: `configuration_hash` of the suite.
        seeds: The seeds of the experiment; the header has them as ``first:last+1``.
        endpoint: The one primary endpoint.
        comparison: The methods that are compared with each other, and the problems.
        test: The test of each comparison.
        correction: The correction for the number of comparisons.
        margin: The smallest difference in the primary endpoint that matters.
        deviations: Deviations from the protocol, as text; empty if there are none.
        name: Name of the file, without its suffix.
    """

    suite: str
    configuration: str
    seeds: range
    endpoint: str
    comparison: str
    test: str
    correction: str
    margin: float
    deviations: str
    name: str

    @classmethod
    def load(cls, name: str, folder: Path = PROTOCOLS_DIR) -> ExperimentProtocol:
        """Read a protocol by its name.

        Raises:
            ProtocolError: If the protocol does not exist, or its header is malformed.
        """
        path = folder / f"{name}.md"
        if not path.exists():
            raise ProtocolError(f"There is no protocol {name!r}: {path.name} is missing.")
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines.count(FENCE) < 2 or lines[0] != FENCE:
            raise ProtocolError(f"Protocol {name!r} must begin with a header between {FENCE!r}.")
        end = lines.index(FENCE, 1)
        header = _header(name, lines[1:end])
        text = "\n".join(lines[end + 1 :])
        try:
            seeds, margin = _seeds(header.pop("seeds")), float(header.pop("margin"))
        except ValueError as error:
            raise ProtocolError(f"Protocol {name!r}: {error}") from None
        if not 0.0 < margin < math.inf:
            raise ProtocolError(f"Protocol {name!r}: the margin must be positive, got {margin}.")
        return cls(
            **header, seeds=seeds, margin=margin, deviations=_deviations(name, text), name=name
        )

    def check(self, suite: Suite[Any, Any]) -> None:
        """Raise `ProtocolError` unless the suite has the name, hash and seeds of the protocol."""
        present = configuration_hash(suite)
        if suite.name != self.suite:
            raise ProtocolError(
                f"Protocol {self.name!r} is for suite {self.suite!r}, not {suite.name!r}."
            )
        if present != self.configuration:
            raise ProtocolError(
                f"Suite {suite.name!r} has the configuration {present}, but its protocol "
                f"{self.name!r} was written for {self.configuration}. A suite that was changed "
                "needs a protocol of its own; one without results may still be corrected."
            )
        if suite.seeds != self.seeds:
            raise ProtocolError(
                f"Suite {suite.name!r} runs {suite.seeds}, its protocol {self.name!r} says "
                f"{self.seeds}."
            )

    def missing(self) -> dict[Run, set[int]]:
        """Seeds without a result, by run: the replicates that the deviations name.

        They are those that raised an error each time they were run.
        """
        seeds: dict[Run, set[int]] = {}
        for problem, method, seed in _REPLICATE.findall(self.deviations):
            seeds.setdefault(Run(problem, method), set()).add(int(seed))
        return seeds

    def lines(self, left_out: Sequence[str] = ()) -> list[str]:
        """A summary of the protocol, as lines of markdown.

        Args:
            left_out: Names of methods that a report leaves out, which is a deviation.
        """
        deviations = [f"`{method}` is left out of this report." for method in left_out]
        deviations += [self.deviations] if self.deviations else []
        return [
            # No link, because pages in other folders include these lines.
            f"Protocol `benchmarks/protocols/{self.name}.md`, configuration "
            f"`{self.configuration}`:",
            "",
            f"- seeds: {self.seeds.start} to {self.seeds.stop - 1}",
            f"- primary endpoint: {self.endpoint}",
            f"- comparison: {self.comparison}",
            f"- test: {self.test}",
            f"- correction: {self.correction}",
            f"- smallest difference that matters: {self.margin:g}",
            f"- deviations: {' '.join(deviations) or 'none'}",
        ]


def configuration_hash(suite: Suite[Any, Any]) -> str:
    """A hash of a suite's problems, methods and baseline."""
    return config_hash(
        {
            "problems": [describe(problem) for problem in suite.problems],
            "methods": [describe(method) for method in suite.methods],
            "baseline": suite.baseline,
        }
    )


def margin_of(suite: Suite[Any, Any]) -> float:
    """The smallest difference of the primary endpoint that matters, by the suite's protocol.

    Raises:
        ValueError: If the suite has no protocol.
    """
    if suite.protocol is None:
        raise ValueError(f"Suite {suite.name!r} has no protocol, which would state a margin.")
    return ExperimentProtocol.load(suite.protocol).margin


_DERIVED = ("deviations", "name")


def _header(name: str, lines: list[str]) -> dict[str, str]:
    """The entries ``key: value`` of a header; an indented line continues the previous value."""
    entries: dict[str, str] = {}
    key = ""
    for line in lines:
        if line.startswith(" ") and key:
            entries[key] += f" {line.strip()}"
            continue
        key, colon, value = line.partition(":")
        if not colon or key in entries:
            raise ProtocolError(f"Protocol {name!r}: cannot read {line!r} in its header.")
        entries[key] = value.strip()
    expected = {field.name for field in fields(ExperimentProtocol)} - set(_DERIVED)
    if entries.keys() != expected or not all(entries.values()):
        given = sorted(key for key, value in entries.items() if value)
        raise ProtocolError(f"Protocol {name!r} states {given}, not {sorted(expected)}.")
    return entries


def _seeds(text: str) -> range:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"seeds must be a range such as 10000:10050, got {text!r}.")
    return range(int(match[1]), int(match[2]))


def _deviations(name: str, text: str) -> str:
    """The text below the heading ``## Deviations``, as one line; empty if it is ``None.``."""
    _, heading, after = text.partition(f"\n{DEVIATIONS}\n")
    if not heading:
        raise ProtocolError(f"Protocol {name!r} has no section {DEVIATIONS!r}.")
    found = " ".join(after.split())
    return "" if found == "None." else found

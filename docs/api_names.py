"""The names that the pages of ``docs/api`` document: for the builder, and for a test of them."""

import re
from collections.abc import Iterator
from pathlib import Path

MODULE = re.compile(r"\.\. (?:currentmodule|automodule|module):: (\S+)")
DIRECTIVE = re.compile(r"\.\. (?:autodata|py:data):: (\S+)")
# An entry of an autosummary: an indented name alone on its line.
ENTRY = re.compile(r"   +~?([A-Za-z_][\w.]*)$")


def documented_names(folder: Path) -> list[str]:
    """Full paths of all names with an entry in the pages of a folder."""
    return [name for page in sorted(folder.glob("*.md")) for name in _names_of(page)]


def _names_of(page: Path) -> Iterator[str]:
    module = ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if match := MODULE.match(line):
            module = match[1]
        elif match := DIRECTIVE.match(line) or ENTRY.match(line):
            yield f"{module}.{match[1]}"

"""Helpers for tests of the README and of the documentation."""

import gc
import re
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Otherwise this is a source distribution, which lacks most archives of results.
IN_CHECKOUT = (ROOT / ".git").exists()


def python_blocks(page: Path) -> list[str]:
    """The Python blocks of a Markdown page, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def run_blocks(page: Path) -> dict[str, Any]:
    """Run the blocks of a page one after another, as a reader would who pastes them.

    Returns:
        The names that they define.
    """
    gc.freeze()  # BayBE collects garbage 56 times on import, and need not visit what exists
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), names)
    return names

"""The README is short, its links lead somewhere, and its example runs as printed."""

import torch

from tests.documentation import ROOT, python_blocks, run_blocks

README = ROOT / "README.md"


def test_examples_run() -> None:
    """By themselves: they define their data."""
    assert len(python_blocks(README)) == 2
    candidate = run_blocks(README)["candidate"]
    assert isinstance(candidate, torch.Tensor)
    assert candidate.shape == (1, 2)
    assert ((candidate >= 0) & (candidate <= 1)).all()


def test_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150

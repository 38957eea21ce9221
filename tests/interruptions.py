"""Calls that are interrupted halfway."""

from __future__ import annotations

from typing import Any

import pytest


def fail_second_call(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Let a function of a module return once, and then raise ``RuntimeError("interrupted")``."""
    function, found = getattr(module, name), iter([True, False])

    def fails_the_second_time(*args: Any) -> Any:
        if next(found):
            return function(*args)
        raise RuntimeError("interrupted")

    monkeypatch.setattr(module, name, fails_the_second_time)

"""BoTorch's search with a version of SciPy that its L-BFGS-B does not support, such as 1.18."""

from __future__ import annotations

from typing import Any

import pytest
from botorch.generation import gen


def search_by_scipy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let SciPy search from now on; return the growing list of its numbers of variables."""
    sizes: list[int] = []
    minimize = gen.minimize_with_timeout

    def counted(*, x0: Any, **kwargs: Any) -> Any:
        sizes.append(x0.size)
        return minimize(x0=x0, **kwargs)

    monkeypatch.setattr(gen, "check_scipy_version_at_least", lambda minor: True)
    monkeypatch.setattr(gen, "minimize_with_timeout", counted)
    return sizes

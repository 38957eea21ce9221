"""What tests of several clients share."""

from typing import Any

import botorch.optim.fit
import pytest
from botorch.optim.core import scipy_minimize


@pytest.fixture
def short_fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits end early. Slow tests judge where a run ends, which takes whole fits."""
    if request.node.get_closest_marker("slow") is not None:
        return

    def stopped(*args: Any, **settings: Any) -> Any:
        return scipy_minimize(*args, **{**settings, "options": {"maxiter": 10}})

    monkeypatch.setattr(botorch.optim.fit, "scipy_minimize", stopped)

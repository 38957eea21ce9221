"""What tests of several clients share."""

from typing import Any

import botorch.optim.fit
import pytest
from botorch.optim.core import scipy_minimize


@pytest.fixture
def short_fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits end early. Slow tests judge where a run ends, which takes whole fits."""

    def stopped(*args: Any, **settings: Any) -> Any:
        return scipy_minimize(*args, **{**settings, "options": {"maxiter": 10}})

    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(botorch.optim.fit, "scipy_minimize", stopped)

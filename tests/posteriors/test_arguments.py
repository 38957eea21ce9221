"""What is no number is named, whatever the posterior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_calib.posteriors import Prediction
from tests.posteriors.examples import make, make_points
from tests.posteriors.test_transformed import Exponential, transformed

X = make_points(q=2)
POSTERIORS: dict[str, Prediction] = {
    "calibrated": make("stretched", X),
    "observation": make("stretched", X, denoise=False),
    "transformed": transformed("stretched", X, Exponential()),
}
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("cdf", "value", {}),
    ("density", "value", {}),
    ("quantile", "value", {}),
    ("conditional_mean_below", "level", {}),
    ("expected_improvement", "best_f", {}),
    ("log_expected_improvement", "best_f", {}),
    ("probability_of_improvement", "best_f", {}),
    ("log_probability_between", "lower", {"upper": 1.0}),
    ("log_probability_between", "upper", {"lower": 0.0}),
    ("affine", "weight", {}),
    ("affine", "offset", {"weight": 1.0}),
]


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize(("method", "name", "others"), CALLS)
def test_what_is_no_number_is_named(
    kind: str, method: str, name: str, others: dict[str, Any]
) -> None:
    for value in ("1", [[1.0], []]):
        with pytest.raises(InputDataError, match=f"`{name}`"):
            getattr(POSTERIORS[kind], method)(**{name: value}, **others)


def test_scores_of_quantiles() -> None:
    with pytest.raises(InputDataError, match="`z` must be a number or a tensor"):
        POSTERIORS["observation"].at_score("1")  # type: ignore[arg-type]
    # They are of observations, whatever the prediction is of.
    z = torch.tensor([[-1.0], [40.0]], dtype=torch.double)
    observed, objective = (POSTERIORS[kind].at_score(z) for kind in ("observation", "calibrated"))
    assert torch.equal(observed, objective)
    for kind in POSTERIORS:
        at = POSTERIORS[kind].at_score(z / 2)
        torch.testing.assert_close(POSTERIORS[kind].score(at), (z / 2).expand_as(at))

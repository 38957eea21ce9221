"""The study of a failing region's border: its functions are as stated, and rows are counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies import failing_border as study


@pytest.mark.parametrize("name", study.PROBLEMS)
def test_where_the_best_point_lies(name: str) -> None:
    problem = study.PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(20_000, problem.dim, dtype=torch.double, generator=generator)
    border = study.NEAR * math.sqrt(problem.dim)
    away = [problem.value(x) for x in X if problem.outside(x) >= border]
    beside = [problem.value(x) for x in X if 0.0 <= problem.outside(x) < border]
    inside = [problem.value(x) for x in X if problem.outside(x) < 0.0]
    better, worse = (away, beside) if name in study.IN_VAIN else (beside, away)
    assert problem.best - 0.02 < max(better) < problem.best + 1e-3
    assert max(worse) < problem.best - 0.015 and max(inside) > max(beside)


def test_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first failure, until a better value or one away from the border comes."""
    asked = [0.49, 0.49, 0.7, 0.48, 0.7, 0.1, 0.49, 0.48, 0.7, 0.495, 0.48] + [0.1] * 29

    class Listed:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def __call__(self, ledger: Any) -> Tensor:
            return torch.tensor([asked[len(ledger)]])

    monkeypatch.setattr(study, "DelayAwareProposer", Listed)
    problem = study.Problem(1, float, lambda x: 0.5 - float(x), best=0.5)
    found = study.run(problem, math.inf, 0)
    assert (found["row"], found["in vain"], found["failures"]) == (3, 7, 3)
    # Near the earlier failure at 0.7, as the rule counts: none of 0.49 and 0.48 is.
    assert found["known row"] == 1
    assert found["gap"] == pytest.approx(0.005)


def test_the_report_is_on_whole_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def run(problem: study.Problem, patience: float, seed: int) -> dict[str, float]:
        with_rule = math.isfinite(patience)
        row = (3 if with_rule else 5) + seed % 2 * 2
        return {
            "row": row,
            "known row": row + 1,
            "in vain": row,
            "failures": next(calls) * 0,
            "gap": 0.1 * with_rule,
        }

    monkeypatch.setattr(study, "run", run)
    options = ["--tables", str(tmp_path), "--results", str(tmp_path / "runs.jsonl")]
    assert study.main(["--seeds", "1000:1002", *options]) == 0
    text = (tmp_path / "failing_border.md").read_text()
    assert "2 of 10 seeds" in text and "The longest row with the rule is 5" in text
    assert "less without it: -2.0 to -2.0;" in text and "less without it: 0.100 to 0.100;" in text
    # With the rule rows near failures are of 4 and of 6, which is more than 5 and no failures.
    assert "5 runs have a row near failures that is longer than 5" in text
    # Student's quantile for one degree of freedom is 12.7062, and the standard error 1.
    assert (
        "| hills | without | 6.0 ± 12.7 | 7 | 8 | 6.0 ± 12.7 | 0.0 ± 0.0 | 0.000 ± 0.000 |" in text
    )

"""The study of two theorems: its counts by another computation, and its table by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.utils.sampling import manual_seed

from benchmarks.framework.replicate import OBSERVE, PROPOSE, stream_seed
from benchmarks.studies import two_theorems as study
from benchmarks.theory import stated_gains


def test_a_search_of_the_plain_process_by_botorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected improvement of the posterior of an observation, by BoTorch."""
    monkeypatch.setattr(study, "ROUNDS", 6)
    problem = study.problems()["drawn"]["matern_1d"]
    oracle, bounds = problem.build(3), problem.bounds_tensor()
    X = problem.initial_design(problem.num_initial, 3)
    with manual_seed(stream_seed(3, OBSERVE)):
        Y = oracle.observe(X)
    stated, gains, beyond, misses = [], [], np.zeros(3, dtype=int), np.zeros(2, dtype=int)
    for step in range(6):
        gp = problem.surrogate(X, Y, bounds, step, None).eval()
        with manual_seed(stream_seed(3, PROPOSE, step)):
            candidates = torch.rand(256, 1, dtype=torch.double)
        with torch.no_grad():
            posterior: Any = gp.posterior(candidates.unsqueeze(-2), observation_noise=True)
        mean, sd = posterior.mean.flatten(), posterior.variance.sqrt().flatten()
        u = (mean - Y.max()) / sd
        normal = torch.distributions.Normal(0.0, 1.0)
        value = sd * (normal.log_prob(u).exp() + u * normal.cdf(u))
        best = value.argmax()
        with manual_seed(stream_seed(3, OBSERVE, step + 1)):
            y = oracle.observe(candidates[best : best + 1])
        z = (y - mean[best]) / sd[best]
        stated.append(value[best])
        gains.append((y - Y.max()).clamp(min=0.0))
        beyond += [int(normal.cdf(z) >= level) for level in (0.5, 0.8, 0.9)]
        f = oracle.truth(candidates[best : best + 1])
        reach = 1.2815515655446004
        misses += [int(abs(z) > reach), int(abs((f - mean[best]) / sd[best]) > reach)]
        X, Y = torch.cat([X, candidates[best : best + 1]]), torch.cat([Y, y])
    found = study.run(problem, study.MODELS["plain"](), 3)
    expected = stated_gains(torch.stack(stated), torch.cat(gains), study.RATIOS)
    assert found["reached"] == [round(6 * share) for share in expected.shares]
    assert found["above"] == beyond.tolist()
    assert [found["y_missed"], found["f_missed"]] == misses.tolist()
    assert found["evidence"] == pytest.approx(expected.evidence, rel=1e-6)


@pytest.mark.slow
def test_a_tiny_run_writes_the_table(tmp_path: Path, monkeypatch, capsys) -> None:
    every = study.problems()
    monkeypatch.setattr(
        study, "problems", lambda: {"drawn": {"matern_1d": every["drawn"]["matern_1d"]}}
    )
    monkeypatch.setattr(study, "ROUNDS", 3)
    options = ["--tables", str(tmp_path), "--results", str(tmp_path / "runs.jsonl")]
    for _ in range(2):
        assert study.main(["--seeds", "1000:1002", *options]) == 0
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 6
    text = (tmp_path / "two_theorems.md").read_text(encoding="utf-8")
    assert text.strip() in capsys.readouterr().out

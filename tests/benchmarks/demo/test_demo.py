"""Tiny runs of the demonstration, and the numbers that its part on coverage prints and draws."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.image
import pytest
import torch

from benchmarks.demo import __main__ as demo
from benchmarks.demo import interval_study
from benchmarks.demo.common import Budget
from benchmarks.suites import SUITES
from tests.long_grids import mostly_slow

# The pictures of each part.
PICTURES = {
    "coverage": ("regret.png", "reliability.png", "intervals.png"),
    "delays": ("delays.png",),
    "robustness": ("robustness.png",),
    "decisions": ("decisions.png",),
}
TEXTS = {
    "coverage": ("LOCBO", "BO with LogEI", "misses of 80 %", "kappa = 2"),
    "delays": ("GP-UCB-SDF", "UCB, ignoring delays", "GP-BUCB", "qLogEI", "2 queries"),
    "robustness": ("WDRBO, radius 0.1", "ERBO", "difference, run by run", "2 rounds"),
    "decisions": ("GP, reported errors", "reported, budget rule", "at most 2", "2 rounds"),
}


@pytest.mark.parametrize("part", mostly_slow(PICTURES, [*PICTURES][1:3]))
def test_each_part_alone_prints_its_tables_and_writes_its_pictures(
    part: str, tmp_path: Path, capsys
) -> None:
    sizes = ["--seeds", "1", "--iterations", "2", "--rounds", "2", "--jobs", "1"]
    folder = tmp_path / "new" / "folder"
    assert demo.main(["--only", part, *sizes, "--output", str(folder)]) == 0
    output = capsys.readouterr().out
    for text in (*TEXTS[part], *PICTURES[part]):
        assert text in output
    assert not re.search(r"\bnan\b", output)
    assert {path.name for path in folder.iterdir()} == set(PICTURES[part])
    for name in PICTURES[part]:
        picture = matplotlib.image.imread(folder / name)
        assert picture[..., :3].std() > 0.05, f"{name} is blank"


def test_demonstration_has_seeds_of_its_own() -> None:
    used = {seed for suite in SUITES.values() for seed in suite.seeds}
    assert used.isdisjoint(Budget(seeds=30).later_seeds())
    assert len(Budget(seeds=4).later_seeds()) == 4


def test_true_coverage_agrees_with_simulation() -> None:
    X, Y = interval_study.observations(seed=3, n=40)
    model = interval_study.calibrated(interval_study.fit(X, Y), kappa=2.0)
    points = interval_study.grid(5)
    expected = interval_study.true_coverage(model, points).squeeze(-1)
    low, high = interval_study.prediction_interval(model, points, interval_study.LEVEL)
    torch.manual_seed(0)
    num = 4000
    outcomes = interval_study.PROBLEM(points.expand(num, 5, 1))
    inside = (low.squeeze(-1) <= outcomes) & (outcomes <= high.squeeze(-1))
    # Four standard errors of a frequency.
    tol = 4 * (expected * (1 - expected) / num).sqrt() + 1e-9
    assert ((inside.double().mean(dim=0) - expected).abs() <= tol).all()

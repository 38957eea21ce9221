"""Campaigns of BayBE with a limited target and mixed parameters, killed, edited and looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("baybe")

from baybe import Campaign, active_settings
from baybe.objectives import ParetoObjective
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.recommenders import TwoPhaseMetaRecommender
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget

from botorch_calib.integrations.baybe import ChanceConstrainedRecommender

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUM_INITIAL, NUM_TRIALS, LIMIT = 16, 60, 2.0
NAMES = ["t", "p", "solvent"]


def measured(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Settings are exact up to a tolerance; pressure and yield rise with both settings."""
    rows = rows.assign(t=rows["t"] + rng.uniform(-0.4, 0.4, len(rows)))
    pressure = pressure_of(rows) + 0.05 * rng.standard_normal(len(rows))
    gain = rows["t"] / 60 + 0.5 * rows["p"] + 0.2 * (rows["solvent"] == "ethanol")
    return rows.assign(pressure=pressure, **{"yield": gain})


def pressure_of(rows: pd.DataFrame) -> pd.Series:
    """The pressure without noise."""
    more = rows["solvent"].map({"water": 0.0, "ethanol": 0.25, "acetone": 0.6})
    return rows["t"] / 40 + rows["p"] ** 2 + more


def new_campaign() -> Campaign:
    space = SearchSpace.from_product(
        [
            NumericalDiscreteParameter("t", range(20, 61, 2), tolerance=0.5),
            NumericalDiscreteParameter("p", np.linspace(0.0, 1.0, 6)),
            CategoricalParameter("solvent", ["water", "ethanol", "acetone"]),
        ]
    )
    targets = ParetoObjective(
        [NumericalTarget("yield"), NumericalTarget("pressure", minimize=True)]
    )
    recommender = ChanceConstrainedRecommender(limits={"pressure": (None, LIMIT)})
    phases = TwoPhaseMetaRecommender(recommender=recommender, switch_after=NUM_INITIAL)
    return Campaign(space, targets, phases, allow_recommending_already_recommended=True)


def recommender_of(campaign: Any) -> ChanceConstrainedRecommender:
    return campaign.recommender.recommender


def run(path: Path, seed: int, killed_at: int = -1) -> None:
    """Continue from the files up to the last trial; get killed during the trial ``killed_at``."""
    campaign = Campaign.from_json(path.read_text()) if path.exists() else new_campaign()
    if path.exists():  # with another range
        cold = pd.DataFrame({"t": [20, 22]})
        campaign.toggle_discrete_candidates(cold, exclude=True)
    log = path.with_suffix(".csv")  # a laboratory's log of the trials that were run
    if not log.exists():
        active_settings.random_seed = seed
        rng = np.random.default_rng(seed)
        campaign.add_measurements(measured(campaign.recommend(NUM_INITIAL), rng))
    done = pd.read_csv(log) if log.exists() else pd.DataFrame(columns=["pressure"])
    running, late = done[~is_in(done, campaign)].tail(1), len(done) + 4
    for number in range(len(done), NUM_TRIALS):
        rng = np.random.default_rng([seed, number])
        told = {"pending_experiments": running[NAMES]} if len(running) else {}
        if rng.random() < 0.25:
            campaign.recommend(1 + int(rng.integers(3)), **told)  # recommendations that are not run
        rows = campaign.recommend(1, **told)
        path.write_text(campaign.to_json())  # before the trial runs
        result = measured(rows, rng)
        decision = recommender_of(campaign).decisions[-1]
        entry = result.assign(certified=decision["certified"])
        entry.to_csv(log, mode="a", header=not log.exists(), index=False)
        if number == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        campaign.add_measurements(result)
        if number == late and len(running):
            campaign.add_measurements(running[[*NAMES, "yield", "pressure"]])
            running = running[:0]
        path.write_text(campaign.to_json())
        if rng.random() < 0.2:
            edit(campaign, rng, path.with_suffix(".table"))


def edit(campaign: Campaign, rng: np.random.Generator, path: Path) -> None:
    """Sort the table and read it back; remove a row, and perhaps enter it once more."""
    last = len(campaign.measurements) - 1
    campaign.measurements.drop(index=int(rng.integers(last))).sort_values("yield").to_csv(path)
    table = pd.read_csv(path, index_col=0)
    (removed,) = {*campaign.measurements.index} - {*table.index}
    row = campaign.measurements.loc[[removed]]
    campaign._measurements_exp = table
    if rng.random() < 0.5:
        campaign.add_measurements(row[[*NAMES, "yield", "pressure"]])


def is_in(log: pd.DataFrame, campaign: Campaign) -> pd.Series:
    """Whether the campaign has the result of each trial in the log."""
    return log["pressure"].round(9).isin(campaign.measurements["pressure"].round(9))


def test_books_and_violations(tmp_path: Path) -> None:
    certified = violations = 0
    for seed in range(3):
        path = tmp_path / f"{seed}.json"
        killed_at = int(np.random.default_rng(seed).integers(5, NUM_TRIALS - 10))
        command = [sys.executable, "-m", "tests.slow.test_baybe_certified_campaigns"]
        ended = subprocess.run([*command, str(path), str(seed), str(killed_at)], timeout=600)
        assert ended.returncode == -signal.SIGKILL
        run(path, seed)
        campaign: Any = Campaign.from_json(path.read_text())
        log = pd.read_csv(path.with_suffix(".csv"))
        assert len(log) == NUM_TRIALS
        log = log[log["certified"]]
        is_known = is_in(log, campaign)
        assert 0 < (~is_known).sum() < 8 < len(log)
        arguments = campaign.searchspace, campaign.objective, campaign.measurements
        made = recommender_of(campaign).chance_constraint(*arguments)
        found = made.num_certified, made.num_violations, made.num_outstanding
        beyond = log["pressure"] > LIMIT
        assert found == (len(log), (beyond & is_known).sum(), (~is_known).sum())
        assert beyond.sum() <= made.violation_bound(len(log))
        certified, violations = certified + len(log), violations + beyond.sum()
        candidate, stated = recommender_of(campaign).recommendation(campaign)
        assert stated.certified and pressure_of(candidate).item() + 0.064 <= LIMIT
    print(f"violated: {violations} of {certified}")
    assert certified > 90 and violations <= 0.11 * certified


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""Certified candidates in Xopt keep the bound even if the process dies and rows change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("xopt")

from botorch_calib.decisions.budget import Budget
from tests.slow.plausible_violations import most_violations

ROOT = Path(__file__).parents[2]
LIMIT, NUM = 1.0, 60

# The run continues from Xopt's file with another range, after it was killed during an evaluation.
# Sometimes rows are removed or sorted, settings are read back with an offset, or two evaluations
# run at a time.
SCRIPT = """
    import json, os, random, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    from xopt import VOCS, Evaluator, Xopt
    from botorch_calib.integrations.xopt import ChanceConstrainedGenerator, load_xopt

    folder, seed, until, fatal = sys.argv[1], *map(int, sys.argv[2:])
    file = f"{folder}/run.yaml"
    random.seed(seed)
    torch.manual_seed(seed)

    def evaluate(x):
        loss = x["a"] + x["b"] ** 2 + 0.3 * (x["c"] == 1.0) + random.gauss(0, 0.05)
        if fatal and len(X.generator.decisions) >= until:
            with open(f"{folder}/lost", "w") as lost:
                lost.write(" ".join(each["_id"] for each in X.generator.outstanding()))
            os._exit(9)
        return {"gain": x["a"] + 0.5 * x["b"] + 0.2 * x["c"], "loss": loss}

    if os.path.exists(file):
        X = load_xopt(file)
        X.evaluator = Evaluator(function=evaluate)
        for vocs in (X.vocs, X.generator.vocs):
            vocs.variables["a"].domain = [0.1, 1.2]
    else:
        vocs = VOCS(
            variables={"a": [0.0, 1.0], "b": [0.0, 1.0], "c": {0.0, 1.0, 2.0}},
            objectives={"gain": "MAXIMIZE"},
            constraints={"loss": ["LESS_THAN", 1.0]},
        )
        generator = ChanceConstrainedGenerator(
            vocs=vocs, raw_samples=128, num_restarts=2, books=f"{folder}/books"
        )
        evaluator = Evaluator(function=evaluate)
        X = Xopt(generator=generator, evaluator=evaluator, xopt_dump_file=file)
        X.random_evaluate(20, seed=seed)
    while len(X.generator.decisions) < until:
        first = X.generator.suggest(1) if random.random() < 0.2 else []  # while it runs
        X.step()
        if first:
            X.evaluate_data(first)
        if random.random() < 0.2:
            X.remove_data([i for i in range(len(X.data)) if X.data["_id"].isna()[i]][:1])
        if random.random() < 0.2:
            X.data = X.generator.data = X.data.sort_values("loss", ignore_index=True)
        if random.random() < 0.2:
            X.data["a"] = X.generator.data["a"] = X.data["a"].round(3) + 1e-3
    X.data.to_csv(f"{folder}/data.csv")
    print(json.dumps([X.generator.chance_constraint().account[:3], X.generator.decisions]))
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_runs(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    certified = violated = 0
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        middle = int(torch.randint(3, NUM - 3, (), generator=torch.Generator().manual_seed(seed)))
        for until, fatal in ((middle, 1), (NUM, 0)):
            done = subprocess.run(
                [sys.executable, str(script), str(folder), str(seed), str(until), str(fatal)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=1700,
            )
            assert done.returncode == 9 * fatal, done.stderr
        account, decisions = json.loads(done.stdout.splitlines()[-1])
        # Counted from Xopt's own table, by the decision about each id.
        decided = pd.DataFrame(decisions).set_index("_id")["certified"]
        data = pd.read_csv(folder / "data.csv")
        losses = data.dropna(subset="_id").set_index("_id")["loss"]
        own = losses.reindex(decided[decided].index)
        lost = {*(folder / "lost").read_text().split()}
        assert len(decided) >= NUM and {*decided.index} - {*losses.index} == lost
        assert 1 <= len(lost) <= 2
        T, V, out = len(own), int((own > LIMIT).sum()), int(own.isna().sum())
        assert account == [T, V, out]
        assert V + out <= Budget(0.9).bound(T)
        certified, violated = certified + T - out, violated + V
    print(f"violated: {violated} of {certified}")
    assert certified > 120 and violated <= most_violations(certified)

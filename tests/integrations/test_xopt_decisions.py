"""Chance constraints in Xopt: certified candidates, their books in Xopt's own files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("xopt")

from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from xopt import VOCS, Evaluator, Xopt
from xopt.generators.bayesian.models.standard import StandardModelConstructor

from botorch_calib import ChanceConstraint, optimize_chance_constrained
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations import _mixed_search
from botorch_calib.integrations.xopt import ChanceConstrainedGenerator, load_xopt
from tests.interruptions import fail_second_call

# As in test_xopt.py.
torch.set_default_dtype(torch.float32)

NUM_INITIAL = 8


@pytest.fixture(autouse=True)
def precision_of_xopt(default_precision: None) -> None:
    torch.set_default_dtype(torch.double)


pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:A point is not certified"),
]

CONTINUOUS: dict[str, Any] = {"a": [0.0, 1.0], "b": [-1.0, 1.0]}


def limited(inputs: dict[str, float]) -> dict[str, float]:
    """Large gains are beyond the limit of the loss, but for noise that depends on the place."""
    total = inputs["a"] + inputs["b"]
    noise = 0.2 * ((1e4 * total) % 1.0 - 0.5)
    return {"gain": total, "loss": total + noise, "room": inputs["a"]}


def stopped(inputs: dict[str, float]) -> dict[str, float]:
    """Beyond the limit of the loss, all that is known is that it was."""
    outcomes = limited(inputs)
    if outcomes["loss"] <= 0.5:
        return outcomes
    return {"gain": math.nan, "loss": 0.5, "loss_beyond": 1, "room": inputs["a"]}


def new_xopt(variables: Any = CONTINUOUS, **settings: Any) -> Xopt:
    """After the initial evaluations, without fits."""
    evaluator = Evaluator(function=settings.pop("function", limited))
    vocs = VOCS(
        variables=variables,
        objectives={"gain": "MAXIMIZE"},
        constraints=settings.pop("constraints", {"loss": ["LESS_THAN", 0.5]}),
    )
    generator = ChanceConstrainedGenerator(
        vocs=vocs,
        gp_constructor=StandardModelConstructor(train_model=settings.pop("train_model", False)),
        num_restarts=2,
        raw_samples=32,
        **settings,
    )
    torch.manual_seed(0)
    X = Xopt(generator=generator, evaluator=evaluator)
    X.random_evaluate(NUM_INITIAL, seed=0)
    return X


def counted(X: Xopt) -> tuple[int, int]:
    """Certified rows, and those that violate the limit of the loss."""
    rows = X.data.iloc[NUM_INITIAL:]
    certified = [each["certified"] for each in X.generator.decisions]
    violated = [c and loss > 0.5 for c, loss in zip(certified, rows["loss"], strict=True)]
    return sum(certified), sum(violated)


def test_candidates_are_those_of_the_bare_loop() -> None:
    """A constraint is carried there from round to round."""
    X = new_xopt()
    bounds = torch.tensor([[0.0, -1.0], [1.0, 1.0]])
    constraint = None
    for _ in range(9):
        gain, loss = X.generator.train_model(update_internal=False).models
        if constraint is None:
            constraint = ChanceConstraint({"loss": loss}, limits={"loss": (None, 0.5)})
        else:
            constraint = constraint.with_model(loss)
        torch.manual_seed(1)
        acqf = UpperConfidenceBound(gain, beta=4.0)
        expected = optimize_chance_constrained(
            acqf, constraint, bounds, num_restarts=2, raw_samples=32
        ).candidate
        torch.manual_seed(1)
        X.step()
        last = torch.tensor(X.data[["a", "b"]].to_numpy()[-1:])
        torch.testing.assert_close(last, expected, rtol=0, atol=1e-7)
        constraint.observe(last, torch.tensor(X.data[["loss"]].to_numpy()[-1:]), condition=False)
    known = X.generator.chance_constraint()
    assert constraint is not None
    for ours, theirs in zip(known.decisions, constraint.decisions, strict=True):
        quantile = theirs.pop("quantiles")["loss"][1]
        assert ours.pop("quantiles")["loss"] == [None, pytest.approx(quantile)]
        assert ours == theirs
    assert (known.num_certified, known.num_violations) == counted(X)
    assert known.num_certified > 1


@pytest.mark.parametrize(
    "variables",
    [
        {"a": [0.0, 1.0], "b": {-1.0, -0.25, 0.25, 1.0}},
        {"a": {0.0, 0.3, 0.6, 1.0}, "b": {-1.0, -0.25, 0.25, 1.0}},
    ],
)
def test_discrete_variables_and_batches(variables: Any) -> None:
    X = new_xopt(variables)
    batch = X.generator.generate(3)
    assert all(row["b"] in variables["b"] for row in batch)
    constraint = X.generator.chance_constraint()
    assert constraint.num_decisions == 3 and constraint.num_observed == 0
    assert constraint.num_outstanding == constraint.num_certified
    X.evaluate_data(batch)
    constraint = X.generator.chance_constraint()
    assert constraint.num_outstanding == 0 and constraint.num_observed == 3


def test_no_decisions_of_a_call_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would count as violations for ever, as nobody gets the candidates."""
    X = new_xopt()
    fail_second_call(monkeypatch, _mixed_search, "best_certified")
    with pytest.raises(RuntimeError, match="interrupted"):
        X.generator.generate(2)
    assert not X.generator.decisions


def test_several_limits_fixed_features_and_travel_distances() -> None:
    X = new_xopt(
        constraints={"loss": ["BOUNDS", -2.0, 0.5], "room": ["GREATER_THAN", 0.05]},
        fixed_features={"b": 0.1},
        max_travel_distances=[0.1],
    )
    before = X.data["a"].iloc[-1]
    X.step()
    assert X.data["b"].iloc[-1] == 0.1
    assert abs(X.data["a"].iloc[-1] - before) <= 0.1 + 1e-9
    constraint = X.generator.chance_constraint()
    assert constraint.limits == {"loss": (-2.0, 0.5), "room": (0.05, None)}
    (row,) = X.generator.decisions
    assert row["inputs"] == pytest.approx({name: X.data[name].iloc[-1] for name in "ab"})
    assert row["point"] == [*row["inputs"].values()] and row["earlier"] == 0


def test_half_widths_are_bounded() -> None:
    """Without the bound the candidate is where the model knows less."""
    widths: list[float] = []
    for share in (None, 0.8):
        bound = {} if share is None else {"gain": share * widths[0]}
        constraints = {"loss": ["LESS_THAN", 9.0]}
        X = new_xopt(max_half_widths=bound, constraints=constraints, train_model=True)
        model = X.generator.train_model()
        (row,) = X.generator.generate(1)
        assert X.generator.decisions[-1]["certified"]
        at = torch.tensor([[[row["a"], row["b"]]]])
        posterior: Any = model.models[0].posterior(at)
        widths.append(1.6448536 * posterior.variance.sqrt().item())
    assert widths[1] <= 0.8 * widths[0] * (1.0 + 1e-6)


@pytest.mark.slow  # tests/integrations/test_xopt.py loads in the same process
def test_dumped_and_loaded_in_another_process(tmp_path: Path) -> None:
    X = new_xopt()
    for _ in range(2):
        X.step()
    file = tmp_path / "run.yaml"
    X.dump(str(file))
    script = f"""
import json
from botorch_calib.integrations import _mixed_search
from botorch_calib.integrations.xopt import load_xopt
X = load_xopt({str(file)!r})
constraint = X.generator.chance_constraint()
print(json.dumps([X.generator.decisions, constraint.decisions]))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    decisions, rows = json.loads(found.stdout)
    assert decisions == X.generator.decisions
    constraint = X.generator.chance_constraint()
    for ours, theirs in zip(constraint.decisions, rows, strict=True):
        # Xopt writes ten decimals.
        assert theirs.pop("outcomes") == pytest.approx(ours.pop("outcomes"), abs=1e-10)
        assert theirs == ours


def test_evaluations_that_end_beyond_a_bound(tmp_path: Path) -> None:
    """They count and teach the model, also after Xopt's own file was loaded."""
    X = new_xopt(function=stopped)
    for point in ([0.2, 0.2], [0.9, 0.9]):
        (row,) = X.generator.chance_constraint().decide(torch.tensor([point]))
        inputs = dict(zip("ab", point, strict=True))
        X.generator.decisions += [{**row, "inputs": inputs, "_id": f"decision-{point[0]}"}]
        X.evaluate_data(X.generator.outstanding())
    X.dump(str(tmp_path / "run.yaml"))
    known = torch.tensor(X.data["loss"].to_numpy())
    beyond = torch.tensor(X.data["loss_beyond"].to_numpy() == 1)
    assert beyond[:NUM_INITIAL].any() and not beyond.all()
    for each in (X, load_xopt(tmp_path / "run.yaml")):
        constraint = each.generator.chance_constraint()
        rows = [(row["outcomes"], row.get("beyond")) for row in constraint.decisions]
        assert rows[1] == ({"loss": 0.5}, {"loss": 1}) and rows[0][1] is None
        model = constraint.models["loss"]
        targets, _ = model.outcome_transform.untransform(model.train_targets.unsqueeze(-1))
        excess = targets.flatten() - known
        torch.testing.assert_close(excess[~beyond], torch.zeros(int((~beyond).sum())))
        assert (excess[beyond] > 1e-3).all()


def test_a_file_without_decisions_starts_the_books_and_says_so(tmp_path: Path) -> None:
    X = new_xopt()
    X.step()
    file = tmp_path / "run.yaml"
    X.dump(str(file))
    config = yaml.safe_load(file.read_text())
    del config["generator"]["decisions"]
    file.write_text(yaml.dump(config))
    with pytest.warns(CalibrationWarning, match="1 rows have the `_id`"):
        loaded = load_xopt(file)
    constraint = loaded.generator.chance_constraint()
    assert constraint.num_decisions == 0


class TestErrors:
    def test_settings(self) -> None:
        settings: Any
        for settings, match in (
            ({"level": 1.0}, "level"),
            ({"budget": 0.0}, "budget"),
            ({"max_half_widths": {"loss": 0.0}}, "max_half_widths"),
            ({"max_half_widths": {"size": 1.0}}, "'size'"),
            ({"constraints": {}}, "`vocs`"),
        ):
            with pytest.raises(InputDataError, match=match):
                new_xopt(**settings)

"""Chance constraints in Xopt: certified candidates, their books in Xopt's own files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

pytest.importorskip("xopt")

from botorch.acquisition import UpperConfidenceBound
from botorch.exceptions.errors import InputDataError
from gest_api.vocs import ContextualVariable
from xopt import VOCS, Evaluator, Xopt
from xopt.generators.bayesian.models.standard import StandardModelConstructor
from xopt.generators.bayesian.objectives import CustomXoptObjective

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
    pytest.mark.usefixtures("short_fits"),
]

CONTINUOUS: dict[str, Any] = {"a": [0.0, 1.0], "b": [-1.0, 1.0]}


def limited(inputs: dict[str, float]) -> dict[str, float]:
    """Large gains exceed the limit of the loss, apart from noise that depends on the inputs."""
    total = inputs["a"] + inputs["b"]
    noise = 0.2 * ((1e4 * total) % 1.0 - 0.5)
    return {"gain": total, "loss": total + noise, "room": inputs["a"]}


def stopped(inputs: dict[str, float]) -> dict[str, float]:
    """A run that exceeds the limit of the loss stops, and knows only that it did."""
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
        num_restarts=settings.pop("num_restarts", 2),
        raw_samples=settings.pop("raw_samples", 32),
        **settings,
    )
    torch.manual_seed(0)
    X = Xopt(generator=generator, evaluator=evaluator)
    X.random_evaluate(NUM_INITIAL, seed=0)
    return X


def counted(X: Xopt) -> tuple[int, int]:
    """Numbers of certified rows, and of rows that violate the limit of the loss."""
    rows = X.data.iloc[NUM_INITIAL:]
    certified = [each["certified"] for each in X.generator.decisions]
    violated = [c and loss > 0.5 for c, loss in zip(certified, rows["loss"], strict=True)]
    return sum(certified), sum(violated)


def test_candidates_are_those_of_the_bare_loop() -> None:
    """The bare loop keeps one constraint."""
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
        constraint.decide(last)  # may be chosen again, with an equal loss
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
    """They would count as violations forever, since nobody gets the candidates."""
    X = new_xopt()
    fail_second_call(monkeypatch, _mixed_search, "best_certified")
    with pytest.raises(RuntimeError, match="interrupted"):
        X.generator.generate(2)
    assert not X.generator.decisions


def test_decisions_are_withdrawn_if_xopt_returns_no_candidates(tmp_path: Path) -> None:
    X = new_xopt(n_interpolate_points=3, books=str(tmp_path / "books"))
    with pytest.raises(RuntimeError, match="interpolated points"):
        X.generator.generate(2)
    assert len(X.generator.decisions) == 2 and not X.generator.outstanding()
    assert X.generator.chance_constraint().num_decisions == 0
    *_, candidate = X.generator.generate(1)
    assert [candidate["_id"]] == [row["_id"] for row in X.generator.outstanding()]


def test_a_call_that_fails_before_the_decisions_leaves_the_books_alone(tmp_path: Path) -> None:
    """Another process may hold them, and then the error would come ten minutes later."""
    X = new_xopt(books=str(tmp_path / "books"))
    X.generator.data = None
    with pytest.raises(RuntimeError, match="no data"):
        X.generator.generate(1)
    assert not (tmp_path / "books").exists()


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


@pytest.mark.parametrize("controller", ["optimize", "safety"])
def test_trust_regions(controller: str) -> None:
    X = new_xopt(turbo_controller=controller)
    X.step()
    X.generator.suggest(2)
    lower, upper = X.generator.turbo_controller.get_trust_region(X.generator)
    assert (upper - lower < torch.tensor([1.0, 2.0])).all()
    points = torch.tensor([row["point"] for row in X.generator.decisions[1:]])
    assert ((points >= lower) & (points <= upper)).all()


def test_half_widths_are_bounded() -> None:
    """Without the bound, the model is less certain at the candidate."""
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
    """They count and the model learns from them, even after loading Xopt's file."""
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


def test_bounds_of_outcomes_that_are_integers() -> None:
    def trips(inputs: dict[str, float]) -> dict[str, float]:
        num = math.floor(3 * (inputs["a"] + inputs["b"]))
        return {"gain": num, "loss": min(num, 1), "loss_beyond": int(num > 1)}

    X = new_xopt(function=trips)
    assert X.data["loss"].dtype == int
    model = X.generator.chance_constraint().models["loss"]
    targets, _ = model.outcome_transform.untransform(model.train_targets.unsqueeze(-1))
    is_above = torch.tensor(X.data["loss_beyond"].to_numpy() == 1)
    assert is_above.any() and (targets.flatten()[is_above] > 1.0).all()
    assert X.data["loss"].max() == 1  # the data are as they were


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


def books_of(X: Xopt) -> tuple[Any, ...]:
    constraint = X.generator.chance_constraint()
    return constraint.account, [row["outcomes"] for row in constraint.decisions]


class TestIdentity:
    """Decisions keep their outcomes when rows change."""

    def test_rows_that_are_removed_sorted_offset_and_read_from_a_table(
        self, tmp_path: Path
    ) -> None:
        X = new_xopt()
        for _ in range(3):
            X.evaluate_data(X.generator.suggest(2))
        account, outcomes = books_of(X)
        assert account.num_certified > 0 and None not in [row["loss"] for row in outcomes]
        X.remove_data([0, 3, 7])
        assert books_of(X) == (account, outcomes)
        X.generator.data = X.data.sort_values("loss", ignore_index=True)
        assert books_of(X) == (account, outcomes)
        X.generator.data = X.data.assign(a=X.data["a"] + 0.003, b=X.data["b"].round(2))
        assert books_of(X) == (account, outcomes)
        X.data.to_csv(tmp_path / "data.csv")
        config = X.generator.model_dump() | {"model": None}
        other = ChanceConstrainedGenerator(**config)
        other.add_data(pd.read_csv(tmp_path / "data.csv", index_col=0))
        assert other.chance_constraint().account == account
        new = ChanceConstrainedGenerator(vocs=X.vocs)
        with pytest.warns(CalibrationWarning, match="6 rows have the `_id` of decisions"):
            new.ingest(X.data.to_dict("records"))
        with pytest.raises(ValueError, match="1 rows have the `_id`"):
            X.generator.ingest([{"a": 0.1, "b": 0.1, "_id": "decision-0"}])
        X.generator.ingest([{"a": 0.1, "b": 0.1, "gain": 0.2, "loss": 0.2, "_id": 3}])  # another's

    def test_loaded_before_a_certified_candidate_has_a_row(self, tmp_path: Path) -> None:
        X = new_xopt()
        X.generator.suggest()
        (row,) = X.generator.decisions
        X.generator.decisions = [{**row, "certified": True}]
        X.dump(str(tmp_path / "run.yaml"))
        with warnings.catch_warnings():
            warnings.simplefilter("error", CalibrationWarning)
            assert len(load_xopt(tmp_path / "run.yaml").generator.outstanding()) == 1

    def test_rows_without_an_id(self) -> None:
        """Rows with equal inputs count, unless they are older; other rows raise a warning."""
        X = new_xopt()
        (first,) = X.generator.suggest()
        first = {name: first[name] for name in "ab"}
        X.add_data(pd.DataFrame([{**first, **limited(first)}]))
        again = {**X.generator.decisions[0], "_id": "decision-again"}
        again |= {"earlier": 1, "certified": True}
        X.generator.decisions = [*X.generator.decisions, again]
        assert [row["_id"] for row in X.generator.outstanding()] == ["decision-again"]
        X.remove_data([0, 1])
        with pytest.warns(CalibrationWarning, match="belong to none of the 1 certified"):
            X.add_data(pd.DataFrame([{"a": 0.2, "b": 0.3, "gain": 0.5, "loss": 0.5}]))
        X.add_data(pd.DataFrame([{**first, **limited(first)}]))
        assert not X.generator.outstanding()

    def test_candidates_without_an_id(self) -> None:
        """An evaluator that sets whatever a candidate names is handed the variables alone."""
        names: set[str] = set()

        def evaluated(x: dict[str, float]) -> dict[str, float]:
            names.update(x)
            return limited(x)

        X = new_xopt(function=evaluated, returns_id=False)
        X.evaluate_data(X.generator.suggest(2)[::-1])
        X.step()
        assert names == {"a", "b"} and not X.generator.outstanding()
        assert X.generator.chance_constraint().num_observed == 3

    def test_what_was_run_twice(self) -> None:
        """The first row with the most outcomes counts, as after a failure."""
        X = new_xopt()
        (row,) = X.generator.suggest()
        X.generator.ingest([row])
        assert X.generator.outstanding() == [row]
        X.generator.ingest([{**row, "loss": 0.4, "gain": 1.0}, {**row, "loss": 0.9, "gain": 1.0}])
        assert books_of(X)[1] == [{"loss": 0.4}]


class TestBooks:
    def test_decisions_are_stored_before_candidates_are_handed_out(self, tmp_path: Path) -> None:
        X = new_xopt(books=str(tmp_path / "books"))
        X.dump(str(tmp_path / "run.yaml"))
        (lost,) = X.generator.suggest()
        for load in (load_xopt, Xopt.from_file):
            loaded = load(str(tmp_path / "run.yaml"))
            assert loaded.generator.outstanding() == [lost]
        X.evaluate_data(lost)
        loaded.step()  # of another process, which has another row
        (own,) = loaded.generator.decisions[1:]
        assert [row["_id"] for row in X.generator.decisions] == [lost["_id"]]
        X.step()
        ids = [row["_id"] for row in X.generator.decisions]
        assert ids[:2] == [lost["_id"], own["_id"]] and len(ids) == 3
        X.dump(str(tmp_path / "run.yaml"))
        assert len(load_xopt(tmp_path / "run.yaml").generator.decisions) == 3

    def test_there_is_one_file_wherever_the_process_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Simulations often change the working directory."""
        monkeypatch.setenv("RUNS", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        X = new_xopt(books="books")
        X.generator.suggest()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        X.generator.suggest()
        stored = ChanceConstrainedGenerator(vocs=X.vocs, books="$RUNS/books")
        assert stored.decisions == X.generator.decisions and len(stored.decisions) == 2

    def test_the_default_of_load_xopt_is_next_to_the_file(self, tmp_path: Path) -> None:
        X = new_xopt()
        X.step()
        X.dump(str(tmp_path / "run.yaml"))
        loaded = load_xopt(tmp_path / "run.yaml")
        loaded.generator.suggest()
        again = load_xopt(tmp_path / "run.yaml")
        assert again.generator.decisions == loaded.generator.decisions
        assert len(again.generator.decisions) == 2

    def test_files_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        X = new_xopt(books=str(tmp_path / "empty"))
        X.generator.suggest()
        (tmp_path / "text").write_text("no decisions")
        with pytest.raises(InputDataError, match="`books`, .*cannot be used"):
            new_xopt(books=str(tmp_path / "text"))
        X = new_xopt(books=str(tmp_path / "no" / "books"))
        with pytest.raises(InputDataError, match="`books`, .*cannot be used"):
            X.generator.suggest()
        assert not X.generator.decisions


def test_candidates_that_were_never_run_are_withdrawn(tmp_path: Path) -> None:
    X = new_xopt(books=str(tmp_path / "books"))
    batch = X.generator.suggest(3)
    X.generator.withdraw(batch[:1])
    X.generator.withdraw([batch[1]["_id"]])
    assert X.generator.outstanding() == batch[2:]
    constraint = X.generator.chance_constraint()
    assert constraint.num_decisions == 1
    assert "`generator.withdraw(...)`" in constraint.remedy
    unknown: Any
    for unknown in (pd.DataFrame(batch), [0]):
        with pytest.raises(InputDataError, match="ids that are not pending"):
            X.generator.withdraw(unknown)
    X.evaluate_data(batch[1:])  # one of which was withdrawn
    assert X.generator.chance_constraint().num_observed == 2
    with pytest.raises(InputDataError, match="with any outcome was run"):
        X.generator.withdraw(batch[2:])
    stored = ChanceConstrainedGenerator(vocs=X.vocs, books=str(tmp_path / "books"))
    assert [row.get("withdrawn") for row in stored.decisions] == [True, True, None]


def test_candidates_keep_apart_from_those_that_are_out() -> None:
    X = new_xopt()
    batch = pd.DataFrame(sum((X.generator.suggest(1) for _ in range(3)), []))
    points = torch.tensor(batch[["a", "b"]].to_numpy()) / torch.tensor([1.0, 2.0])
    assert torch.pdist(points).min() >= 0.01 - 1e-9


@pytest.mark.filterwarnings("ignore:Heteroskedastic modeling")
def test_batches_with_given_noise() -> None:
    X = new_xopt(function=lambda x: {**limited(x), "loss_var": 0.01, "gain_var": 1e-4})
    assert len(X.generator.suggest(2)) == 2


@pytest.mark.parametrize("returns_id", [True, False])
def test_contexts_stay_as_in_the_latest_row(returns_id: bool) -> None:
    variables = {**CONTINUOUS, "t": ContextualVariable(domain=[0.0, 1.0])}

    def in_context(inputs: dict[str, float]) -> dict[str, float]:
        outcomes = limited(inputs)
        return {**outcomes, "loss": outcomes["loss"] + inputs.get("t", 0.3), "t": 0.3}

    X = new_xopt(variables, constraints={"loss": ["LESS_THAN", 9.0]}, returns_id=returns_id)
    X.evaluator = Evaluator(function=in_context)
    X.data["t"] = X.generator.data["t"] = 0.1
    X.evaluate_data(X.generator.suggest())
    assert not X.generator.outstanding()
    (row,) = X.generator.decisions
    assert row["inputs"]["t"] == 0.1 and X.data["t"].iloc[-1] == 0.3
    assert X.generator.chance_constraint().num_observed == 1
    setting, _ = X.generator.recommendation()
    assert setting["t"] == 0.3


@pytest.mark.parametrize("b", [[-1.0, 1.0], {-1.0, -0.25, 0.25, 1.0}])
def test_recommendation(b: Any) -> None:
    X = new_xopt({"a": [0.0, 1.0], "b": b}, train_model=True)
    X.step()
    setting, stated = X.generator.recommendation(0.9, baseline={"a": 0.1, "b": -1.0})
    assert stated.certified and stated.lower < stated.value < stated.upper
    assert setting["a"] + setting["b"] <= 0.5 and stated.better > 0.9
    assert [*setting.values()] == stated.candidate.flatten().tolist()
    assert not isinstance(b, set) or setting["b"] in b
    with pytest.raises(InputDataError, match="`baseline` lacks .'b'"):
        X.generator.recommendation(baseline={"a": 0.1})


def test_the_last_safe_setting_after_a_violation() -> None:
    class Machine:
        set_to: list[Any] = []

        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("there is one machine")

        def back(self, setting: Any) -> None:
            self.set_to.append(setting)

    X = new_xopt(function=stopped, on_violation=Machine().back)
    rows = X.data[X.data["loss_beyond"].isna()]
    safe = rows[["a", "b"]].iloc[-1].to_dict()
    assert X.generator.last_safe() == safe == Machine.set_to[-1]
    num = len(Machine.set_to)
    X.evaluate_data({"a": 0.1, "b": 0.1})
    assert len(Machine.set_to) == num and X.generator.last_safe() == {"a": 0.1, "b": 0.1}
    X.evaluate_data({"a": 0.9, "b": 0.9})
    assert Machine.set_to[num:] == [{"a": 0.1, "b": 0.1}]
    num, violating = len(Machine.set_to), X.data.index[X.data["loss_beyond"] == 1]
    X.generator.generate(1)  # nothing is new
    X.remove_data([int(violating[-1])])
    assert len(Machine.set_to) == num
    X.evaluate_data({"a": 0.8, "b": 0.8})
    assert len(Machine.set_to) == num + 1
    assert "on_violation" not in X.yaml()
    X.reset_data()
    assert X.generator.last_safe() is None


class TestErrors:
    def test_settings(self) -> None:
        settings: Any
        for settings, match in (
            ({"level": 1.0}, "level"),
            ({"budget": 0.0}, "budget"),
            ({"beta": -1.0}, "beta"),
            ({"num_restarts": 0}, "num_restarts"),
            ({"raw_samples": 0}, "raw_samples"),
            ({"max_half_widths": {"loss": 0.0}}, "max_half_widths"),
            ({"max_half_widths": {"size": 1.0}}, "'size'"),
            ({"constraints": {}}, "`vocs`"),
        ):
            with pytest.raises(InputDataError, match=match):
                new_xopt(**settings)

    def test_objectives_that_would_be_ignored(self) -> None:
        """The first would be minimised, and the second would not be called."""
        explored = VOCS(
            variables=CONTINUOUS,
            objectives={"gain": "EXPLORE"},
            constraints={"loss": ["LESS_THAN", 0.5]},
        )
        with pytest.raises(InputDataError, match="minimised or maximised"):
            ChanceConstrainedGenerator(vocs=explored)

        class Negative(CustomXoptObjective):
            def forward(self, samples: Any, X: Any = None) -> Any:
                return -samples[..., 0]

        X = new_xopt()
        with pytest.raises(InputDataError, match="`custom_objective` would be ignored"):
            new_xopt(custom_objective=Negative(X.vocs))

    def test_an_optimizer_that_would_be_ignored(self) -> None:
        with pytest.raises(InputDataError, match="`numerical_optimizer` would be ignored"):
            new_xopt(numerical_optimizer="grid")


def test_books_next_to_the_file_that_xopt_dumps_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation that kills the process has a decision, but no row in the dump."""
    X, file = new_xopt(), tmp_path / "run.yaml"
    X.xopt_dump_file = str(file)
    X.dump()
    with monkeypatch.context() as patched:
        patched.setattr(Xopt, "evaluate_data", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            X.step()
    assert X.generator.books == f"{file}.decisions"
    (decision,) = load_xopt(file).generator.decisions
    again = Xopt.from_file(str(file))
    again.evaluator = Evaluator(function=limited)
    with pytest.warns(CalibrationWarning, match="1 decisions that are not in the dump"):
        again.step()
    assert again.generator.decisions[0] == decision and len(again.generator.decisions) == 2
    again.step()  # and no more about it
    by_hand = new_xopt()
    by_hand.xopt_dump_file = str(tmp_path / "by_hand.yaml")
    by_hand.random_evaluate(1, seed=1)
    by_hand.generator.suggest(1)  # the evaluation may kill the process
    assert len(load_xopt(tmp_path / "by_hand.yaml").generator.decisions) == 1
    own = new_xopt(books=str(tmp_path / "own"))
    own.xopt_dump_file = str(file)
    own.step()
    assert own.generator.books == str(tmp_path / "own") and len(own.generator.decisions) == 1
    bare = new_xopt()
    bare.step()
    assert bare.generator.books is None

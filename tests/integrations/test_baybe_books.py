"""The books of certified recommendations in BayBE, while users change a campaign."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
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
from baybe.utils.dataframe import fuzzy_row_match
from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations import baybe
from botorch_calib.integrations.baybe import ChanceConstrainedRecommender

pytestmark = [
    pytest.mark.filterwarnings("ignore:A point is not certified"),
    pytest.mark.filterwarnings("ignore:The inplace keyword"),  # in BayBE
]

NUM_INITIAL = 12
TARGETS = ParetoObjective([NumericalTarget("yield"), NumericalTarget("heat", minimize=True)])
NAMES = ["t", "kind", "stir"]


def new_space(t: Any = range(20, 61, 4)) -> SearchSpace:
    return SearchSpace.from_product(
        [
            NumericalDiscreteParameter("t", t, tolerance=1.0),
            CategoricalParameter("kind", ["u", "v"], encoding="INT"),
            CategoricalParameter("stir", [True, False]),
        ]
    )


def measured(experiments: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    t = experiments["t"] + rng.uniform(-0.9, 0.9, len(experiments))  # BayBE accepts it
    noise = 0.05 * rng.standard_normal(len(experiments))
    return experiments.assign(t=t, heat=t / 25 + noise, **{"yield": t / 60})


def new_campaign(initial: pd.DataFrame | None = None, **options: Any) -> Campaign:
    recommender = ChanceConstrainedRecommender(limits={"heat": (None, 2.0)}, **options)
    phases = TwoPhaseMetaRecommender(recommender=recommender, switch_after=NUM_INITIAL)
    campaign = Campaign(new_space(), TARGETS, phases, allow_recommending_already_recommended=True)
    active_settings.random_seed = 0
    rows = campaign.recommend(NUM_INITIAL) if initial is None else initial
    campaign.add_measurements(measured(rows, np.random.default_rng(0)))
    return campaign


def recommender_of(campaign: Any) -> ChanceConstrainedRecommender:
    return campaign.recommender.recommender


def books(campaign: Campaign, table: pd.DataFrame | None = None) -> list[Any]:
    """Whether each counting decision was certified, and its outcome."""
    table = campaign.measurements if table is None else table
    made = recommender_of(campaign).chance_constraint(campaign.searchspace, TARGETS, table)
    return [(row["certified"], row["outcomes"]["heat"]) for row in made.decisions]


def budget_left(campaign: Campaign) -> float:
    arguments = campaign.searchspace, TARGETS, campaign.measurements
    return recommender_of(campaign).chance_constraint(*arguments).budget_left


def only(campaign: Campaign, t: float, kind: str = "u", stir: bool = True) -> None:
    """Exclude all other candidates."""
    everything = campaign.searchspace.discrete.exp_rep
    campaign.toggle_discrete_candidates(everything, exclude=False)
    candidate = pd.DataFrame([[t, kind, stir]], columns=NAMES)
    campaign.toggle_discrete_candidates(candidate, exclude=True, complement=True)


def outcome(campaign: Campaign, heat: float | None, t: float, **more: Any) -> pd.DataFrame:
    row = {"t": t, "kind": "u", "stir": True, "yield": t / 60, "heat": heat, **more}
    return pd.DataFrame([row]).astype({"heat": float})


@pytest.fixture(scope="module", autouse=True)
def models() -> Iterator[Any]:
    """Models are fitted once: most tests are about the books alone."""
    with pytest.MonkeyPatch.context() as patch:
        kind = ChanceConstrainedRecommender
        data = new_campaign().measurements
        fitted = kind(limits={"heat": (None, 2.0)})._models(new_space(), TARGETS, data)
        checked = kind._check_campaign

        def reused(self: Any, space: Any, objective: Any, table: pd.DataFrame) -> Any:
            checked(self, space, table)
            return *fitted[:2], table.reset_index(drop=True)

        patch.setattr(kind, "_models", reused)
        yield patch


@pytest.fixture(scope="module")
def run(models: Any) -> Campaign:
    campaign, rng = new_campaign(), np.random.default_rng(1)
    for _ in range(6):
        campaign.add_measurements(measured(campaign.recommend(1), rng))
    return campaign


def read_back(table: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(table.to_csv(index=False)))


def read_into_new_campaign(table: pd.DataFrame) -> pd.DataFrame:
    campaign = Campaign(new_space(), TARGETS)
    campaign.add_measurements(read_back(table)[[*NAMES, "yield", "heat"]])
    return campaign.measurements


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table,
        lambda table: table.drop(index=[0, 3, 7]),
        lambda table: table.sort_values("heat"),
        lambda table: table.sort_values("heat", ascending=False).drop(columns=["BatchNr", "FitNr"]),
        lambda table: table.round({"t": 0, "heat": 3}),
        read_back,
        read_into_new_campaign,
        lambda table: pd.concat([table, table.tail(2)]),
    ],
    ids=["as it is", "removed", "sorted", "reversed", "rounded", "read", "new campaign", "twice"],
)
def test_outcomes_of_a_table_that_was_changed(
    run: Campaign, change: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    rows = run.measurements.iloc[NUM_INITIAL:]
    decided = recommender_of(run).decisions
    assert (rows["t"] % 4 != 0).all()  # none is where it was recommended
    found = books(run, change(run.measurements))
    assert [each["certified"] for each in decided] == [certified for certified, _ in found]
    assert [y for _, y in found] == pytest.approx(rows["heat"].tolist(), abs=1e-3)


def test_candidates_are_matched_as_in_baybe(run: Campaign) -> None:
    space = run.searchspace
    everything = space.discrete.exp_rep
    experiments = measured(everything.sample(30, random_state=0), np.random.default_rng(2))
    decisions = [{"candidate": row} for row in everything.to_dict("records")]
    same = baybe._same(space, decisions, experiments)
    matched = fuzzy_row_match(everything, experiments, space.parameters)
    assert (same.sum(axis=0) == 1).all()
    assert everything.index[same.argmax(axis=0)].tolist() == matched.tolist()


@pytest.mark.parametrize("sizes", [(1, 2, 3, 4, 5), (5, 4, 2)])
@pytest.mark.parametrize("again", [True, False])
def test_the_last_of_several_looks_counts(sizes: tuple[int, ...], again: bool) -> None:
    campaign = new_campaign()
    campaign.allow_recommending_already_recommended = again
    for size in sizes:
        rows = campaign.recommend(size)
    assert len(books(campaign)) == sizes[-1]
    campaign.add_measurements(measured(rows, np.random.default_rng(1)))
    assert None not in [y for _, y in books(campaign)] and len(books(campaign)) == sizes[-1]


def test_looks_with_pending_experiments_cost_nothing() -> None:
    campaign = new_campaign()
    running = campaign.recommend(2)
    campaign.add_measurements(outcome(campaign, 1.0, 28.0))
    for t in (24.0, 32.0, 36.0):
        only(campaign, t)
        campaign.recommend(1, pending_experiments=running)
    assert len(books(campaign)) == 3  # with two that are running
    campaign.allow_recommending_pending_experiments = True
    only(campaign, running["t"].iloc[0].item(), *running.iloc[0][["kind", "stir"]])
    campaign.recommend(1, pending_experiments=running)  # it runs, once
    only(campaign, 40.0)
    campaign.recommend(1, pending_experiments=running)
    assert len(books(campaign)) == 3
    campaign.recommend(1)  # of other calls, on the same measurements
    assert len(books(campaign)) == 3
    campaign.add_measurements(outcome(campaign, 1.0, 20.0))
    campaign.recommend(1)  # running experiments are not named, but they may be running
    assert len(books(campaign)) == 4


def test_a_replaced_candidate_that_is_measured_counts_and_the_others_do_again() -> None:
    campaign = new_campaign()
    for t in (20.0, 24.0, 28.0, 32.0):
        only(campaign, t)
        campaign.recommend(1)
    assert books(campaign) == [(True, None)]
    campaign.add_measurements(outcome(campaign, 2.5, 24.3))
    assert books(campaign) == [(True, None), (True, 2.5), (True, None), (True, None)]
    recommender = recommender_of(campaign)
    with pytest.warns(CalibrationWarning, match="replaced were measured.* `pending_experiments`"):
        campaign.recommend(1)
    assert len(books(campaign)) == 5
    out = recommender.outstanding(campaign)
    assert out["t"].tolist() == [20.0, 28.0, 32.0, 32.0]
    recommender.withdraw(campaign, out[out["replaced"]])
    assert [y for _, y in books(campaign)].count(None) == 2
    campaign.allow_recommending_pending_experiments = True
    looked = campaign.recommend(1, pending_experiments=out)
    out = recommender.outstanding(campaign)
    recommender.withdraw(campaign, out)  # equal ones, too
    assert recommender.outstanding(campaign).empty and set(looked["t"]) <= set(out["t"])
    campaign.add_measurements(outcome(campaign, 2.6, 28.0))  # run all the same
    assert [y for _, y in books(campaign) if y is not None] == [2.5, 2.6]


def violations(campaign: Campaign, workers: int, rounds: int, is_told: bool) -> int:
    """The number of certified runs, if all runs violate and several run at a time."""
    running: list[pd.DataFrame] = []
    certified = 0
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        while len(running) < workers:
            told = {"pending_experiments": pd.concat(running)} if running and is_told else {}
            running.append(campaign.recommend(1, **told))
            certified += recommender_of(campaign).decisions[-1]["certified"]
        row = running.pop(rng.integers(len(running)))
        campaign.add_measurements(row.assign(heat=2.1, **{"yield": 1.0}))
    return certified


@pytest.mark.filterwarnings("ignore:Recommendations that later calls replaced")
@pytest.mark.filterwarnings("ignore:The outcomes of .* are pending")
@pytest.mark.parametrize("is_told", [True, False])
def test_the_bound_holds_with_workers_where_everything_violates(is_told: bool) -> None:
    campaign = new_campaign()
    campaign.allow_recommending_already_recommended = False
    certified = violations(campaign, 4, 18, is_told)
    arguments = campaign.searchspace, TARGETS, campaign.measurements
    made = recommender_of(campaign).chance_constraint(*arguments)
    assert made.num_certified == certified
    assert made.num_violations + made.num_outstanding == certified <= 0.1 * certified + 10.9


@pytest.mark.parametrize("change", ["none", "corrected", "removed", "sorted", "read again"])
def test_what_was_measured_before_a_decision_is_not_its_outcome(change: str) -> None:
    campaign = new_campaign()
    campaign.add_measurements(outcome(campaign, 1.2, 24.4))
    only(campaign, 24.0)
    campaign.recommend(1)
    table = campaign.measurements
    if change == "corrected":
        campaign.update_measurements(table.tail(1).assign(heat=1.3))
    if change == "removed":
        campaign._measurements_exp = table.iloc[:-1]
    if change == "read again":
        campaign._measurements_exp = read_into_new_campaign(table)
    assert books(campaign) == [(True, None)]
    campaign.add_measurements(outcome(campaign, 2.4, 23.7))
    campaign.add_measurements(outcome(campaign, 1.1, 24.0))  # once more
    if change == "sorted":
        campaign._measurements_exp = campaign.measurements.sort_values("heat")
    assert [y for _, y in books(campaign)] == ([1.1] if change == "sorted" else [2.4])


def test_decisions_about_one_candidate_keep_their_outcomes() -> None:
    campaign = new_campaign()
    campaign.allow_recommending_pending_experiments = True
    only(campaign, 24.0)
    heats = [1.1, 2.1, 1.2, 2.2, 1.3]
    for heat in heats:
        running = campaign.recommend(1)
        campaign.add_measurements(outcome(campaign, heat, 24.2))
    for table in (campaign.measurements, campaign.measurements.sort_values("heat")):
        assert [y for _, y in books(campaign, table)] == heats
        without = table[table["heat"] != 2.1]
        assert [y for _, y in books(campaign, without)] == [1.1, None, 1.2, 2.2, 1.3]
    campaign._measurements_exp = without
    for _ in range(2):  # both run at once
        campaign.recommend(1, pending_experiments=running)
    for heat in (1.4, 1.5):
        campaign.add_measurements(outcome(campaign, heat, 23.8))
    assert [y for _, y in books(campaign)] == [1.1, None, 1.2, 2.2, 1.3, 1.5, 1.4]


def test_a_measurement_without_a_value_was_run_and_one_that_was_removed_too() -> None:
    campaign = new_campaign()
    only(campaign, 24.0)
    campaign.recommend(1)
    campaign.add_measurements(outcome(campaign, None, 24.0))
    only(campaign, 28.0)
    row = campaign.recommend(1)
    assert books(campaign) == [(True, None), (True, None)]
    campaign.add_measurements(outcome(campaign, 2.5, 28.0))
    only(campaign, 32.0)
    campaign.recommend(1)
    campaign.update_measurements(campaign.measurements.iloc[[-2]].assign(heat=1.5))
    assert books(campaign) == [(True, 1.5), (True, 2.5), (True, None)]
    campaign._measurements_exp = campaign.measurements.iloc[:-1]  # the one that violated
    campaign.recommend(1, pending_experiments=row.assign(t=36.0))
    assert [y for _, y in books(campaign)] == [1.5, None, None]
    left = budget_left(campaign)
    with pytest.raises(InputDataError, match="Row 1 of `experiments` .* `outstanding`"):
        recommender_of(campaign).withdraw(campaign, pd.concat([row, row]))
    assert budget_left(campaign) == left


def test_a_recommender_serves_one_campaign() -> None:
    first = new_campaign()
    recommender = recommender_of(first)
    first.recommend(1)
    second = new_campaign(new_space().discrete.exp_rep.sample(NUM_INITIAL, random_state=5))
    second.recommender = first.recommender
    with pytest.raises(InputDataError, match="another campaign.* a recommender of its own"):
        second.recommend(1)
    second.recommender = new_campaign().recommender
    second.recommend(1)
    assert len(recommender.decisions) == len(recommender_of(second).decisions) == 1
    assert budget_left(first) == pytest.approx(9.1)


def test_a_space_that_was_made_again(run: Campaign) -> None:
    """With another grid, with a new column, and without an old one: all outcomes are found."""
    kind, stir, t = run.searchspace.parameters
    other = NumericalDiscreteParameter("t", np.linspace(0.2, 0.48, 8) * 100.0 + 20.0)
    new = CategoricalParameter("new", ["a", "b"])
    known, recommender = books(run), recommender_of(run)
    for parameters in ([other, kind, stir], [t, kind, stir, new], [t, kind], [new, stir, t]):
        space = SearchSpace.from_product(parameters)
        table = run.measurements.assign(new="a")
        made = recommender.chance_constraint(space, TARGETS, table)
        found = [(row["certified"], row["outcomes"]["heat"]) for row in made.decisions]
        assert found == known
    recommender = ChanceConstrainedRecommender(
        limits={"heat": (None, 1.5)}, decisions=recommender.decisions
    )
    made = recommender.chance_constraint(run.searchspace, TARGETS, run.measurements)
    assert {row["limits"]["heat"][1] for row in made.decisions} == {2.0}


def test_copies_as_in_simulations_keep_the_books(run: Campaign) -> None:
    """BayBE simulates a copy of a campaign."""
    for other in (deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert books(other) == books(run)
        other.recommend(1)
        assert len(recommender_of(other).decisions) == len(recommender_of(run).decisions) + 1


def test_recommendation(models: Any, run: Campaign) -> None:
    recommender = recommender_of(run)
    models.undo()
    try:
        candidate, stated = recommender.recommendation(run, confidence=0.9)
        only(run, 36.0, "v", False)
        other, _ = recommender.recommendation(run)
    finally:
        run.toggle_discrete_candidates(run.searchspace.discrete.exp_rep, exclude=False)
    assert stated.certified and list(candidate.columns) == NAMES and len(candidate) == 1
    assert 40 <= candidate["t"].item() <= 48
    assert stated.lower < stated.value < stated.upper and isinstance(stated.note, str)
    assert stated.value == pytest.approx(candidate["t"].item() / 60, abs=0.05)
    assert other.to_numpy().tolist() == [[36.0, "v", False]]


def test_without_baybe_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("baybe", "baybe.transformations"):  # which older ones lack
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            patch.delitem(sys.modules, "botorch_calib.integrations.baybe")
            with pytest.raises(ImportError, match=r"BayBE 0.15.*install botorch_calib\[baybe\]"):
                importlib.import_module("botorch_calib.integrations.baybe")

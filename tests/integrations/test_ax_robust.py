"""Robust decisions in Ax: their units, what is proposed, recorded, recommended and stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import (
    ChoiceParameterConfig,
    DerivedParameterConfig,
    RangeParameterConfig,
)
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.observation import ObservationFeatures
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import UserInputError
from ax.exceptions.storage import JSONEncodeError
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.utils import sampling
from torch import Tensor

from botorch_calib import (
    CalibratedModel,
    CensoredDelayModel,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    MMDBall,
    OnlineConformal,
    TotalVariationBall,
    WassersteinBall,
    WassersteinUpperConfidenceBound,
    WorstCase,
)
from botorch_calib.integrations import ax_robust
from botorch_calib.integrations.ax import calibrated_generation_strategy, calibrated_model_config
from botorch_calib.integrations.ax_robust import (
    RobustDecisions,
    complete_trial_in_context,
    robust_decision,
    robust_generation_strategy,
)
from botorch_calib.integrations.stored_robustness import read_ambiguity, stored_ambiguity
from botorch_calib.models.inspection import raw_train_inputs
from botorch_calib.robust import AmbiguitySet, ClosedFormConfidenceBound, RadiusSchedule
from tests.integrations.test_ax import quiet

__all__ = ["quiet"]  # a fixture

NUM_DESIGNED = 6
NUM_INITIAL = NUM_DESIGNED + 1
# The context is not in the last column, and neither parameter is in the unit interval.
PARAMETERS = (
    RangeParameterConfig(name="c", parameter_type="float", bounds=(-50, 150)),
    RangeParameterConfig(name="a", parameter_type="float", bounds=(0, 10)),
)
CONTEXTS = ContextDistribution.discrete(
    torch.tensor([[20.0], [30.0], [35.0], [90.0]], dtype=torch.double),
    torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.double),
).with_candidates(torch.linspace(-50, 150, 9, dtype=torch.double).unsqueeze(-1))
ATOMS = [{"c": c} for c in CONTEXTS.points[:, 0].tolist()]
BALL = WassersteinBall(15.0)
GRID = [{"a": 0.1 * i} for i in range(101)]
CALIBRATED = calibrated_model_config(OnlineConformal, alpha=0.2)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::botorch_calib.exceptions.CalibrationWarning"),
]


@pytest.fixture(autouse=True)
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision has one number or two."""
    monkeypatch.setattr(ax_robust, "SEARCH", {"num_restarts": 4, "raw_samples": 64})


def match(parameters: Any) -> float:
    """How well a decision meets its context: which one is best depends on it."""
    wanted = 2 + 0.05 * parameters["c"]
    return 40 - (parameters["a"] - wanted) ** 2 - 0.1 * parameters["a"] * wanted


def gamble(parameters: Any) -> float:
    """Much at ``c = 1``, where 0.8 is the best decision, and a loss at ``c = 0``."""
    a, c = parameters["a"], parameters["c"]
    return -((a - 0.8) ** 2) - 4 * (1 - c) * a**2


def struct(**options: Any) -> GenerationStrategyDispatchStruct:
    return GenerationStrategyDispatchStruct(
        method="custom",
        initialization_budget=NUM_DESIGNED,
        initialization_random_seed=0,
        **options,
    )


def new_client(
    ambiguity: Any = BALL,
    contexts: Any = CONTEXTS,
    context_names: Any = "c",
    parameters: Any = PARAMETERS,
    objective: str = "y",
    parameter_constraints: tuple[str, ...] = (),
    **options: Any,
) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters, parameter_constraints=parameter_constraints)
    client.configure_optimization(objective)
    client.set_generation_strategy(
        robust_generation_strategy(
            client, context_names, contexts, ambiguity, **{"struct": struct(), **options}
        )
    )
    return client


def client_without_strategy() -> Client:
    client = Client()
    client.configure_experiment(PARAMETERS)
    return client


def play(client: Client, num_trials: int, function: Any = match, **fixed: Any) -> None:
    """Complete trials: the initial ones in one call of Ax's, others one after the other."""
    end = len(client._experiment.trials) + num_trials
    while (count := len(client._experiment.trials)) < end:
        at_a_time = max(min(NUM_INITIAL, end) - count, 1)
        for trial, parameters in client.get_next_trials(at_a_time, fixed or None).items():
            client.complete_trial(trial, {"y": function(parameters)})


def arms(client: Client) -> list[dict[str, Any]]:
    trials: Any = client._experiment.trials.values()
    return [trial.arm.parameters for trial in trials]


def adapter_of(client: Client) -> Any:
    return client._generation_strategy.adapter


def acquisition_of(client: Client) -> Any:
    return adapter_of(client).generator._acquisition


def only(trials: dict[int, Any]) -> tuple[int, dict[str, Any]]:
    ((trial, parameters),) = trials.items()
    return trial, parameters


def predicted_bound(
    client: Client,
    decisions: Sequence[Any],
    beta: float = 0.0,
    sign: float = 1.0,
    contexts: Sequence[Any] = ATOMS,
) -> Tensor:
    """``sign mu + sqrt(beta) sigma`` of all pairs, in the user's units, as Ax predicts them."""
    points = [{**decision, **context} for decision in decisions for context in contexts]
    predictions = [prediction["y"] for prediction in client.predict(points)]
    values = [sign * mean + beta**0.5 * sem for mean, sem in predictions]
    return torch.tensor(values, dtype=torch.double).view(len(decisions), len(contexts))


# ------------------------------------------------------------ the decision


@pytest.mark.parametrize(
    ("ambiguity", "calibrated", "objective"),
    [
        (BALL, None, "y"),
        (WassersteinBall(0.0), None, "y"),
        (KLBall(0.3), CALIBRATED, "-y"),
    ],
)
def test_the_decision_is_the_best_one_on_a_grid(
    ambiguity: AmbiguitySet, calibrated: ModelConfig | None, objective: str
) -> None:
    """By what Ax itself predicts in the user's units: so the radius is in these."""
    sign = -1.0 if objective == "-y" else 1.0
    client = new_client(ambiguity, objective=objective, calibrated=calibrated)
    play(client, NUM_INITIAL, lambda p: sign * match(p))
    _, proposed = only(client.get_next_trials(1))
    decisions = [{"a": proposed["a"]}, *GRID]
    bounds = predicted_bound(client, decisions, 2.25, sign)
    values = ambiguity.worst_case(bounds, CONTEXTS)
    spread = float(values.max() - values.min())
    assert float(values[0] - values[1:].max()) > -1e-5 * spread
    assert abs(proposed["a"] - GRID[int(values[1:].argmax())]["a"]) < 0.21
    expectation = bounds @ CONTEXTS.weights
    is_expectation = ambiguity.__dict__.get("_radius") == 0.0
    assert torch.allclose(values, expectation) == is_expectation


def test_the_bound_by_slopes_is_the_one_made_by_hand() -> None:
    ball = WassersteinBall(15.0, method="lipschitz")
    anywhere = torch.linspace(-50, 150, 33, dtype=torch.double).unsqueeze(-1)
    client = new_client(ball, CONTEXTS.with_lipschitz_points(anywhere), objective="-y")
    play(client, NUM_INITIAL, lambda p: -match(p))
    _, proposed = only(client.get_next_trials(1))
    model = adapter_of(client).botorch_model
    recorded = [[p["c"], p["a"]] for p in arms(client)[:NUM_INITIAL]]
    inputs: Any = raw_train_inputs(model)
    torch.testing.assert_close(inputs, torch.tensor(recorded, dtype=torch.double))
    grid = torch.linspace(0, 10, 2001, dtype=torch.double).view(-1, 1, 1)
    best = []
    for radius in (15.0, 0.0):
        by_hand = WassersteinUpperConfidenceBound(
            model,
            beta=2.25,
            radius=radius,
            contexts=CONTEXTS.with_indices([0]),
            lipschitz_contexts=anywhere,
            maximize=False,
        )
        best.append(grid[by_hand(grid).argmax()].item())
    assert proposed["a"] == pytest.approx(best[0], abs=0.006)
    assert abs(best[0] - best[1]) > 0.05  # so that it is the radius that decides


def test_a_schedule_is_a_function_of_the_number_of_trials() -> None:
    client = new_client(WassersteinBall(RadiusSchedule(30.0)))
    play(client, NUM_INITIAL)
    client.get_next_trials(2)  # a pending one does not count
    assert acquisition_of(client).robust.ambiguity.radius == pytest.approx(30.0 / NUM_INITIAL**0.5)


def test_two_contexts_in_an_order_of_their_own() -> None:
    """Their distance is the Euclidean one in the units of both, whatever their bounds."""
    parameters = (*PARAMETERS, RangeParameterConfig("b", bounds=(0, 1), parameter_type="float"))
    points = torch.tensor([[0.5, 20.0], [0.1, 60.0], [0.9, 22.0]], dtype=torch.double)
    ball = WassersteinBall(3.0)
    client = new_client(ball, points, ["b", "c"], parameters)
    play(client, NUM_INITIAL, lambda p: match(p) - 20 * p["b"])
    _, proposed = only(client.get_next_trials(1))
    assert [proposed["b"], proposed["c"]] in points.tolist()
    contexts = ContextDistribution.empirical(points)
    others = [{"b": b, "c": c} for b, c in points.tolist()]
    bounds = predicted_bound(client, [{"a": proposed["a"]}, *GRID], 2.25, contexts=others)
    values = ball.worst_case(bounds, contexts)
    assert float(values[0]) > float(values[1:].max()) - 1e-4
    # The first and the last context are 2 apart, so all mass of one may go to the other.
    lowest = torch.minimum(bounds[:, 0], bounds[:, 2])
    assert (values <= (2 * lowest + bounds[:, 1]) / 3 + 1e-9).all()


def test_the_decision_is_protected_and_the_best_arm_is_not() -> None:
    parameters = [
        RangeParameterConfig(name, bounds=(0, 1), parameter_type="float") for name in ("a", "c")
    ]
    contexts = ContextDistribution.discrete(
        torch.tensor([[1.0], [0.0]]).double(), torch.tensor([0.7, 0.3]).double()
    )
    client = new_client(TotalVariationBall(0.4), contexts, parameters=parameters)
    for i in range(18):
        known = {"a": (i % 6) / 5, "c": (i // 6) / 2}
        client.complete_trial(client.attach_trial(known), {"y": gamble(known)})
    client.get_next_trials(1)
    decision, value = robust_decision(client)
    lucky, *_ = client.get_best_parameterization()

    def protected(a: float) -> float:
        return -((a - 0.8) ** 2) - 2 * a**2  # in the worst case the contexts are equally likely

    best = protected(0.8 / 3)
    assert set(decision) == {"a"}
    assert protected(decision["a"]) > best - 0.02
    assert value == pytest.approx(best, abs=0.03)
    assert protected(float(lucky["a"])) < best - 0.1


def test_the_recommended_decision() -> None:
    """It and its value are those of a grid, by what Ax predicts; nothing is proposed."""
    client = new_client(objective="-y")
    play(client, NUM_INITIAL, lambda p: -match(p))
    client.get_next_trials(1)  # the first one by a model, which Ax asks for predictions
    num_trials = len(client._experiment.trials)
    decision, value = robust_decision(client)
    assert len(client._experiment.trials) == num_trials
    assert robust_decision(client) == (decision, value)
    values = BALL.worst_case(predicted_bound(client, [decision, *GRID], 0.0, -1.0), CONTEXTS)
    assert float(values[0]) > float(values[1:].max()) - 1e-4
    assert -value == pytest.approx(float(values[0]), rel=1e-4)


def test_the_recommended_decision_knows_the_last_trial() -> None:
    client = new_client()
    play(client, NUM_INITIAL)
    trial, _ = only(client.get_next_trials(1))
    _, before = robust_decision(client)
    client.get_next_trials(1)
    assert robust_decision(client)[1] == pytest.approx(before, abs=1e-6)  # both are pending
    client.complete_trial(trial, {"y": 30.0})
    assert abs(robust_decision(client)[1] - before) > 0.01


def test_losses_are_not_winsorized() -> None:
    client = new_client()
    play(client, NUM_INITIAL)
    trial = client.attach_trial({"a": 9.0, "c": 100.0})
    client.complete_trial(trial, {"y": -1e4})
    client.get_next_trials(1)
    (dataset,) = adapter_of(client).generator.surrogate.training_data
    # One of eight standardised values, as far from the others as it can be.
    assert float(dataset.Y.min()) == pytest.approx(-(7 / 8**0.5), abs=0.01)


# ------------------------------------------------------------ spaces


class TestSpaces:
    def test_mixed_decisions(self) -> None:
        """The best one is taken, and the value is that of the decision as Ax rounds it."""
        parameters = (
            *PARAMETERS,
            RangeParameterConfig(name="k", parameter_type="int", bounds=(0, 2)),
            ChoiceParameterConfig(
                "s", values=["u", "v", "w"], parameter_type="str", is_ordered=False
            ),
        )
        client = new_client(parameters=parameters)
        gains = {"u": 0.0, "v": 30.0, "w": 10.0}
        play(client, NUM_INITIAL + 1, lambda p: match(p) + 10 * p["k"] + gains[p["s"]])
        decision, value = robust_decision(client)
        others = [{**decision, "k": k, "s": s} for k in range(3) for s in gains]
        values = BALL.worst_case(predicted_bound(client, [decision, *others]), CONTEXTS)
        assert value == pytest.approx(float(values[0]), rel=1e-6)
        assert float(values[0]) > float(values.max()) - 1e-4

    def test_discrete_decisions_are_not_mistaken_for_contexts(self) -> None:
        """Ax leaves out points that were met: here the best decision was, in some context."""
        parameters = [
            RangeParameterConfig(name=name, parameter_type="int", bounds=(0, 3)) for name in "ca"
        ]
        client = new_client(KLBall(0.1), torch.tensor([[2.0]]), parameters=parameters)
        play(client, NUM_INITIAL + 3, lambda p: -((p["a"] - 2) ** 2))
        assert {"c": 2, "a": 2} in arms(client)
        assert robust_decision(client)[0] == {"a": 2}

    def test_discrete_decisions_may_be_repeated(self) -> None:
        """In contexts of the distribution: a random trial would be in any."""
        parameters = (
            PARAMETERS[0],
            RangeParameterConfig(name="a", parameter_type="int", bounds=(3, 4)),
        )
        client = new_client(contexts=CONTEXTS.points[:2], parameters=parameters)
        play(client, NUM_INITIAL + 5)
        proposed = [(p["a"], p["c"]) for p in arms(client)[NUM_INITIAL:]]
        assert {c for _, c in proposed} <= {20.0, 30.0}  # so five of four pairs
        values = predicted_bound(client, [{"a": 3}, {"a": 4}], contexts=ATOMS[:2])
        centre = ContextDistribution.empirical(CONTEXTS.points[:2])
        best = 3 + int(BALL.worst_case(values, centre).argmax())
        assert robust_decision(client)[0] == {"a": best}

    def test_constraints_on_mixed_decisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The best ones are found without BoTorch's long random walk in the polytope."""
        walks: list[Any] = []
        own = sampling.sample_polytope

        def walk(*args: Any, **kwargs: Any) -> Tensor:
            walks.append(args)
            return own(*args, **kwargs)

        monkeypatch.setattr(sampling, "sample_polytope", walk)
        parameters = (*PARAMETERS, RangeParameterConfig("k", (0, 20), parameter_type="int"))
        client = new_client(
            contexts=CONTEXTS.points[:2],
            parameters=parameters,
            parameter_constraints=("a + 0.5 * k <= 6",),
        )
        play(client, NUM_INITIAL, lambda p: match(p) + 3 * p["k"] - 0.1 * p["k"] ** 2)
        client.get_next_trials(1)
        walks.clear()  # Ax has drawn the initial trials
        decision, _ = robust_decision(client)
        assert not walks
        grid = [{"a": a, "k": k} for k in range(13) for a in (0.0, 0.1, 0.5, 1, 2, 3, 4, 5, 6)]
        allowed = [p for p in grid if p["a"] + 0.5 * p["k"] <= 6]
        bounds = predicted_bound(client, [decision, *allowed], contexts=ATOMS[:2])
        centre = ContextDistribution.empirical(CONTEXTS.points[:2])
        values = BALL.worst_case(bounds, centre)
        assert decision["a"] + 0.5 * decision["k"] <= 6 + 1e-6
        assert float(values[0]) > float(values.max()) - 1e-4

    def test_constraints_and_pending_trials_at_their_edge(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rounding moves some of them beyond the constraint."""
        parameters = (*PARAMETERS, RangeParameterConfig("k", (0, 3), parameter_type="float"))
        client = new_client(parameters=parameters, parameter_constraints=("a + k <= 4",))
        play(client, NUM_INITIAL, lambda p: match(p) + 3 * p["k"])
        decision, _ = robust_decision(client)
        assert decision["a"] + decision["k"] == pytest.approx(4.0, abs=1e-4)
        client.attach_trial({"a": 3.0, "k": 1.0 + 1e-9, "c": 20.0})
        pending: list[Any] = []
        own = RobustDecisions._chosen

        def chosen(self: RobustDecisions, *args: Any) -> tuple[Tensor, Tensor]:
            pending.append(self.X_pending)
            return own(self, *args)

        monkeypatch.setattr(RobustDecisions, "_chosen", chosen)
        client.get_next_trials(1)
        assert [len(each) for each in pending] == [1]

    def test_fixed_decisions(self) -> None:
        parameters = (*PARAMETERS, RangeParameterConfig("k", (0, 3), parameter_type="float"))
        client = new_client(parameters=parameters)
        play(client, NUM_INITIAL + 2, k=1.0)
        # All but the centre, which Ax takes as it is
        assert [p["k"] for p in arms(client)] == [1.5] + [1.0] * (NUM_INITIAL + 1)

    def test_decisions_on_a_logarithmic_scale(self) -> None:
        parameters = (
            PARAMETERS[0],
            RangeParameterConfig("a", (0.1, 10), parameter_type="float", scaling="log"),
        )
        client = new_client(parameters=parameters)
        play(client, NUM_INITIAL + 1)
        decision, _ = robust_decision(client)
        values = BALL.worst_case(predicted_bound(client, [decision, *GRID[1:]]), CONTEXTS)
        assert float(values[0]) > float(values[1:].max()) - 1e-4

    def test_integer_contexts_known_noise_and_other_metrics(self) -> None:
        parameters = (RangeParameterConfig("c", (-50, 150), parameter_type="int"), PARAMETERS[1])
        contexts = torch.tensor([[20.0], [35.0]], dtype=torch.double)
        client = new_client(WassersteinBall(5.0), contexts, parameters=parameters)
        for _ in range(NUM_INITIAL + 2):
            trial, own = only(client.get_next_trials(1))
            client.complete_trial(trial, {"y": (match(own), 0.1), "z": own["a"]})
        assert {type(p["c"]) for p in arms(client)} == {int}
        acqf = acquisition_of(client).robust
        assert acqf.model.num_outputs == 1
        assert isinstance(acqf.contextual_function(None), ClosedFormConfidenceBound)


# ------------------------------------------------------------ contexts of proposals


class TestContexts:
    def test_they_are_drawn_from_the_distribution(self) -> None:
        client = new_client()
        play(client, NUM_INITIAL)
        client.get_next_trials(1)
        acquisition = acquisition_of(client)
        torch.manual_seed(0)
        draws = [acquisition._drawn_context(n).item() for n in range(2000)]
        for atom, weight in zip(CONTEXTS.points[:, 0].tolist(), CONTEXTS.weights, strict=True):
            # Four standard deviations at most
            assert draws.count(atom) / 2000 == pytest.approx(float(weight), abs=0.045)

    def test_they_are_repeatable_and_differ_from_call_to_call(self) -> None:
        runs = []
        contexts = torch.linspace(0, 100, 64, dtype=torch.double).unsqueeze(-1)
        for _ in range(2):
            client = new_client(KLBall(0.1), contexts)
            play(client, NUM_INITIAL + 3)
            runs.append(arms(client))
        assert runs[0] == runs[1]
        assert len({p["c"] for p in runs[0][NUM_INITIAL:]}) >= 3

    @pytest.mark.parametrize("num_tracked", [3, NUM_INITIAL])
    def test_without_a_distribution_they_are_those_that_were_met(self, num_tracked: int) -> None:
        """With the objective, not with a metric that is tracked in some trials and is Ax's first.

        Of one that is tracked in all of them Ax makes a single model with the objective.
        """
        client = new_client(KLBall(0.1), contexts=None)
        for i in range(NUM_INITIAL):
            trial, _ = only(client.get_next_trials(1))
            data = {"y": float(i), **({"a_cost": float(i)} if i < num_tracked else {})}
            complete_trial_in_context(client, trial, {"c": 10.0 * (i % 3)}, data)
        client.get_next_trials(1)
        contexts = acquisition_of(client).robust.contexts
        assert sorted(contexts.points[:, 0].tolist()) == [0.0, 10.0, 20.0]
        assert contexts.weights.sort().values.tolist() == pytest.approx([2 / 7, 2 / 7, 3 / 7])
        assert len(client.get_next_trials(2)) == 2

    def test_another_distribution_in_the_middle_of_a_run(self) -> None:
        """Without initial trials, as the guide has it."""
        client = new_client()
        play(client, NUM_INITIAL + 1)
        own = GenerationStrategyDispatchStruct(method="custom", initialization_budget=0)
        client.set_generation_strategy(
            robust_generation_strategy(client, "c", torch.tensor([[77.0]]), BALL, struct=own)
        )
        assert only(client.get_next_trials(1))[1]["c"] == 77.0

    def test_other_contexts_come(self) -> None:
        """The model learns from these; the proposed trial is neither pending nor repeated."""
        client = new_client()
        num = NUM_INITIAL + 1
        for i in range(num):
            trial, parameters = only(client.get_next_trials(1))
            actual = {**parameters, "c": 12.5 + i}
            recorded = complete_trial_in_context(
                client, trial, {"c": actual["c"]}, {"y": match(actual)}
            )
            trials: Any = client._experiment.trials
            assert trials[recorded].arm.parameters == actual
            assert trials[recorded].status == TrialStatus.COMPLETED
            assert trials[trial].status == TrialStatus.FAILED
        assert len(client._experiment.trials) == 2 * num  # so the initial ones have come to an end
        _, proposed = only(client.get_next_trials(1))
        inputs: Any = raw_train_inputs(adapter_of(client).botorch_model)
        assert sorted(inputs[:, 0].tolist()) == [12.5 + i for i in range(num)]
        acqf = acquisition_of(client).acqf
        assert not isinstance(acqf.model, CensoredDelayModel)  # nothing is pending
        assert all(abs(proposed["a"] - p["a"]) > 1e-6 for p in arms(client)[:-1])

    def test_numbers_of_any_kind_may_come(self, tmp_path: Path) -> None:
        """As measurements and counts are; Ax itself insists on Python's own type."""
        parameter_type: Any
        for kind, parameter_type in ((float, "float"), (int, "int")):
            context = RangeParameterConfig("c", (-50, 150), parameter_type=parameter_type)
            client = new_client(
                contexts=CONTEXTS.points.float(), parameters=(context, PARAMETERS[1])
            )
            for came in (7, 7.0, np.float32(7), np.float64(7), np.int64(7)):
                trial, _ = only(client.get_next_trials(1))
                recorded = complete_trial_in_context(client, trial, {"c": came}, {"y": 1.0})
                found = client._experiment.trials[recorded].arms[0].parameters["c"]
                assert found == 7 and type(found) is kind
            client.save_to_json_file(str(tmp_path / "client.json"))

    def test_all_contexts_are_needed_and_no_others(self) -> None:
        client = new_client()
        trial, _ = only(client.get_next_trials(1))
        wrong: list[Any] = [7.0, {}, {"c": 1.0, "a": 2.0}, {"d": 1.0}]
        wrong += [{"c": value} for value in (True, None, "warm", math.nan, 200.0)]
        for contexts in wrong:
            with pytest.raises(InputDataError, match="`contexts` must"):
                complete_trial_in_context(client, trial, contexts, {"y": 1.0})
        assert list(client._experiment.trials) == [trial]
        assert client._experiment.trials[trial].status == TrialStatus.RUNNING

    def test_data_that_ax_refuses_leave_the_trial_running(self) -> None:
        client = new_client()
        trial, parameters = only(client.get_next_trials(1))
        other = {"c": parameters["c"] + 1.0}
        with pytest.raises(UserInputError):
            complete_trial_in_context(client, trial, other, {"y": "much"})
        running = [i for i, t in client._experiment.trials.items() if t.status.is_running]
        assert running == [trial]
        recorded = complete_trial_in_context(client, trial, other, {"y": 1.0})
        assert client._experiment.trials[recorded].status == TrialStatus.COMPLETED

    def test_the_proposed_context_comes_and_the_trial_must_run(self) -> None:
        client = new_client()
        trial, parameters = only(client.get_next_trials(1))
        assert complete_trial_in_context(client, trial, {"c": parameters["c"]}, {"y": 1.0}) == trial
        assert len(client._experiment.trials) == 1
        assert client._experiment.trials[trial].status == TrialStatus.COMPLETED
        for wrong in (trial, 17):
            with pytest.raises(InputDataError, match="running trial"):
                complete_trial_in_context(client, wrong, {"c": 1.0}, {"y": 1.0})


# ------------------------------------------------------------ several trials at a time


def test_trials_at_a_time() -> None:
    """The decisions differ, as pending points are hallucinated, also those of earlier calls."""
    client = new_client(calibrated=CALIBRATED)
    play(client, NUM_INITIAL + 1)
    asked: list[dict[str, Any]] = [
        dict(parameters) for n in (2, 1) for parameters in client.get_next_trials(n).values()
    ]
    decisions = sorted(p["a"] for p in asked)
    assert min(b - a for a, b in zip(decisions, decisions[1:], strict=False)) > 0.01
    model: Any = acquisition_of(client).acqf.model
    assert type(model) is CensoredDelayModel
    assert isinstance(model.model, CalibratedModel)
    pending = {(p["c"], p["a"]) for p in asked[:2]}
    assert {tuple(row) for row in model.X_pending.tolist()} == pending


def test_arms_at_a_time() -> None:
    """As of batch trials, which a client does not make: one after the other, too."""
    client = new_client()
    play(client, NUM_INITIAL + 1)
    runs = client._generation_strategy.gen(experiment=client._experiment, n=3, num_trials=1)
    generated: list[Any] = [arm.parameters for arm in runs[0][0].arms]
    found = [(parameters["c"], parameters["a"]) for parameters in generated]
    decisions = sorted(a for _, a in found)
    assert min(b - a for a, b in zip(decisions, decisions[1:], strict=False)) > 0.002
    assert all(c in CONTEXTS.points for c, _ in found)
    # The last one was chosen while the others were pending.
    model: Any = acquisition_of(client).acqf.model
    assert type(model) is CensoredDelayModel and not isinstance(model.model, CalibratedModel)
    torch.testing.assert_close(model.X_pending, torch.tensor(found[:2], dtype=torch.double))


def test_evaluation_of_the_function() -> None:
    """By its decision alone, as in Ax's own tools."""
    client = new_client()
    play(client, NUM_INITIAL + 1)
    points = [ObservationFeatures({"a": 4.0, "c": c}) for c in (0.0, 100.0)]
    values = adapter_of(client).evaluate_acquisition_function(points)
    acqf = acquisition_of(client).robust
    expected = acqf(torch.tensor([[[4.0]]], dtype=torch.double)).item()
    assert values == pytest.approx([expected] * 2)


# ------------------------------------------------------------ storage


@pytest.mark.parametrize(
    ("contexts", "calibrated"),
    [
        (CONTEXTS.with_lipschitz_points(CONTEXTS.points), CALIBRATED),
        (None, None),
        pytest.param(None, CALIBRATED, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stored_and_loaded(
    contexts: ContextDistribution | None, calibrated: ModelConfig | None, tmp_path: Path
) -> None:
    client = new_client(WassersteinBall(15.0, "lipschitz"), contexts, calibrated=calibrated)
    play(client, NUM_INITIAL + 1)
    running, _ = only(client.get_next_trials(1))
    path = str(tmp_path / "client.json")
    client.save_to_json_file(path)
    loaded = Client.load_from_json_file(path)
    decision, value = robust_decision(client)
    again, same = robust_decision(loaded)
    assert again["a"] == pytest.approx(decision["a"], abs=1e-3)
    assert same == pytest.approx(value, rel=1e-4)
    complete_trial_in_context(loaded, running, {"c": 7.0}, {"y": 30.0})
    loaded.get_next_trials(2)
    acquisition = acquisition_of(loaded)
    assert type(acquisition) is RobustDecisions
    assert repr(acquisition.robust.ambiguity) == repr(WassersteinBall(15.0, "lipschitz"))
    if contexts is not None:
        found = acquisition.robust.contexts
        torch.testing.assert_close(found.points, contexts.points)
        torch.testing.assert_close(found.weights, contexts.weights)
        torch.testing.assert_close(found.lipschitz_points, contexts.lipschitz_points)


def test_sets_are_stored_as_plain_values() -> None:
    for ambiguity in (
        BALL,
        WassersteinBall(0.2, "lipschitz"),
        WassersteinBall(RadiusSchedule(0.3)),
        WassersteinBall(torch.tensor(0.2)),
        TotalVariationBall(0.3),
        KLBall(0.2),
        ChiSquaredBall(0.2),
        MMDBall(0.2, lengthscale=torch.tensor([0.5], dtype=torch.double), jitter=1e-3),
        ConditionalValueAtRisk(0.3),
        WorstCase(),
    ):
        stored = stored_ambiguity(ambiguity)
        assert isinstance(stored, dict)
        assert repr(read_ambiguity(stored)) == repr(ambiguity)


class _Slower(RadiusSchedule):
    def __call__(self, t: int) -> float:
        return self.c / (1 + math.log(t))


class _Mine(AmbiguitySet):
    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        return contexts.weights.expand_as(u)


def test_sets_that_cannot_be_stored_can_be_used(tmp_path: Path) -> None:
    for ambiguity in (WassersteinBall(lambda t: 30.0 / t), WassersteinBall(_Slower()), _Mine()):
        client = new_client(ambiguity)
        with pytest.raises(JSONEncodeError):
            client.save_to_json_file(str(tmp_path / "client.json"))
    play(client, NUM_INITIAL + 1)
    assert set(robust_decision(client)[0]) == {"a"}


# ------------------------------------------------------------ errors


class TestErrors:
    def test_nothing_to_optimise(self) -> None:
        client = client_without_strategy()
        with pytest.raises(InputDataError, match="configure_optimization"):
            robust_generation_strategy(client, "c", CONTEXTS, BALL)

    def test_other_problems(self) -> None:
        for objective, constraints in (("y, z", ()), ("y + z", ()), ("y", ("z <= 1",))):
            client = client_without_strategy()
            client.configure_optimization(objective, outcome_constraints=constraints)
            with pytest.raises(UnsupportedError, match="one objective without outcome constraints"):
                robust_generation_strategy(client, "c", CONTEXTS, BALL)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"context_names": "d"}, "has 'd'"),
            ({"context_names": []}, "at least one"),
            ({"context_names": ["c", "c"]}, "different"),
            ({"context_names": ["c", "a"], "contexts": None}, "no parameter to decide on"),
            ({"context_names": "a"}, r"`contexts` must lie within the bounds .* of 'a'"),
            ({"contexts": torch.ones(3, 2)}, "a column for each"),
            ({"contexts": CONTEXTS.with_indices([0])}, "indices"),
            (
                {"contexts": CONTEXTS.with_lipschitz_points(torch.tensor([[151.0]]))},
                "lipschitz_points",
            ),
            ({"ambiguity": 0.1}, "AmbiguitySet"),
            ({"beta": -1.0}, "beta"),
            ({"struct": GenerationStrategyDispatchStruct(method="fast")}, "`struct` must have"),
            ({"calibrated": OnlineConformal}, "calibrated_model_config"),
        ],
    )
    def test_settings(self, options: dict[str, Any], match: str) -> None:
        with pytest.raises(InputDataError, match=match):
            new_client(**options)

    def test_parameters_that_are_no_contexts(self) -> None:
        values = [20.0, 30.0]
        context: Any
        for context in (
            ChoiceParameterConfig("c", values=values, parameter_type="float", is_ordered=True),
            RangeParameterConfig("c", (0, 100), parameter_type="float", step_size=10),
            RangeParameterConfig("c", (1, 100), parameter_type="float", scaling="log"),
        ):
            with pytest.raises(UnsupportedError, match="'c' must be"):
                new_client(parameters=(context, PARAMETERS[1]))

    def test_contexts_between_integers(self) -> None:
        parameters = (RangeParameterConfig("c", (-50, 150), parameter_type="int"), PARAMETERS[1])
        with pytest.raises(InputDataError, match="integers, as 'c' is"):
            new_client(contexts=torch.tensor([[20.5]]), parameters=parameters)

    def test_bounds_in_single_precision(self) -> None:
        """A grid over the bounds is within them, though rounding took its end out of them."""
        parameters = (RangeParameterConfig("c", (0, 0.1), parameter_type="float"), PARAMETERS[1])
        grid = torch.linspace(0, 0.1, 5).unsqueeze(-1)
        assert grid.double().max() > 0.1
        contexts = ContextDistribution.empirical(grid).with_lipschitz_points(grid)
        client = new_client(contexts=contexts, parameters=parameters)
        spec = client._generation_strategy.nodes_by_name["MBM"].generator_specs[0]
        stored = spec.generator_kwargs["botorch_acqf_options"]["contexts"]
        assert stored["points"][-1] == stored["lipschitz_points"][-1] == [0.1]
        with pytest.raises(InputDataError, match="bounds"):
            new_client(contexts=grid * 1.000001, parameters=parameters)

    def test_contexts_in_constraints(self) -> None:
        with pytest.raises(UnsupportedError, match="'c' must not be in a parameter constraint"):
            new_client(parameter_constraints=("a + c <= 100",))

    def test_parameters_that_depend_on_others(self) -> None:
        parent = ChoiceParameterConfig(
            "s",
            values=["u", "v"],
            parameter_type="str",
            is_ordered=True,
            dependent_parameters={"u": ["a"], "v": ["c"]},
        )
        with pytest.raises(UnsupportedError, match="depend on others"):
            new_client(parameters=(*PARAMETERS, parent))

    def test_simplified_changes(self) -> None:
        with pytest.raises(UnsupportedError, match="simplify_parameter_changes"):
            new_client(struct=struct(simplify_parameter_changes=True))

    def test_parameters_derived_from_contexts(self) -> None:
        """Ax would keep what was derived from the context that was proposed."""
        for of in "ca":
            derived = DerivedParameterConfig(
                name="d", expression_str=f"2 * {of} + 1", parameter_type="float"
            )
            parameters = (*PARAMETERS, derived)
            if of == "c":
                with pytest.raises(UnsupportedError, match="'c' must not .* as 'd' is"):
                    new_client(parameters=parameters)
                continue
            client = new_client(parameters=parameters)
            play(client, NUM_INITIAL)
            decision, _ = robust_decision(client)
            assert decision["d"] == pytest.approx(2 * decision["a"] + 1)

    def test_fixed_out_of_bounds_or_contexts(self) -> None:
        other = RangeParameterConfig("k", (0, 3), parameter_type="int")
        client = new_client(parameters=(*PARAMETERS, other))
        play(client, NUM_INITIAL)
        with pytest.raises(InputDataError, match=r"fixed values of \['a'\] must be within"):
            client.get_next_trials(1, {"a": 11.0})
        with pytest.raises(UnsupportedError, match=r"\['c'\] cannot be fixed"):
            client.get_next_trials(1, {"c": 30.0})

    def test_no_strategy(self) -> None:
        for client in (Client(), client_without_strategy()):
            with pytest.raises(InputDataError, match="robust_generation_strategy"):
                robust_decision(client)
            with pytest.raises(InputDataError, match="robust_generation_strategy"):
                complete_trial_in_context(client, 0, {"c": 1.0}, {"y": 1.0})

    def test_no_robust_strategy(self) -> None:
        client = new_client()
        trial, _ = only(client.get_next_trials(1))
        for other in (
            calibrated_generation_strategy(client),
            choose_generation_strategy(GenerationStrategyDispatchStruct(method="random_search")),
        ):
            client.set_generation_strategy(other)
            with pytest.raises(InputDataError, match="robust_generation_strategy"):
                robust_decision(client)
            with pytest.raises(InputDataError, match="robust_generation_strategy"):
                complete_trial_in_context(client, trial, {"c": 1.0}, {"y": 1.0})

    def test_no_observations(self) -> None:
        client = new_client()
        trial, _ = only(client.get_next_trials(1))
        for _ in range(2):
            with pytest.raises(InputDataError, match="complete a trial first"):
                robust_decision(client)
            client.attach_data(trial, {"z": 1.0})  # of another metric

"""Books of a `ChanceConstraint` under what loops do wrong: the right books, or an error at once."""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import MultiTaskGP, SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor
from torch.testing import assert_close

from botorch_calib import CalibratedModel, ChanceConstraint, LocalizedConformal, TotalVariationBall
from botorch_calib.decisions.chance_constrained_search import warn_uncertified
from botorch_calib.exceptions import CalibrationWarning, NotCertifiedWarning
from botorch_calib.robust import ContextDistribution
from tests.gps import make_gp

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
AGAIN = "recorded before, or are among the initial data"
WIDE: dict[str, Any] = {"upper": 100.0, "rows": ()}


def data(num: int, seed: int = 0, dtype: torch.dtype = torch.double) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num, 2, generator=generator, dtype=torch.double)
    Y = 30.0 + X.sum(dim=-1, keepdim=True) + 0.3 * torch.randn(num, 1, generator=generator).double()
    return X.to(dtype), Y.to(dtype)


def fitted(X: Tensor, Y: Tensor) -> SingleTaskGP:
    transforms: dict[str, Any] = {
        "input_transform": Normalize(2),
        "outcome_transform": Standardize(1),
    }
    return SingleTaskGP(X, Y, **transforms).eval()


def outcomes(constraint: ChanceConstraint) -> list[Any]:
    return [row["outcomes"]["y"] for row in constraint.decisions]


def size(constraint: ChanceConstraint) -> int:
    return len(constraint.model.train_targets)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_all_data_told_each_round(dtype: torch.dtype, is_rebuilt: bool) -> None:
    """As BoTorch's loops tell a model: only new outcomes are entered, with a warning at once."""
    X, Y = data(14, dtype=dtype)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    for num in range(11, 15):
        if num % 2:
            tested.decide(X[num - 1 : num])
        with pytest.warns(CalibrationWarning, match=f"^{num - 1} of {num} outcomes were {AGAIN}"):
            tested.observe(X[:num], Y[:num])
        assert size(tested) == num and tested.num_observed == tested.num_decisions == num - 10
        gp = fitted(X[:num], Y[:num])
        if is_rebuilt:
            rows = json.loads(json.dumps(tested.decisions))
            tested = ChanceConstraint(gp, **{**WIDE, "rows": rows})
        else:
            tested = tested.with_model(gp)
    assert [row["point"] for row in tested.decisions] == X[10:].tolist()


def test_replicated_points_are_told_as_often_as_they_are_decided_about() -> None:
    """With outcomes on a grid, of which equal ones are not told again."""
    X, _ = data(10)
    Y = torch.arange(10, dtype=torch.double).remainder(2).unsqueeze(-1)
    tested, x = ChanceConstraint(fitted(X, Y), **WIDE), X[1:2]  # where the outcome was 1
    for _ in range(3):
        tested.decide(x)
        tested.observe(x, Y[1:2])
    tested.observe(x.repeat(2, 1), torch.tensor([[3.0], [4.0]]).double())  # never told
    assert outcomes(tested) == [1.0, 1.0, 1.0, 3.0, 4.0] and size(tested) == 15
    # All data told again, while a decision about the point is out, and with its outcome.
    tested.decide(x)
    told = torch.cat([X, x.repeat(3, 1)]), torch.cat([Y, Y[1:2].repeat(3, 1)])
    with pytest.warns(CalibrationWarning, match="^13 of 13"):
        tested.observe(*told)
    assert tested.num_outstanding == 1
    with pytest.warns(CalibrationWarning, match="^13 of 14"):
        tested.observe(torch.cat([told[0], x]), torch.cat([told[1], Y[1:2]]))
    assert tested.num_observed == 6 and size(tested) == 16
    # Without a decision an equal outcome was told before, though other points have it as well.
    with pytest.warns(CalibrationWarning, match="^1 of 1"):
        tested.observe(x, Y[1:2])
    assert outcomes(tested) == [1.0, 1.0, 1.0, 3.0, 4.0, 1.0]
    with pytest.warns(CalibrationWarning, match="call `decide` before each measurement"):
        tested.observe(x, torch.tensor([[3.0]]).double())


def test_an_outcome_that_comes_later_is_told_with_the_first() -> None:
    gps = {"a": make_gp(), "b": make_gp(num=9)}
    tested = ChanceConstraint(gps, limits={"a": (None, 9.0), "b": (None, 9.0)}, rows=())
    x = torch.tensor([[0.3, 0.6]]).double()
    tested.observe(x, torch.tensor([[1.0, math.nan]]).double())
    tested.observe(x, torch.tensor([[1.0, 2.0]]).double())
    (row,) = tested.decisions
    assert row["outcomes"] == {"a": 1.0, "b": 2.0}
    assert [len(model.train_targets) for model in tested.models.values()] == [13, 10]
    with pytest.warns(CalibrationWarning, match=AGAIN):
        tested.observe(x, torch.tensor([[math.nan, 2.0]]).double())


def test_a_model_that_was_refitted_before_observe() -> None:
    """It decides with hindsight, which is an error; decisions from before are right."""
    X, Y = data(12)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    for told in (slice(10, 11), slice(0, 11)):
        refitted = tested.with_model(fitted(X[:11], Y[:11]))
        with pytest.raises(InputDataError, match="use hindsight. Call `observe` first, then refit"):
            refitted.observe(X[told], Y[told])
        assert not refitted.decisions and size(refitted) == 11
    tested.observe(X[10:11], Y[10:11])  # the remedy
    tested.decide(X[11:])
    for late in (
        tested.with_model(fitted(X, Y)),
        ChanceConstraint(fitted(X, Y), upper=100.0, rows=tested.decisions),
    ):
        late.observe(X[11:], Y[11:])
        assert late.num_observed == 2 and size(late) == 12  # not counted twice


def test_calibrated_models_leave_out_what_they_have() -> None:
    X, Y = data(12)
    model = CalibratedModel(fitted(X[:10], Y[:10]), LocalizedConformal(0.2), denoise=False)
    for told, match in ((slice(0, 11), "^10 of 11 observations"), (slice(10, 11), "^1 of 1 obs")):
        with pytest.warns(CalibrationWarning, match=match):
            model.observe(X[told], Y[told])
        assert model.calibrator.num_updates == 1 and len(model.train_targets) == 11
    refitted = model.with_model(fitted(X, Y))
    with pytest.warns(
        CalibrationWarning, match="Call `observe` with new observations only, then refit"
    ):
        refitted.observe(X[11:], Y[11:])
    refitted.observe(X[11:], Y[11:] + 0.1)  # measured again
    assert model.calibrator.num_updates == 2
    tested = ChanceConstraint(refitted, **WIDE)
    tested.decide(X[11:])
    tested.observe(X[11:], Y[11:])
    assert model.calibrator.num_updates == 2 + 1  # an outcome as before, of a decision of its own


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_points_that_come_back_rounded(scale: float) -> None:
    X, Y = data(20)
    tested = ChanceConstraint(fitted(scale * X[:10], Y[:10]), **WIDE)
    decided = scale * X[10:]
    digits = [[float(f"{v:.6g}") for v in row] for row in decided.tolist()]
    decimals = scale * X[10:].mul(1e6).round().div(1e6)
    for came in (torch.tensor(digits).double(), decimals, decided.float().double()):
        tested.decide(decided)
        tested.observe(came, Y[10:] + torch.rand(1).double(), condition=False)
        assert tested.num_outstanding == 0
    assert tested.num_decisions == 30
    # The data hold the rounded point, which is decided about again, in another process.
    gp = fitted(torch.cat([scale * X[:10], came]), torch.cat([Y[:10], Y[:10] * 0.5]))
    tested.decide(decided[:1])
    tested.observe(came[:1], Y[:1] * 0.5)
    rows = tested.decide(decided[:1]) and tested.decisions
    rebuilt = ChanceConstraint(gp, **{**WIDE, "rows": rows})
    rebuilt.observe(came[:1], Y[1:2])
    assert rebuilt.num_decisions == rebuilt.num_observed == 32


def test_a_point_that_may_be_several_decisions_is_an_error() -> None:
    X, Y = data(10)
    tested = ChanceConstraint(fitted(X, Y), **WIDE)
    decided = torch.tensor([[0.5, 0.7], [0.500001, 0.7]], dtype=torch.double)
    tested.decide(decided)
    between = torch.tensor([[0.5000004, 0.7]], dtype=torch.double)
    with pytest.raises(InputDataError, match=r"matches the decisions about \[0.5, 0.7.*0.500001"):
        tested.observe(between, Y[:1])
    tested.observe(decided[1:], Y[:1])  # the very point
    tested.observe(between, Y[1:2])  # there is one left
    assert outcomes(tested) == [Y[1].item(), Y[0].item()]


def test_decisions_that_were_never_run_are_withdrawn() -> None:
    X, Y = data(20)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE, budget=2.0)
    with pytest.warns(CalibrationWarning, match="^The outcomes of 3 certified points are pending"):
        rows = tested.decide(X[10:15])
    with pytest.warns(NotCertifiedWarning, match="is spent or pending.*`withdraw` points"):
        warn_uncertified(tested)
    tested.withdraw(X[11:15].float().double())  # found though rounded
    assert tested.decisions == rows[:1] and tested.budget_left == pytest.approx(1.1)
    rebuilt = ChanceConstraint(fitted(X[:10], Y[:10]), 100.0, rows=tested.decisions, budget=2.0)
    assert_close(rebuilt.margin(X.unsqueeze(-2)), tested.margin(X.unsqueeze(-2)))
    tested.decide(X[10:11])
    with pytest.raises(InputDataError, match=r"`X\[2\]`.* no decision that can be withdrawn"):
        tested.withdraw(X[10:11].repeat(3, 1))  # of which there are two
    assert tested.num_decisions == 2  # a call that fails takes back none
    tested.observe(X[10:11], Y[10:11])
    tested.withdraw(X[10:11])
    assert outcomes(tested) == [Y[10].item()]


def test_a_withdrawn_decision_that_was_run_counts_again() -> None:
    X, Y = data(20)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    tested.decide(X[10:11])
    tested.withdraw(X[10:11])
    tested.observe(X[11:12], Y[11:12])
    assert tested.num_decisions == 1
    with pytest.warns(CalibrationWarning, match="^1 of the outcomes belong to withdrawn"):
        tested.observe(X[10:11].float().double(), Y[10:11] + 100.0)  # rounded
    assert outcomes(tested) == [Y[11].item(), Y[10].item() + 100.0] and tested.num_violations == 1
    with pytest.raises(InputDataError, match="no decision that can be withdrawn"):
        tested.withdraw(X[10:11])


def test_an_outcome_that_is_known_restores_no_withdrawn_decision() -> None:
    X, Y = data(20)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    for _ in range(2):
        tested.decide(X[10:11])
    tested.withdraw(X[10:11])
    tested.observe(X[10:11], Y[10:11])
    with pytest.warns(CalibrationWarning, match=AGAIN):
        tested.observe(X[10:11], Y[10:11])
    assert outcomes(tested) == [Y[10].item()]


def test_the_last_safe_point_is_the_latest_that_kept_all_limits() -> None:
    X, Y = data(20)
    gp = fitted(X[:10], Y[:10])
    tested = ChanceConstraint(gp, **WIDE)
    assert_close(tested.last_safe(), X[9:10])
    tested.decide(X[10:12])
    tested.observe(X[11:12], Y[11:12])
    assert_close(tested.last_safe(), X[11:12])
    tested.observe(X[10:11], Y[10:11])  # which was decided about earlier
    tested.observe(X[12:13], Y[12:13] + 100.0)
    tested.observe(X[13:14], Y[13:14], beyond=torch.ones_like(Y[13:14]))  # maybe above the limit
    assert_close(tested.last_safe(), X[11:12])
    assert ChanceConstraint(gp, upper=-100.0, rows=()).last_safe() is None


def test_the_last_safe_point_has_the_present_inputs() -> None:
    """Clients drop the points of decisions about other inputs, and keep their outcomes."""
    X, Y = data(10)
    tested = ChanceConstraint(fitted(X, Y), **WIDE)
    tested.observe(X[:1] / 2, Y[:1])
    earlier = [{**row, "point": []} for row in tested.decisions]
    resumed = ChanceConstraint(fitted(X, Y), upper=100.0, rows=earlier)
    assert_close(resumed.last_safe(), X[-1:])


def test_the_last_safe_point_is_one_of_the_output_task() -> None:
    X, Y = data(10)
    tasks = torch.arange(10.0, dtype=torch.double).remainder(2).unsqueeze(-1)
    gp = MultiTaskGP(torch.cat([X, tasks], dim=-1), Y, task_feature=-1, output_tasks=[0])
    tested = ChanceConstraint(gp, **WIDE)
    assert_close(tested.last_safe(), torch.cat([X, tasks], dim=-1)[8:9])
    tested.decide(X[9:])
    tested.observe(X[9:], Y[9:])
    assert_close(tested.last_safe(), X[9:])


def test_a_decision_with_an_outcome_is_not_withdrawn() -> None:
    gps = {"a": make_gp(), "b": make_gp(num=9)}
    tested = ChanceConstraint(gps, limits={"a": (None, 9.0), "b": (None, 9.0)}, rows=())
    x = torch.tensor([[0.3, 0.6]]).double()
    tested.decide(x)
    tested.observe(x, torch.tensor([[1.0, math.nan]]).double())
    with pytest.raises(InputDataError, match="with an outcome was run, and counts"):
        tested.withdraw(x)


def test_decisions_that_others_have_overtaken_are_told_of() -> None:
    X, Y = data(40)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    tested.decide(X[10:16])
    tested.observe(X[16:35], Y[16:35] + 200.0 * (torch.arange(19) < 4).unsqueeze(-1).double())
    tested.decide(X[35:36])
    tested.observe(X[35:36], Y[35:36])
    with pytest.warns(CalibrationWarning, match="outcomes of 6 .* each overtaken by 20 .* most of"):
        tested.decide(X[36:37])


def test_points_in_contexts_are_told_once() -> None:
    X, Y = data(14)
    contexts = ContextDistribution.empirical(X[:4, 1:])
    ball: dict[str, Any] = {"ambiguity": TotalVariationBall(0.1), "contexts": contexts}
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE, **ball)
    with pytest.warns(CalibrationWarning, match="^10 of 14"):
        tested.observe(X, Y)
    assert tested.num_decisions == 4 and size(tested) == 14
    refitted = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE, **ball).with_model(fitted(X, Y))
    with pytest.raises(InputDataError, match="use hindsight"):
        refitted.observe(X[10:], Y[10:])


def test_a_model_that_is_changed_in_place_is_read_anew() -> None:
    X, Y = data(25)
    at = data(50, seed=1)[0].unsqueeze(-2)
    gp: Any = fitted(X[:20], Y[:20])
    tested = ChanceConstraint(gp, upper=31.0)
    state = copy.deepcopy(gp.state_dict())

    def changes() -> Iterator[None]:
        gp.likelihood.noise = 1e-3
        yield
        gp.load_state_dict(state)
        yield
        gp.covar_module.lengthscale = 0.3
        yield
        gp.train().set_train_data(X, Y.squeeze(-1) - 30.0, strict=False)
        yield

    before = tested.margin(at), tested.typical_deviation()
    for _ in changes():
        now = tested.margin(at), tested.typical_deviation()
        anew = ChanceConstraint(gp, upper=31.0, rows=())
        assert_close(now[0], anew.margin(at), rtol=0, atol=0)
        assert_close(now[1], anew.typical_deviation(), rtol=0, atol=0)
        assert not torch.equal(now[0], before[0])
        before = now


def test_threads_take_turns() -> None:
    X, Y = data(10)
    tested = ChanceConstraint(fitted(X, Y), upper=100.0, rows=(), budget=math.inf)

    def work(x: Tensor) -> None:
        tested.decide(x)
        tested.certified(x.unsqueeze(0))
        tested.observe(x, x.sum(dim=-1, keepdim=True))
        tested.decide(x + 1.0)
        tested.withdraw(x + 1.0)
        tested.with_model(tested.model)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, data(24, seed=2)[0].split(1)))
    assert tested.num_decisions == tested.num_observed == 24 and size(tested) == 34
    for twin in (copy.deepcopy(tested), pickle.loads(pickle.dumps(tested))):
        twin.decide(X[:1])
        assert twin.num_decisions == 25
    assert tested.num_decisions == 24


def test_right_loops_are_not_warned() -> None:
    """With initial data, refits, late outcomes, replicates and no observations at all."""
    X, Y = data(30)
    tested = ChanceConstraint(fitted(X[:10], Y[:10]), **WIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for num in range(10, 28, 3):
            tested.decide(X[num : num + 2])
            tested.observe(X[num + 1 : num + 3], Y[num + 1 : num + 3])  # one without a decision
            tested.observe(X[num : num + 1], Y[num : num + 1], condition=False)
            tested.observe(X[num : num + 1], Y[num : num + 1] + 0.1)  # measured again
            tested.observe(X[:0], Y[:0])
            tested = tested.with_model(fitted(X[: num + 3], Y[: num + 3]))
    assert tested.num_decisions == tested.num_observed == 24

"""The tables of supported models are complete and up to date, and their remedies work."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.models import MultiTaskGP
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP

from benchmarks.support import matrix
from benchmarks.support.models import ENTRIES, NO_ROW, data, model_classes
from botorch_calib import CalibratedModel, LocalizedConformal

ROWS = {entry.name: entry for entry in ENTRIES}


# Every fifth model: exact, with several outcomes or tasks, additive, unsupported or in part.
@pytest.fixture(scope="module", params=[5, pytest.param(1, marks=pytest.mark.slow)])
def verdicts(request) -> matrix.Verdicts:
    return matrix.run_matrix(ENTRIES[:: request.param])


def test_each_model_class_has_a_row_or_a_reason() -> None:
    """A new model class of a BoTorch release makes this test fail."""
    rows = {name.split()[0] for name in ROWS}
    assert model_classes() == rows | set(NO_ROW)
    assert not rows & set(NO_ROW)


def test_the_tables_are_up_to_date(verdicts: matrix.Verdicts) -> None:
    """If this fails, run ``python -m benchmarks support``."""
    text = matrix.PAGE.read_text(encoding="utf-8")
    notes = re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)
    for name, row in verdicts.items():
        entry = ROWS[name]
        rows = [matrix.operations_row(entry, row, notes), matrix.remedy_row(entry, row)]
        assert not {*filter(None, rows)} - {*text.splitlines()}
        assert any(rows) or name in text.partition("| all |")[2].partition("\n")[0]
    if len(verdicts) == len(ENTRIES):
        assert text == matrix.page(verdicts)


def test_what_is_not_supported_says_what_to_do(verdicts: matrix.Verdicts) -> None:
    words = ("use ", "call ", "give ", "cannot be pickled", "cannot be loaded", "calibrate", ": a ")
    for name, row in verdicts.items():
        for each in row.values():
            note = ROWS[name].instead or each.error
            assert each.supported or any(word in note for word in words), (name, note)


def test_the_usual_models_support_everything(verdicts: matrix.Verdicts) -> None:
    usual = {"SingleTaskGP", "ModelListGP", "SingleTaskGP with Log", "MixedSingleTaskGP"}
    for name in usual & verdicts.keys():
        assert all(each.supported for each in verdicts[name].values())


# ------------------------------------------------------------ remedies


def improvement(model: Any, X: Any, **options: Any) -> torch.Tensor:
    value = qLogExpectedImprovement(model, 0.5, **options)(X.unsqueeze(-2))
    assert value.isfinite().all()
    return value


def test_remedy_of_tasks_with_inputs_of_their_own() -> None:
    (X, Y), (Z, W) = data(), data(12, 3, seed=4)
    tasks = torch.cat([torch.zeros(20, 1), torch.ones(12, 1)]).to(X)
    common = torch.cat([torch.cat([X, Z[:, :2]]), tasks], dim=-1)
    gp = MultiTaskGP(common, torch.cat([Y, W]), task_feature=2, output_tasks=[0])
    improvement(CalibratedModel.from_history(gp, LocalizedConformal(0.2)), X[:3])


def test_remedy_where_conditioning_fails() -> None:
    """Observe only to calibrate, refit, and pass pending points to a Monte Carlo function."""
    X, Y = data()
    model = CalibratedModel(RobustRelevancePursuitSingleTaskGP(X, Y), LocalizedConformal(0.2))
    new, values = data(3, seed=1)
    model.observe(new, values, condition=False)
    refitted = RobustRelevancePursuitSingleTaskGP(torch.cat([X, new]), torch.cat([Y, values]))
    model = model.with_model(refitted.eval())
    assert model.calibrator.num_updates == 3
    without = improvement(model, X[:3] / 2)
    assert not torch.equal(improvement(model, X[:3] / 2, X_pending=X[5:6] / 2), without)

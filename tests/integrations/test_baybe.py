"""The recipe of the guide to BayBE, in campaigns of BayBE."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.documentation import DOCS, run_blocks

pytest.importorskip("baybe")

from baybe import Campaign
from baybe.objectives import ParetoObjective
from baybe.parameters import NumericalContinuousParameter
from baybe.recommenders import BotorchRecommender
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget

from botorch_calib import CalibratedModel, CalibratedModelList, LocalizedConformal

pytestmark = pytest.mark.usefixtures("short_fits")


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """What the blocks of the guide define; its campaign has six measurements."""
    np.random.seed(0)
    return run_blocks(DOCS / "guides" / "baybe.md")


def test_mixed_campaign_that_is_saved_and_loaded(guide: dict[str, Any]) -> None:
    campaign, measured = guide["campaign"], guide["measured"]
    for _ in range(6):
        campaign.add_measurements(measured(campaign.recommend(batch_size=1)))
    assert campaign.measurements["yield"].max() == 1.0  # the best of 33 configurations
    loaded: Any = Campaign.from_json(campaign.to_json())
    loaded.add_measurements(measured(loaded.recommend(batch_size=1)))
    assert (len(campaign.measurements), len(loaded.measurements)) == (12, 13)
    model = loaded.get_surrogate().to_botorch()
    assert type(model) is CalibratedModel
    expected = CalibratedModel.from_history(model.model, LocalizedConformal(0.2))
    assert model.calibrator.num_updates == expected.calibrator.num_updates == 13
    # In the order of the measurements.
    rows = loaded.searchspace.transform(loaded.measurements, allow_extra=True)
    X = torch.tensor(rows.to_numpy())
    torch.testing.assert_close(model.model.transform_inputs(X), model.model.train_inputs[0])
    torch.testing.assert_close(
        model.posterior(X).variance, expected.posterior(X).variance, rtol=0, atol=0
    )


def continuous_data(n: int) -> pd.DataFrame:
    a = np.random.default_rng(0).uniform(size=n)
    return pd.DataFrame({"a": a, "gain": np.sin(6 * a), "cost": a**2})


def test_batches_and_pending_experiments_in_a_continuous_space(guide: dict[str, Any]) -> None:
    recommender = BotorchRecommender(
        surrogate_model=guide["CalibratedSurrogate"](), n_restarts=2, n_raw_samples=16
    )
    data = continuous_data(8)
    arguments = (
        SearchSpace.from_product([NumericalContinuousParameter("a", (0, 1))]),
        NumericalTarget("gain").to_objective(),
        data[["a", "gain"]],
    )
    batch = recommender.recommend(2, *arguments)
    assert batch["a"].is_unique
    next_one = recommender.recommend(1, *arguments, pending_experiments=batch)
    assert (next_one["a"].item() - batch["a"]).abs().min() > 1e-3


def test_several_targets(guide: dict[str, Any]) -> None:
    new_surrogate = guide["CalibratedSurrogate"]
    surrogate = guide["CalibratedSurrogates"]({"gain": new_surrogate(), "cost": new_surrogate()})
    recommender = BotorchRecommender(surrogate_model=surrogate, n_restarts=2, n_raw_samples=16)
    space = SearchSpace.from_product([NumericalContinuousParameter("a", (0, 1))])
    objective = ParetoObjective([NumericalTarget("gain"), NumericalTarget("cost", minimize=True)])
    point = recommender.recommend(1, space, objective, continuous_data(8))
    assert point["a"].between(0, 1).all()
    model = surrogate.to_botorch()
    assert type(model) is CalibratedModelList
    assert [type(part) for part in model.models] == [CalibratedModel, CalibratedModel]

"""Candidates of a BayBE campaign: which are certified, which have been measured, with what."""

import random
import warnings

import numpy as np
import pandas as pd
import torch
from baybe import Campaign
from baybe.objectives import ParetoObjective
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.recommenders import RandomRecommender, TwoPhaseMetaRecommender
from baybe.searchspace import SearchSpace
from baybe.settings import Settings
from baybe.targets import NumericalTarget
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure

from botorch_calib.exceptions import NotCertifiedWarning
from botorch_calib.integrations.baybe import ChanceConstrainedRecommender
from botorch_calib.plotting import COLORS

TEMPERATURES, SOLVENTS = range(20, 61, 4), {"water": 0.0, "ethanol": 0.4, "acetone": 0.8}
LIMIT, NUM_INITIAL, NUM = 2.0, 10, 16


def run() -> tuple[Campaign, list[bool]]:
    """The campaign in the end, and which candidates are certified, solvent by solvent."""
    noise = random.Random(0)
    with Settings(random_seed=0):
        space = SearchSpace.from_product(
            [
                NumericalDiscreteParameter("temperature", TEMPERATURES),
                CategoricalParameter("solvent", SOLVENTS),
            ]
        )
        recommender = ChanceConstrainedRecommender(limits={"pressure": (None, LIMIT)})
        campaign = Campaign(
            space,
            ParetoObjective([NumericalTarget("yield"), NumericalTarget("pressure", minimize=True)]),
            TwoPhaseMetaRecommender(
                initial_recommender=RandomRecommender(),
                recommender=recommender,
                switch_after=NUM_INITIAL,
            ),
            allow_recommending_already_measured=True,
            allow_recommending_already_recommended=True,
        )

        def tried(rows: pd.DataFrame) -> pd.DataFrame:
            share = rows["temperature"] / 60
            pressure = [
                2.2 * each + SOLVENTS[solvent] + noise.gauss(0.0, 0.05)
                for each, solvent in zip(share, rows["solvent"], strict=True)
            ]
            return rows.assign(**{"yield": share, "pressure": pressure})

        campaign.add_measurements(tried(campaign.recommend(NUM_INITIAL)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotCertifiedWarning)
            for _ in range(NUM):
                campaign.add_measurements(tried(campaign.recommend(1)))
        constraint = recommender.chance_constraint(space, campaign.objective, campaign.measurements)
        candidates = pd.DataFrame(
            [(t, s) for s in SOLVENTS for t in TEMPERATURES], columns=["temperature", "solvent"]
        )
        points = torch.tensor(space.transform(candidates).to_numpy()).unsqueeze(-2)
        return campaign, constraint.certified(points).tolist()


def draw() -> Figure:
    """A row for each solvent, a column for each temperature."""
    campaign, certified = run()
    ink, names = plt.rcParams["text.color"], [*SOLVENTS]
    table = np.array(certified, dtype=float).reshape(len(SOLVENTS), len(TEMPERATURES))
    figure, axes = plt.subplots(figsize=(9.0, 3.2), layout="constrained")
    shades = ListedColormap([to_rgba("0.5", 0.12), to_rgba(COLORS[0], 0.3)])
    edges = np.arange(18, 64, 4), np.arange(len(names) + 1) - 0.5
    axes.pcolormesh(
        *edges, table, cmap=shades, vmin=0, vmax=1, edgecolors=to_rgba(ink, 0.2), lw=0.5
    )
    data = campaign.measurements
    initial, within = np.arange(len(data)) < NUM_INITIAL, data["pressure"].to_numpy() <= LIMIT
    for chosen, color, marker, label in (
        (initial, "0.5", "o", "measured at random"),
        (~initial & within, COLORS[0], "o", "recommended, and within"),
        (~initial & ~within, COLORS[1], "X", "recommended, and beyond"),
    ):
        rows = data[chosen]
        # Experiments at the same candidate stand side by side.
        again = rows.groupby(["temperature", "solvent"]).cumcount()
        x = rows["temperature"] - 1.2 + 1.2 * (again % 3)
        y = rows["solvent"].map(names.index) - 0.25 + 0.22 * (again // 3)
        axes.scatter(x, y, s=26, color=color, marker=marker, label=label)
    axes.fill([], [], color=COLORS[0], alpha=0.3, label="certified in the end")
    axes.set_yticks(range(len(names)), names, fontsize=12)
    axes.set_xlabel("temperature", fontsize=13)
    axes.set_frame_on(False)
    axes.legend(frameon=False, fontsize=11, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure

"""Stations and users stand where they are, in the colours of their rates."""

import numpy as np
import pytest
import torch

from botorch_calib.plotting import plot_radio_network
from botorch_calib.test_functions import RadioCorridors
from tests.plotting.figures import assert_beside_data, labels


@pytest.fixture(scope="module")
def problem():
    return RadioCorridors()


def test_places(problem):
    ax = plot_radio_network(problem)
    arrows, stations, ground, uavs = ax.collections
    np.testing.assert_allclose(stations.get_offsets(), problem.antennas[:, :2])
    np.testing.assert_allclose(ground.get_offsets(), problem.users[:36, :2])
    np.testing.assert_allclose(uavs.get_offsets(), problem.users[36:, :2])
    directions = np.rad2deg(np.arctan2(arrows.V, arrows.U)) % 360.0
    np.testing.assert_allclose(directions, problem.azimuths)
    assert labels(ax) == ["base stations", "ground users", "UAVs"]
    assert_beside_data(ax)


def test_rates(problem):
    x = torch.full((18,), 0.6, dtype=torch.double, requires_grad=True)
    rates = problem.rates(x).detach()
    ax = plot_radio_network(problem, x)
    _, _, ground, uavs = ax.collections
    np.testing.assert_allclose(ground.get_array(), rates[:36])
    np.testing.assert_allclose(uavs.get_array(), rates[36:])
    # One scale for both, from zero.
    assert ground.get_clim() == uavs.get_clim() == (0.0, rates.max().item())
    assert labels(ax)[2] == f"UAVs, mean {rates[36:].mean():.2f}"
    assert_beside_data(ax)

r"""Powers and antenna tilts of a cellular network for users on the ground and UAVs.

This is the problem of [Kim2024locbo, section V-C] with the network of [Benzaghta2023uav]: three
sites with three sectors each, 36 ground users around them and 28 uncrewed aerial vehicles in four
corridors above. Observations are capacities under a few draws of fast fading. The objective is
their expectation, a one-dimensional integral that is computed exactly.

References:
    .. [Benzaghta2023uav]
        M. Benzaghta, G. Geraci, D. Lopez-Perez, A. Valcarce. Designing cellular networks for UAV
        corridors via Bayesian optimization. IEEE GLOBECOM, 2023.
    .. [Hamdi2010capacity]
        K. A. Hamdi. A useful lemma for capacity analysis of fading interference channels. IEEE
        Transactions on Communications, 58(2), 2010.
"""

from __future__ import annotations

import math

import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from torch import Tensor

SITES = ((0.0, 0.0), (0.0, 200.0), (171.0, 100.0))
AZIMUTHS = (90.0, 210.0, 330.0)
NUM_STATIONS = len(SITES) * len(AZIMUTHS)
# Distance of an antenna from the mast of its site, towards the middle of its sector.
ANTENNA_OFFSET = 1.0

GROUND_PER_SECTOR, UAVS_PER_CORRIDOR = 4, 7
NUM_GROUND, NUM_UAVS = NUM_STATIONS * GROUND_PER_SECTOR, 4 * UAVS_PER_CORRIDOR
GROUND_DISTANCES = (10.0, 120.0)
# The two ends of the middle line of each corridor.
CORRIDORS = (
    ((-105.0, -100.0), (-105.0, 300.0)),
    ((-100.0, 305.0), (270.0, 305.0)),
    ((275.0, -100.0), (275.0, 300.0)),
    ((-100.0, -105.0), (270.0, -105.0)),
)
STATION_HEIGHT, GROUND_HEIGHT, UAV_HEIGHT = 25.0, 1.5, 150.0

CARRIER_GHZ = 2.0
THERMAL_NOISE = 1e-10  # mW

# The trapezoidal rule of `expected_rates`, in the logarithm of the variable of integration.
STEP, FIRST_NODE, LAST_NODE = 0.4, -24.0, 27.0
# Largest number of values that one step computes, which bounds memory.
CHUNK = 2**22


class RadioCorridors(SyntheticTestFunction):
    r"""Mean capacity of ground users and UAVs, to be maximised over 18 inputs in [0, 1].

    The inputs are the transmit powers of the nine base stations and then their antenna tilts:
    station ``b`` sends ``6 + 40 x_b`` dBm at a tilt of ``180 x_{9+b} - 90`` degrees, positive
    upwards. Stations ``3 i, 3 i + 1, 3 i + 2`` stand at site ``i``.

    * **Link.** The mean power received by a user is the transmit power plus the antenna's gain,
      ``8 - 12 ((tilt - elevation) / 10)^2 - 12 (azimuth / 65)^2`` dBi, clipped to [-30, 8], minus
      the path loss, for a distance ``D`` in metres ``13.54 + 39.08 log10 D + 20 log10 2`` dB on
      the ground and ``28 + 22 log10 D + 20 log10 2`` dB in the air. Angles are in degrees as seen
      from the antenna, the azimuth from the middle of its sector; azimuths count counter-clockwise
      from the x-axis. Distances hold the difference of heights. There is no shadow fading.
    * **Rate.** ``log2(1 + SINR)`` bit/s/Hz (eq. 43). The station with the largest mean power
      serves, and all others interfere. The power of each link to the ground is multiplied by an
      independent exponential variable of mean 1 (Rayleigh fading); so is the power of each link to
      a UAV if ``uav_fading``.
    * **Objective.** ``uav_weight`` times the mean rate of the UAVs plus ``1 - uav_weight`` times
      the mean rate of the ground users (eq. 44), in expectation over the fading.
    * **Observation.** The same quantity, averaged over ``num_fading`` draws of the fading (eq. 45).
      The variance of its noise depends on the inputs and is inversely proportional to
      ``num_fading``. Since it is not known, ``noise_std`` is None.

    Ground users are uniformly distributed over their sector, a wedge of 120 degrees, between 10 and
    120 metres from the site. UAVs are in the middles of seven equal parts of their corridor. The
    objective is continuous, with kinks and plateaus; its largest value is not known.

    The defaults follow the paper's text: ``uav_weight=0.7`` (eq. 44), and all links fade. Its
    published experiments have UAVs in line of sight (``uav_fading=False``), swap the weights
    (``uav_weight=0.3``) and divide the sum of the UAVs' rates by 200 (``uav_divisor``), although
    there are 28. Over uniform points, the root mean square of the noise of one draw is 0.18
    bit/s/Hz by the text and 0.16 in the experiments, or 0.22 and 0.23 standard deviations of the
    objective.

    Args:
        num_fading: Number of draws of the fading in an observation.
        uav_weight: The weight of the UAVs, in [0, 1].
        uav_fading: Whether links to UAVs fade; otherwise they have their mean power.
        uav_divisor: The divisor of the sum of the UAVs' rates.
        user_seed: Seed of the positions of the ground users. The global random state does not
            change.
    """

    dim = 2 * NUM_STATIONS
    continuous_inds = list(range(2 * NUM_STATIONS))
    _bounds = [(0.0, 1.0)] * (2 * NUM_STATIONS)
    _is_minimization_by_default = False
    _check_grad_at_opt = False

    bounds: Tensor  # 2 x 18
    antennas: Tensor  # 9 x 3, positions in metres
    users: Tensor  # 64 x 3, the ground users first
    path_loss: Tensor  # 64 x 9, dB
    elevation: Tensor  # 64 x 9, degrees
    sector_loss: Tensor  # 64 x 9, dB: the loss of gain by the azimuth

    def __init__(
        self,
        num_fading: int = 1,
        uav_weight: float = 0.7,
        uav_fading: bool = True,
        uav_divisor: int = NUM_UAVS,
        user_seed: int = 0,
    ) -> None:
        super().__init__(dtype=torch.double)
        self.num_fading, self.uav_fading = num_fading, uav_fading
        self.uav_weight, self.uav_divisor = uav_weight, uav_divisor
        azimuths = torch.tensor(AZIMUTHS, dtype=torch.double).repeat(len(SITES))
        antennas = _antennas(azimuths)
        users = torch.cat([_ground_users(azimuths, user_seed), _uavs()])
        offsets = users.unsqueeze(-2) - antennas
        across = torch.linalg.vector_norm(offsets[..., :2], dim=-1)
        seen = torch.rad2deg(torch.atan2(offsets[..., 1], offsets[..., 0])) - azimuths
        azimuth = torch.remainder(seen + 180.0, 360.0) - 180.0
        self.register_buffer("antennas", antennas)
        self.register_buffer("users", users)
        self.register_buffer("path_loss", _path_loss(offsets))
        self.register_buffer("elevation", torch.rad2deg(torch.atan2(offsets[..., 2], across)))
        self.register_buffer("sector_loss", 12.0 * (azimuth / 65.0).square())

    def forward(self, X: Tensor, noise: bool = True) -> Tensor:
        """Capacities in bit/s/Hz, ``batch_shape x 18 -> batch_shape``.

        Args:
            X: Points in [0, 1].
            noise: Whether to use draws of the fading, from torch's global random state, instead of
                the expectation.
        """
        if not noise:
            return super().forward(X, noise=False)
        power = self.received_power(X)
        shape = (*X.shape[:-1], self.num_fading, *power.shape[-2:])
        fading = power.new_empty(shape).exponential_()
        return self.capacity(self.rates_under(power.unsqueeze(-3), fading).mean(dim=-2))

    def received_power(self, X: Tensor) -> Tensor:
        """Mean power of each link in mW, ``batch_shape x 18 -> batch_shape x 64 x 9``, double."""
        x = X.to(self.path_loss)
        power, tilt = 6.0 + 40.0 * x[..., :NUM_STATIONS], 180.0 * x[..., NUM_STATIONS:] - 90.0
        off_beam = 12.0 * ((tilt.unsqueeze(-2) - self.elevation) / 10.0).square()
        gain = (8.0 - off_beam - self.sector_loss).clamp(-30.0, 8.0)
        # 10^(dB / 10)
        return torch.exp((power.unsqueeze(-2) + gain - self.path_loss) * (math.log(10.0) / 10.0))

    def rates_under(self, power: Tensor, fading: Tensor) -> Tensor:
        """Rates ``... x 64`` in bit/s/Hz under given fading.

        Args:
            power: Mean powers ``... x 64 x 9`` in mW, which determine the serving stations.
            fading: Factors of the powers, broadcast. They are ignored for UAVs unless these fade.
        """
        if not self.uav_fading:
            is_uav = (self.users[:, 2] == UAV_HEIGHT).unsqueeze(-1)
            fading = torch.where(is_uav, torch.ones_like(fading), fading)
        serving = power.argmax(dim=-1, keepdim=True)
        faded = power * fading
        signal = faded.gather(-1, serving.expand(*faded.shape[:-1], 1)).squeeze(-1)
        # Zero for the serving station, since a difference would lose digits.
        others = faded.scatter(-1, serving.expand(*faded.shape[:-1], 1), 0.0).sum(dim=-1)
        return torch.log1p(signal / (others + THERMAL_NOISE)) / math.log(2.0)

    def rates(self, X: Tensor) -> Tensor:
        """Expected rates in bit/s/Hz, ``batch_shape x 18 -> batch_shape x 64``, double."""
        power = self.received_power(X)
        if self.uav_fading:
            return expected_rates(power)
        sighted = self.rates_under(power, torch.ones_like(power))
        fading = expected_rates(power[..., :NUM_GROUND, :])
        return torch.cat([fading, sighted[..., NUM_GROUND:]], dim=-1)

    def capacity(self, rates: Tensor) -> Tensor:
        """The weighted mean of rates, ``... x 64 -> ...``."""
        uav = rates[..., NUM_GROUND:].sum(dim=-1) / self.uav_divisor
        ground = rates[..., :NUM_GROUND].mean(dim=-1)
        return self.uav_weight * uav + (1.0 - self.uav_weight) * ground

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self.capacity(self.rates(X))


def expected_rates(power: Tensor) -> Tensor:
    r"""Exact expected rates under Rayleigh fading of all links, served by the strongest station.

    With independent exponential ``h_b`` of mean 1, mean powers ``P_b`` and thermal noise ``n``,

        ``E ln(1 + P_s h_s / (n + sum_{b != s} P_b h_b))
        = int_0^inf E[exp(-z (n + sum_{b != s} P_b h_b)) (1 - exp(-z P_s h_s))] dz / z
        = int_0^inf exp(-z n) P_s prod_b (1 + z P_b)^-1 dz``,

    by ``ln(1 + u / v) = int_0^inf exp(-z v) (1 - exp(-z u)) dz / z`` and ``E exp(-z P h) = 1 / (1 +
    z P)`` [Hamdi2010capacity]. With ``z = exp(t) / P_s`` the integrand is analytic for ``|Im t| <
    pi / 2`` and falls off exponentially. The error of the trapezoidal rule with step ``h`` is
    therefore about ``exp(-pi^2 / h)``, here 2e-11. The rule leaves out ``exp(-24)`` on the left,
    and nothing on the right while the strongest power is below 1 mW, which is the power a tenth of
    a metre from the antenna.

    Mean powers are in mW, ``... x 9``, all positive; rates in bit/s/Hz, ``...``.
    """
    nodes = torch.arange(FIRST_NODE, LAST_NODE + STEP, STEP, dtype=power.dtype, device=power.device)
    flat = power.reshape(-1, power.shape[-1])
    size = max(1, CHUNK // (flat.shape[-1] * len(nodes)))
    values = [_integral(part, nodes.exp()) for part in flat.split(size)]
    return torch.cat(values).reshape(power.shape[:-1]) * (STEP / math.log(2.0))


def _integral(power: Tensor, z: Tensor) -> Tensor:
    """Sums over the nodes ``z`` for powers ``n x 9``, without the step: ``n``."""
    strongest = power.amax(dim=-1, keepdim=True)
    decay = torch.exp(-z * (THERMAL_NOISE / strongest))
    # At most (1 + e^27)^9 < 1e106.
    others = (1.0 + (power / strongest).unsqueeze(-1) * z).prod(dim=-2)
    return (z * decay / others).sum(dim=-1)


def _antennas(azimuths: Tensor) -> Tensor:
    """Positions of the antennas, ``9 x 3``."""
    sites = torch.tensor(SITES, dtype=torch.double).repeat_interleave(len(AZIMUTHS), dim=0)
    angle = torch.deg2rad(azimuths)
    across = sites + ANTENNA_OFFSET * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return torch.cat([across, torch.full_like(across[:, :1], STATION_HEIGHT)], dim=-1)


def _ground_users(azimuths: Tensor, seed: int) -> Tensor:
    """Positions of the ground users, ``36 x 3``, four in each sector in the order of stations."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.rand(2, NUM_STATIONS, GROUND_PER_SECTOR, generator=generator, dtype=torch.double)
    near, far = GROUND_DISTANCES
    # The area of the wedge grows with the square of the distance.
    distance = (near**2 + (far**2 - near**2) * u).sqrt()
    angle = torch.deg2rad(azimuths.unsqueeze(-1) + 120.0 * (v - 0.5))
    sites = torch.tensor(SITES, dtype=torch.double).repeat_interleave(len(AZIMUTHS), dim=0)
    across = sites.unsqueeze(-2) + distance.unsqueeze(-1) * torch.stack(
        [angle.cos(), angle.sin()], dim=-1
    )
    height = torch.full_like(across[..., :1], GROUND_HEIGHT)
    return torch.cat([across, height], dim=-1).flatten(0, 1)


def _uavs() -> Tensor:
    """Positions of the UAVs, ``28 x 3``."""
    ends = torch.tensor(CORRIDORS, dtype=torch.double)
    share = (torch.arange(UAVS_PER_CORRIDOR, dtype=torch.double) + 0.5) / UAVS_PER_CORRIDOR
    start, stop = ends[:, :1], ends[:, 1:]
    across = (start + share.unsqueeze(-1) * (stop - start)).flatten(0, 1)
    return torch.cat([across, torch.full_like(across[:, :1], UAV_HEIGHT)], dim=-1)


def _path_loss(offsets: Tensor) -> Tensor:
    """Path losses in dB, ``64 x 9``, from users minus antennas, ``64 x 9 x 3``."""
    decades = torch.linalg.vector_norm(offsets, dim=-1).log10()
    in_air = offsets[..., 2] > 0.0
    carrier = 20.0 * math.log10(CARRIER_GHZ)
    return torch.where(in_air, 28.0 + 22.0 * decades, 13.54 + 39.08 * decades) + carrier

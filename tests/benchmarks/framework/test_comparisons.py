"""Comparisons of a family, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from benchmarks.framework.comparisons import detectable, family, verdict


def test_detectable_difference() -> None:
    # Two-sided 5 % over five tests: 2.5758. Power 80 %: 0.8416. Standard deviation 1, four seeds.
    values = [0.5 * math.sqrt(3) * sign for sign in (1, 1, -1, -1)]
    assert detectable(values, 5) == pytest.approx((2.5758 + 0.8416) / 2, abs=1e-4)


def test_verdicts() -> None:
    assert verdict((-0.01, 0.015), 0.001, 0.02) == "equivalent"
    assert verdict((-0.01, 0.03), 0.2, 0.02) == "undecided"
    assert verdict((0.01, 0.03), 0.01, 0.02) == "worse"
    assert verdict((-0.05, -0.01), 0.01, 0.02) == "better"


def test_a_family_is_paired_by_seed_and_corrected() -> None:
    plain = {seed: 1.0 for seed in range(8)}
    # Seed 9 has no partner.
    less = {**{seed: 0.9 - 0.01 * seed for seed in range(8)}, 9: 5.0}
    mixed = {seed: 1.0 + 0.1 * (-1) ** (seed in (2, 4)) * (seed + 1) for seed in range(8)}
    found = family({"less": (less, plain), "mixed": (mixed, plain), "lone": ({1: 0.0}, plain)})
    assert list(found) == ["less", "mixed"]
    assert found["less"].values == pytest.approx([-0.1 - 0.01 * seed for seed in range(8)])
    # All eight have one sign: 2 / 2^8, times the three declared comparisons.
    assert found["less"].p == pytest.approx(6 / 2**8)
    # The comparison without a p-value comes last.
    alone = stats.wilcoxon(found["mixed"].values).pvalue
    assert found["mixed"].p == pytest.approx(2 * alone) and alone < 0.5
    assert found["less"].detectable == detectable(found["less"].values, 3)
    assert found["less"].verdict(margin=0.05) == "better"
    assert found["less"].verdict(margin=0.2) == "equivalent"
    mean, bounds, p, least, said = found["less"].cells(".3f", 0.05)
    assert (mean, p, said) == ("-0.135", "0.023", "better")
    # -0.135 ± 2.365 x 0.0245 / sqrt 8
    assert bounds == "-0.155 to -0.115"
    assert least == f"{found['less'].detectable:.3f}"
    assert family({}) == {}


def test_differences_of_logarithms_as_percent() -> None:
    first = {seed: math.log(0.5 + 0.01 * (-1) ** seed) for seed in range(8)}
    found = family({"half": (first, dict.fromkeys(range(8), 0.0))})["half"]
    seeds, mean, bounds, p, said, least = found.percent_cells(0.1)
    assert (seeds, mean, p, said) == ("8", "-50 %", "0.0078", "better")
    # -0.6933 ± 2.365 x 0.0214 / sqrt 8 in logarithms
    assert bounds == "-51 to -49 %"
    assert least == f"{100 * math.expm1(found.detectable):.0f} %"

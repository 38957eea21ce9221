"""Reports correct for all declared comparisons, even if they have not been run."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from benchmarks.framework import comparisons
from benchmarks.framework.protocol import ExperimentProtocol
from benchmarks.suites import SUITES

# Numbers of comparisons in the primary and, if there is one, in the secondary family, by suite.
DECLARED = {
    # Six kinds of model, each with and without calibration.
    "any_model": (6,),
    # Four cases; two other methods in each.
    "bbob_constrained": (4, 8),
    # Three other methods in each.
    "decisions_budget": (5, 15),
    # Six cases; three other methods in each.
    "decisions_faults": (6, 18),
    # Eight cases; three other methods in each.
    "decisions_further": (8, 24),
    # Two cases; four other methods in each.
    "decisions_random": (2, 8),
    # Three cases; five other methods in each.
    "decisions_small_sets": (3, 15),
    # Six with the method that ignores delays, and seven with `qlogei_pending`.
    "delay": (4, 13),
    "delay_workers": (3,),
    # Five cases; two other methods in each.
    "misspecified": (5, 10),
    # Six problems; one other method in each.
    "ocbo_loo_ackley": (6,),
    # Five cases; one other method in each.
    "ocbo_loo_misspecified": (5,),
    # Two groups; one other method in each.
    "ocbo_loo_synthetic": (2,),
    "ocbo_loo_tasks": (2,),
    # Eleven rows; three other methods in each.
    "ocbo_table_4": (11, 33),
    # Four comparisons at each of three levels, on two networks.
    "radio_levels": (24,),
    # Five comparisons for each of four numbers of draws; four other methods in each.
    "radio_published": (20, 16),
    # Three problems; seven other methods in each.
    "real_limits": (3, 21),
    # Three methods on six problems.
    "robust": (18,),
    "robust_shift": (36,),
    # Two groups; two other methods in each, and two more in the secondary family.
    "tail_only": (4,),
    "understated_noise": (2, 5),
    "wellspecified": (2, 4),
}

NUMBERS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "eight": 8,
    "ten": 10,
    "eleven": 11,
    "thirteen": 13,
    "twenty": 20,
    "24": 24,
    "all 18": 18,
    "all 36": 36,
}


def test_all_suites_with_a_protocol_are_here() -> None:
    assert DECLARED.keys() == {name for name, suite in SUITES.items() if suite.protocol}


@pytest.mark.parametrize("name", DECLARED)
def test_the_correction_is_for_what_is_declared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = SUITES[name]
    assert suite.protocol is not None
    correction = ExperimentProtocol.load(suite.protocol).correction
    (number,) = re.findall(rf"^Holm's for (?:the )?({'|'.join(NUMBERS)})\b", correction)
    assert NUMBERS[number] == DECLARED[name][0]
    sizes: list[int] = []

    def counted(p_values: Sequence[float]) -> list[float]:
        sizes.append(len(p_values))
        return list(p_values)

    monkeypatch.setattr(comparisons, "holm", counted)
    # Nothing has been run.
    suite.report.lines(suite, {})
    assert tuple(dict.fromkeys(size for size in sizes if size)) == DECLARED[name]

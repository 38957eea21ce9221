"""What is kept of a result comes back as it is stated; what is left out cannot be used."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework import metrics
from benchmarks.framework.metrics import regret_evaluated
from benchmarks.framework.results import Result
from benchmarks.framework.sequential import replicate
from benchmarks.framework.stored_results import (
    EXACT,
    FLAGS,
    REGRETS,
    ArchivedResult,
    ArchiveError,
    Condensation,
    Derived,
    Encoding,
    LeftOut,
    average,
    ceiling,
    decimals,
    decode,
    restore,
    significant,
)

VALUES = [0.0, 1.0, -1.23456789, 1e-17, 123456.789, None, 5e-324, 1e300]


@pytest.mark.parametrize(
    ("encoding", "kept"),
    [
        (EXACT, VALUES),
        (significant(3), [0.0, 1.0, -1.23, 1e-17, 123000.0, None, 5e-324, 1e300]),
        (decimals(2), [0.0, 1.0, -1.23, 0.0, 123456.79, None, 0.0, 1e300]),
    ],
)
def test_numbers(encoding: Encoding, kept: list[float | None]) -> None:
    encoded = json.loads(json.dumps(encoding.encode(VALUES)))
    assert decode(encoded) == kept
    # What was rounded once stays so: an archive may be written again from what was read of it.
    assert encoding.encode(kept) == kept


def test_flags() -> None:
    assert str(decimals(2)) == "2 decimals"
    flags = [0.0, 1.0, None, 1.0]
    assert FLAGS.encode(flags) == "01-1"
    assert decode("01-1") == flags
    assert decode("") == []
    with pytest.raises(ArchiveError, match="0.5"):
        FLAGS.encode([0.5])


def test_an_average_keeps_sum_and_mean() -> None:
    values = np.random.default_rng(0).random(7).tolist()
    kept = decode(average(6).encode(values))
    assert len(kept) == 7 and len(set(kept)) == 1
    assert sum(kept) == pytest.approx(sum(values), rel=1e-6)
    assert decode(average().encode([])) == []


def test_rounding_up_moves_nothing_across_a_level() -> None:
    levels = [j / 100 for j in range(101)]
    near = [math.nextafter(level, side) for level in levels for side in (0.0, 1.0)]
    values = np.array([*levels, *near, *np.random.default_rng(0).random(2000)])
    kept = np.array(ceiling(3).encode(values.tolist()))
    assert np.abs(kept - values).max() <= 1e-3
    for level in levels:
        assert ((kept <= level) == (values <= level)).all()
    assert ceiling(3).encode(kept.tolist()) == kept.tolist()
    assert ceiling(3).encode([None]) == [None]


def test_what_no_encoding_makes_is_refused() -> None:
    for kept in ("012", {"mean": 1.0}, 3.0, True):
        with pytest.raises(ArchiveError, match="no trace"):
            decode(kept)


def test_what_is_left_out_cannot_be_used() -> None:
    uses: list[Any] = [len, bool, list, sum, np.array, lambda v: v[-1], lambda v: 1.0 in v]
    for use in uses:
        with pytest.raises(ArchiveError, match="does not keep the field 'y'"):
            use(LeftOut("the field 'y'"))


def made() -> Result:
    return replace(
        replicate(SMOKE.problems[0], SMOKE.methods[0], 0),
        extras={"covered": [1.0, None, 0.0], "width": [0.123456, 2.0, 3.0]},
    )


def identity(result: Result, left_out: list[str]) -> dict[str, object]:
    names = ("problem", "method", "seed", "num_initial", "config", "versions")
    return {**{name: getattr(result, name) for name in names}, "left_out": left_out}


def test_a_result_there_and_back() -> None:
    result = made()
    kept = REGRETS.condense(result)
    found = restore(identity(result, []), json.loads(json.dumps(kept)))
    assert isinstance(found, ArchivedResult)
    assert found.config_hash == result.config_hash
    assert found.extras["covered"] == [1.0, None, 0.0]
    assert found.extras["width"] == [0.1235, 2.0, 3.0]
    assert found.inference_by_outcome == result.inference_by_outcome
    assert found.regret_by_mean is None and result.regret_by_mean is None
    for inference in ("outcome", "evaluated"):
        expected = metrics.regret_trace(result, inference)
        assert metrics.regret_trace(found, inference) == pytest.approx(expected, rel=5e-4)
    assert np.mean(found.fit_seconds) == pytest.approx(np.mean(result.fit_seconds), rel=1e-3)
    for name in ("X", "y", "f"):
        with pytest.raises(ArchiveError, match=f"'{name}'"):
            len(getattr(found, name))
    with pytest.raises(ArchiveError, match="rounded"):
        found.to_json()
    assert copy.deepcopy(found).regret_by_outcome == found.regret_by_outcome


def test_the_best_point_so_far() -> None:
    result = replace(
        made(),
        num_initial=2,
        f=[1.0, 3.0, 2.0, 4.5],
        inference_by_outcome=[0, 0, 3],
        regret_by_outcome=[4.0, 4.0, 0.5],
    )
    # The optimum is 5.
    assert regret_evaluated(result) == [2.0, 2.0, 0.5]
    assert metrics.regret_trace(result, "evaluated") == [2.0, 2.0, 0.5]
    assert regret_evaluated(replace(result, inference_by_outcome=[])) is None


def test_records_that_are_not_named_are_left_out_or_kept() -> None:
    result = made()
    few = Condensation(extras={"covered": FLAGS})
    assert few.condense(result) == {"extras": {"covered": "1-0"}}
    assert few.statement()["all else"] == "left out"
    found = restore(identity(result, ["width"]), few.condense(result))
    with pytest.raises(ArchiveError, match="'width'"):
        metrics.trace(found, "width")
    # Not even by a look-up that has a default.
    with pytest.raises(ArchiveError, match="'width'"):
        list(found.extras.get("width", []))


def test_a_derived_trace_may_be_missing() -> None:
    derived = {
        "none": Derived(lambda result: None, EXACT),
        "twice": Derived(lambda result: [2.0 * v for v in result.y], significant(2)),
    }
    kept = Condensation(derived=derived).condense(replace(made(), y=[0.1234]))
    assert kept == {"extras": {"twice": [0.25]}}


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not \['points'\]"):
        Condensation(fields={"points": EXACT})
    with pytest.raises(ArchiveError, match="not as it should be"):
        restore(identity(made(), []), {"extras": {}, "points": []})

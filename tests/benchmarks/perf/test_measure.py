"""Interleaved timing by a scripted clock, and the shape of what is printed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from benchmarks.perf import command
from benchmarks.perf import measure as perf
from benchmarks.perf.measure import Call, Comparison, Workload, measure


@pytest.fixture(scope="module")
def work() -> Workload:
    return Workload(torch.device("cpu"))


def test_ratio_of_interleaved_times_by_hand(monkeypatch, work) -> None:
    clock, calls = [0.0], []

    def advance(label: str, seconds: list[float]) -> Call:
        # The first call is the warm-up, the last one counts operations and is not timed.
        durations = itertools.chain([100.0], seconds, [100.0])

        def call(repetition: int) -> None:
            calls.append(label)
            clock[0] += next(durations)

        return call

    monkeypatch.setattr(perf.time, "perf_counter", lambda: clock[0])
    pair = advance("A", [2.0, 6.0, 8.0]), advance("B", [1.0, 2.0, 2.0])
    result = measure(Comparison("x", lambda work: pair, repetitions=3, warm_up=1), work)
    assert calls == ["A", "B"] * 5
    assert (result.ratio, result.lower_quartile, result.upper_quartile) == (3.0, 2.5, 3.5)
    assert (result.measured_ms, result.reference_ms) == (6000.0, 2000.0)


RECALIBRATED = [
    name
    for name in perf.COMPARISONS
    if "19 levels" in name
    and not any(other in name for other in ("roots cached", "plain batch", "robust"))
]


@pytest.mark.parametrize("name", RECALIBRATED)
def test_recalibration_runs(work, name) -> None:
    if "leave-one-out" in name:
        pytest.skip("fits a large GP")
    measured, reference = perf.COMPARISONS[name].build(work)
    for gradient in (measured(0), reference(0)):
        assert isinstance(gradient, torch.Tensor) and gradient.shape[1:] == work.batch.shape[1:]


def results(work: Workload, name: str) -> list[Any]:
    return [call(0) for call in perf.COMPARISONS[name].build(work)]


def test_draws(work) -> None:
    name = "calibrated TS / delayed TS, value and gradient"
    of_calibrated, of_process = results(work, name)
    assert of_calibrated.shape == of_process.shape == work.batch.shape
    assert not torch.allclose(of_calibrated, of_process)
    for kind in ("calibrated", "recalibrated"):
        name = f"{kind} TS / delayed TS, build and optimise, 10 pending"
        points = results(work, name)
        for point in points:
            assert ((work.bounds[0] <= point) & (point <= work.bounds[1])).all()
        assert not torch.equal(*points)


def test_unknown_comparisons_and_missing_devices_are_reported(capsys, monkeypatch) -> None:
    assert command.main(only=["nope"]) == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main("cuda") == 2
    assert "CUDA is not available." in capsys.readouterr().out


def test_a_comparison_that_fails_does_not_cost_the_others(capsys, monkeypatch) -> None:
    def broken(work: Workload) -> tuple[Call, Call]:
        raise RuntimeError("no such device")

    def fine(work: Workload) -> tuple[Call, Call]:
        return (lambda repetition: None), (lambda repetition: None)

    comparisons = {
        name: Comparison(name, build, repetitions=2, warm_up=0)
        for name, build in (("broken", broken), ("fine", fine))
    }
    monkeypatch.setattr(command, "COMPARISONS", comparisons)
    assert command.main() == 1
    printed = capsys.readouterr()
    assert "| fine |" in printed.out
    assert "Failed: broken" in printed.err

"""Alternating timing with a scripted clock, and the printed table."""

from __future__ import annotations

import itertools

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
        # The first call is the warm-up. The last call counts operations and is not timed.
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

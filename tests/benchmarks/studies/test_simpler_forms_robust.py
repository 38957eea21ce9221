"""The simplest forms give what ours do, so that their times can be compared."""

import torch

from benchmarks.perf import robust
from benchmarks.perf.measure import Workload
from benchmarks.studies import simpler_forms_robust as study
from botorch_calib.robust.gp.closed_form_bound import ClosedFormConfidenceBound


def test_robust_bounds_by_autograd_are_the_same() -> None:
    stands = [
        (ClosedFormConfidenceBound, "_evaluate", study.evaluated_by_autograd),
        (ClosedFormConfidenceBound, "_gradient_norm", study.norm_by_autograd),
    ]
    for kernel in robust.KERNELS:
        call = robust.robust_call(Workload(torch.device("cpu")), *((12, 8), kernel, 0.1, 3))
        ratio, difference = study.compared(call, stands, repetitions=1)
        assert ratio > 0 and difference < 1e-10


def test_report_shows_every_row() -> None:
    text = study.report(study.TAKEN_OUT)
    assert text.count("taken out") == len(study.TAKEN_OUT)

"""``python -m benchmarks perf``: measure the comparisons and print them."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict

import torch
from tqdm.auto import tqdm

# Importing the modules of this package registers their comparisons.
from benchmarks.framework.replicate_result import installed_versions
from benchmarks.framework.runner import one_torch_thread
from benchmarks.perf import ax_trial as ax_trial
from benchmarks.perf import batches as batches
from benchmarks.perf import calibrated_and_delayed as calibrated_and_delayed
from benchmarks.perf import decisions as decisions
from benchmarks.perf import ensembles as ensembles
from benchmarks.perf import noisy as noisy
from benchmarks.perf import optuna_trial as optuna_trial
from benchmarks.perf import proposals as proposals
from benchmarks.perf import robust as robust
from benchmarks.perf import single_points as single_points
from benchmarks.perf import transformed_outcomes as transformed_outcomes
from benchmarks.perf.measure import COMPARISONS, Workload, measure, table


def main(device: str = "cpu", *, as_json: bool = False, only: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 2 for invalid arguments, 1 if a comparison failed.

    If a comparison fails, the other measurements are still printed.
    """
    unknown = [part for part in only or () if not any(part in name for name in COMPARISONS)]
    if unknown:
        print("\n  ".join([f"No comparison has {unknown} in its name. There are:", *COMPARISONS]))
        return 2
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        print("CUDA is not available.")
        return 2
    selected = [
        c for name, c in COMPARISONS.items() if only is None or any(part in name for part in only)
    ]
    with one_torch_thread():
        work = Workload(torch.device(device))
        measurements, failed = [], []
        # The progress bar goes to stderr, so stdout contains only the result.
        for c in tqdm(selected, desc="perf"):
            try:
                measurements.append(measure(c, work))
            except Exception:
                traceback.print_exc()
                failed.append(c.name)
    if as_json:
        rows = [asdict(measurement) for measurement in measurements]
        print(json.dumps({"device": device, "versions": installed_versions(), "rows": rows}))
    else:
        print(table(measurements))
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))

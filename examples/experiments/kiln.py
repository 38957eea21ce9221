"""A firing of a glaze, which worker processes import: it needs no BoTorch."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

LOG, FAULT = Path("firings.jsonl"), Path("fault")


def note(event: str, x: np.ndarray) -> None:
    """Add a line to the log, for the picture."""
    with LOG.open("a") as log:
        log.write(json.dumps([event, os.getpid(), x.tolist(), time.time()]) + "\n")


def hardness(x: np.ndarray) -> float:
    """Hardness by temperature and duration, both in [0, 1]; long firings take longer."""
    note("start", x)
    time.sleep(1.0 + x[1])
    if FAULT.exists() and len(LOG.read_text().splitlines()) > 10:
        FAULT.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    time.sleep(1.0 + x[1])
    note("end", x)
    return float(np.exp(-8 * (x[0] - 0.6) ** 2 - 4 * (x[1] - 0.4) ** 2))

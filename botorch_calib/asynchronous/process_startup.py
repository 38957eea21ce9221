"""Code of worker processes: their preparation, and the call of the objective.

It imports the standard library alone and is run by its path, as importing this package would import
torch, which takes seconds.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from typing import Any


def prepare() -> None:
    """Leave signals to the parent process, and end when that has ended, however it did.

    The worker leads a group of processes, which can be killed together with all that its objective
    starts; and a session, without which that group would be stopped when it uses the terminal.
    Signals to a whole service reach it nevertheless. Unlike the handler, which does nothing,
    ``SIG_IGN`` would be inherited by programs that an objective starts.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def evaluate(objective: bytes, x: Any) -> Any:
    """Call a pickled function; its result or error can be sent to the parent.

    A result that cannot be unpickled breaks Pebble's pool, and some that cannot be pickled break
    its worker.
    """
    try:
        value = pickle.loads(objective)(x)
        pickle.loads(pickle.dumps(value))
        return value
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise


# The name by which a worker finds `evaluate` without importing this package.
sys.modules["botorch_calib_process_startup"] = sys.modules[__name__]
evaluate.__module__ = "botorch_calib_process_startup"

if __name__ == "__main__":
    prepare()

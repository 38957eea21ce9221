"""What runs inside a worker process: its preparation, and the call of the objective.

Only the standard library: a worker that imported this package would import torch, which takes
seconds. `botorch_calib.asynchronous.watched_processes` has this file run by its path.
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

    The worker becomes a group of processes, with all that its objective starts, so that they can
    be killed together; and a session, without which a group of its own would be stopped as soon
    as it uses the terminal. Ctrl-C therefore does not reach it: the parent records what has arrived
    and kills its workers. What ends a whole service does reach it. The handler does nothing
    instead of being ``SIG_IGN``, which the programs that an objective starts would inherit.
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
    """Call a pickled function; what it returns or raises can be sent to the parent.

    Pebble's pool breaks of a result that cannot be unpickled, and its worker of some that cannot be
    pickled.
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


# The name by which a worker finds `evaluate`: to look it up in this package would import that.
sys.modules["botorch_calib_process_startup"] = sys.modules[__name__]
evaluate.__module__ = "botorch_calib_process_startup"

if __name__ == "__main__":
    prepare()

"""Set up a worker process of `PebbleExecutor`.

This file is run by its path, since importing it as a module of the package would import torch.

The worker process starts a session. The programs that the worker starts belong to the session's
process group, whose id is the worker's process id. When the worker ends, it terminates these
programs and waits for them for up to a second; then the executor kills the remaining programs. If
the main script is killed, the worker kills the whole group, itself included.
"""

import os
import signal
import time
from contextlib import suppress
from multiprocessing import connection, parent_process, util
from threading import Thread


def _end_with_script() -> None:
    connection.wait([parent_process().sentinel])  # type: ignore[union-attr]
    os.killpg(0, signal.SIGKILL)


def _end_programs() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    with suppress(ChildProcessError):  # no program is left
        for _ in range(100):
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)


if __name__ == "<run_path>":
    if hasattr(os, "setsid"):  # not on Windows
        os.setsid()
        util.Finalize(None, _end_programs, exitpriority=0)
        Thread(target=_end_with_script, daemon=True).start()
    initializer, arguments = globals()["INITIALIZER"]
    if initializer is not None:
        initializer(*arguments)

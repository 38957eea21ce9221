"""What a worker process does first. Only the standard library, and run by its path.

A function of this package would be imported in the worker, and with it torch: seconds for every
process. `botorch_calib.asynchronous.worker_processes` has the file run instead.
"""

import multiprocessing
import os
import signal
import threading


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


if __name__ == "__main__":
    prepare()

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

    Ctrl-C, and whatever ends a whole service, reach all processes of a group. The parent then
    records what has arrived and kills its workers. The handler does nothing instead of being
    ``SIG_IGN``, which the programs that an objective starts would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


if __name__ == "__main__":
    prepare()

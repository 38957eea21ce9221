"""Tune a support vector classifier in several processes, and resume if the script was killed.

    python tutorials/scripts/tune_svc.py run.sqlite --evaluations 30

Every evaluation is a cross-validation, which takes a random time between 0.1 and 2 s. If you kill
the script and start it again, it continues with the values in the file, and repeats the evaluations
that were running.
"""

import argparse
import time
from functools import partial

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

# Only `main` imports BoTorch, since worker processes import this file and start faster without it.

LOWER, UPPER = (-2.0, -6.0), (3.0, 0.0)  # log10 of C and of gamma
NUM_WORKERS = 2


def accuracy(x: np.ndarray) -> float:
    """Accuracy in 3-fold cross-validation on 600 digits at ``x = (log10 C, log10 gamma)``."""
    time.sleep(np.random.default_rng().uniform(0.1, 2.0))
    images, labels = load_digits(return_X_y=True)
    model = SVC(C=10.0 ** x[0], gamma=10.0 ** x[1])
    return float(cross_val_score(model, images[:600], labels[:600], cv=3).mean())


def main() -> None:
    """Run or resume."""
    import torch

    from botorch_calib import AsynchronousOptimizer, DelayAwareProposer, FeedbackLedger
    from botorch_calib.asynchronous import PebbleExecutor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger", help="file of the ledger, created if it does not exist")
    parser.add_argument("--evaluations", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    # No accuracy is below 0: this is the value of an evaluation while it runs.
    ledger = FeedbackLedger.open(arguments.ledger, dim=2, censor_value=0.0)
    propose = DelayAwareProposer(torch.tensor([LOWER, UPPER], dtype=torch.double))
    make_processes = partial(PebbleExecutor, NUM_WORKERS, timeout=60.0)
    optimizer = AsynchronousOptimizer(make_processes, accuracy, ledger, propose, NUM_WORKERS)
    print(optimizer.run(arguments.evaluations))


if __name__ == "__main__":
    main()

"""Syne Tune's conformal quantile regression (CQR), for `rivals`: a process of another environment.

It is run by the interpreter of an environment with ``syne-tune``, ``xgboost`` and
``huggingface_hub``, which need not hold this package: so it imports nothing of it. Each line of its
input and its output is JSON. The first input has the ``bounds``, the ``seed``, and the points ``X``
and outcomes ``Y`` of the initial trials, each further one the outcome ``y`` of the last point; the
answers are points, and the search maximises.
"""

import datetime
import json
import sys


def main() -> None:
    """Answer until the input ends."""
    from syne_tune.backend.trial_status import Trial
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import CQR

    start = json.loads(sys.stdin.readline())
    names = [f"x{i}" for i in range(len(start["bounds"]))]
    search = CQR(
        {name: uniform(*ends) for name, ends in zip(names, start["bounds"], strict=True)},
        metric="value",
        do_minimize=False,
        random_seed=start["seed"],
        points_to_evaluate=[dict(zip(names, x, strict=True)) for x in start["X"]],
    )
    told = list(start["Y"])
    number = 0
    while True:
        config = search.suggest().config
        if number >= len(told):
            print(json.dumps([config[name] for name in names]), flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            told.append(json.loads(line)["y"])
        trial = Trial(number, config, datetime.datetime.now())
        search.on_trial_complete(trial, {"value": told[number]})
        number += 1


if __name__ == "__main__":
    main()

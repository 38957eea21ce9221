"""Syne Tune's conformal quantile regression (CQR), for `rivals`: a process of another environment.

It is run by the interpreter of an environment with ``syne-tune``, ``xgboost`` and
``huggingface_hub``, which need not hold this package: so it imports nothing of it. Each line of its
input and its output is JSON. The first input has the ``bounds``, the ``seed``, and the points ``X``
and outcomes ``Y`` of the initial trials, each further one the outcome ``y`` of the last point. An
answer has the next point ``x`` and the ``cpu_seconds`` that it took. The search maximises.
"""

import datetime
import json
import sys
import time


def main() -> None:
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
    number, started = 0, -time.process_time()
    while True:
        config = search.suggest().config
        if number >= len(told):
            seconds = started + time.process_time()
            x = [config[name] for name in names]
            print(json.dumps({"x": x, "cpu_seconds": seconds}), flush=True)
            line = sys.stdin.readline()
            if not line:
                return
            started = -time.process_time()
            told.append(json.loads(line)["y"])
        trial = Trial(number, config, datetime.datetime.now())
        search.on_trial_complete(trial, {"value": told[number]})
        number += 1


if __name__ == "__main__":
    main()

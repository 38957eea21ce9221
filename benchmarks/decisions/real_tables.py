"""Makes `data/real_limits.npz`: outcomes of problems that others made, with their noise.

Each problem is a table: settings, spread over a box, and repetitions of the outcome and the
objective at each of them. Methods choose among the settings and see one repetition at a time, so
runs are quick and the truth is known: the share of the repetitions that violate the limit.

* ``glucose``: a virtual patient of the UVA/Padova simulator in the version of ``simglucose``
  (adolescent no. 3) eats once in six hours. Settings: grams of carbohydrates for each unit of the
  bolus (5 to 40, logarithmic), minutes from the bolus to the meal (-20 to 40), and a factor of
  the basal rate (0.5 to 1.5). The initial state is random as in the package, the meal has 60 g
  with a deviation of 20 g, and its carbohydrates are counted with a relative error of 20 %.
  Outcome: the lowest glucose, negated, in mg/dl. Objective: share of the time between 70 and 180
  mg/dl, in percent.
* ``missed_cases``: a support vector classifier of the breast cancer data that ship with
  scikit-learn. Settings: ``C`` (0.01 to 1000), ``gamma`` (1e-5 to 1) and the weight of malignant
  cases (0.2 to 20), all logarithmic. It learns from a random half of the cases. Outcome: share of
  the malignant cases of the other half that are missed, in percent. Objective: share of the
  benign ones that are recognised.
* ``portfolio``: months of the market, the size and the value factor in excess of the risk-free
  rate (Fama and French, 1926 to 2018, as shipped with ``arch``), in percent. What is stored are
  the months.

Run ``python -m benchmarks.decisions.real_tables`` in an environment with ``simglucose`` and
``arch``.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.decisions.tasks import cube

FILE = Path(__file__).parents[1] / "data" / "real_limits.npz"
NUM_SETTINGS, NUM_REPETITIONS = 128, 80

Array = NDArray[np.floating[Any]]


def settings() -> Array:
    """The settings of a problem, ``128 x 3`` in the unit cube."""
    return cube(3, NUM_SETTINGS, seed=0).numpy()


def between(low: float, high: float, u: float, logarithmic: bool = False) -> float:
    """A point of a range from one of the unit interval."""
    if logarithmic:
        return float(math.exp(between(math.log(low), math.log(high), u)))
    return low + (high - low) * u


class Meal:
    """One meal of a virtual patient."""

    minutes, mealtime, counting_error = 360, 60, 0.2

    def __init__(self) -> None:
        import pandas as pd
        from simglucose.patient.t1dpatient import PATIENT_PARA_FILE, Action, T1DPatient

        row = pd.read_csv(PATIENT_PARA_FILE).iloc[2]
        # The simulator reads parameters thousands of times, which a data frame makes slow.
        parameters = SimpleNamespace(**{k: v for k, v in row.items() if str(k).isidentifier()})
        self.initial = row.iloc[2:15].to_numpy(dtype=float)
        self.basal = row.u2ss * row.BW / 6000.0  # units a minute
        self.action, self.patient, self.parameters = Action, T1DPatient, parameters

    def __call__(self, u: Array, generator: Generator) -> tuple[float, float]:
        """The outcome and the objective of one repetition."""
        ratio = between(5.0, 40.0, u[0], logarithmic=True)
        bolus_at = self.mealtime - round(between(-20.0, 40.0, u[1]))
        basal = self.basal * between(0.5, 1.5, u[2])
        meal = float(np.clip(generator.normal(60.0, 20.0), 10.0, 140.0))
        counted = meal * max(1.0 + self.counting_error * generator.normal(), 0.0)
        seed = int(generator.integers(2**31))
        patient = self.patient(
            self.parameters, init_state=self.initial, random_init_bg=True, seed=seed
        )
        glucose = []
        for minute in range(self.minutes):
            bolus = counted / ratio if minute == bolus_at else 0.0
            eaten = meal if minute == self.mealtime else 0.0
            patient.step(self.action(insulin=basal + bolus, CHO=eaten))
            glucose.append(float(patient.observation.Gsub))
        values = np.array(glucose)
        return -values.min(), 100.0 * float(((values >= 70.0) & (values <= 180.0)).mean())


class Screening:
    """A classifier on a random half of the breast cancer data."""

    def __init__(self) -> None:
        from sklearn.datasets import load_breast_cancer

        self.X, label = load_breast_cancer(return_X_y=True)
        self.malignant = label == 0

    def __call__(self, u: Array, generator: Generator) -> tuple[float, float]:
        """The outcome and the objective of one repetition."""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        weight = between(0.2, 20.0, u[2], logarithmic=True)
        classifier = SVC(
            C=between(1e-2, 1e3, u[0], logarithmic=True),
            gamma=between(1e-5, 1.0, u[1], logarithmic=True),
            class_weight={True: weight, False: 1.0},
        )
        order = generator.permutation(len(self.X))
        learned, judged = np.array_split(order, 2)
        model = make_pipeline(StandardScaler(), classifier)
        model.fit(self.X[learned], self.malignant[learned])
        right = model.predict(self.X[judged]) == self.malignant[judged]
        sick = self.malignant[judged]
        return 100.0 * float(1.0 - right[sick].mean()), 100.0 * float(right[~sick].mean())


def months() -> Array:
    """Excess returns of the three factors, ``1109 x 3``, in percent."""
    import pandas as pd

    spec = importlib.util.find_spec("arch")
    assert spec is not None and spec.submodule_search_locations, "install arch"
    folder = Path(spec.submodule_search_locations[0])
    frame = pd.read_csv(folder / "data" / "frenchdata" / "frenchdata.csv.gz")
    return frame[["Mkt-RF", "SMB", "HML"]].to_numpy(dtype=np.float32)


def repeated(problem: Meal | Screening, name: str) -> Array:
    """Repetitions of a problem at all settings, ``2 x 128 x 80``: outcomes and objectives."""
    found = np.empty((2, NUM_SETTINGS, NUM_REPETITIONS), dtype=np.float32)
    for i, u in enumerate(tqdm(settings(), desc=name)):
        generator = np.random.default_rng([0, i])
        for j in range(NUM_REPETITIONS):
            found[:, i, j] = problem(u, generator)
    return found


def main() -> None:
    """Make the file."""
    tables: dict[str, Any] = {
        "missed_cases": repeated(Screening(), "missed_cases"),
        "glucose": repeated(Meal(), "glucose"),
        "portfolio": months(),
    }
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **tables)


if __name__ == "__main__":
    main()

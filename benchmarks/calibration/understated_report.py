"""The report of suite `understated_noise`: regret, coverage and claims, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.calibration.claims import CLAIM, EXCESS, Claims, Share
from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.calibration.methods import ALPHA
from benchmarks.framework import comparisons, metrics, statistics
from benchmarks.framework.markdown import mean_with_interval, page, sections, table
from benchmarks.framework.plots import method_colors, panel_grid
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import ByMethod, Collected, Score, methods_in, seed_means
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.framework.suite import Suite

RECOMMENDED, EVALUATED = LogRegret("mean"), LogRegret("evaluated")

# Records whose means are shown, by heading. Records of the objective have two versions.
OF_OBJECTIVE = {"f, visited": "objective_covered", "f, box": "objective_covered_in_box"}
OF_OUTCOME = {
    "y, visited": "outcome_covered",
    "y, box": "outcome_covered_in_box",
    "y, as it came": "covered",
}

OVER = ("start", "incumbent", "visited")


@dataclass(frozen=True)
class Statement:
    """A row of the tables on statements: a method, and the suffix of its records."""

    method: str
    ending: str = ""

    def __str__(self) -> str:
        return f"{self.method}, excess objective's" if self.ending else self.method


@dataclass(frozen=True)
class UnderstatedReport:
    """Comparisons of regret, the coverage of intervals, and claims of superiority.

    Args:
        primary: The methods whose comparisons with the baseline are primary.
        control: A further method with which the primary methods are compared.
        baseline: The method with which the figure compares all others.
        largest: The problem with the largest differences, which one row leaves out.
        former: The problems that are also in suite `misspecified`.
    """

    primary: tuple[str, ...]
    control: str
    baseline: str
    largest: str
    former: tuple[str, ...] = ()

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        case = list(collected.values())
        methods = methods_in(case)
        return page(
            "understated_noise",
            floor=FLOOR,
            margin=margin_of(suite),
            baseline=self.baseline,
            comparisons=self._comparisons(suite, case),
            regret=_regret_table(case, methods),
            recommended=self._by_problem(collected, methods, "recommended", RECOMMENDED),
            evaluated=self._by_problem(collected, methods, "best evaluated", EVALUATED),
            coverage=_coverage_table(case, methods),
            claims=_claim_table(case, methods),
            problems=sections(collected, _problem_table, "###"),
        )

    def figure(self, collected: Collected) -> Figure:
        case = list(collected.values())
        methods = methods_in(case)
        colors = method_colors(methods)
        figure, (regret, coverage, claims) = panel_grid(3, 1, (8.0, 4.4))
        self._draw_regret(regret, collected, methods, colors)
        _draw_coverage(coverage, case, methods)
        _draw_claims(claims, case, methods)
        return figure

    def _comparisons(self, suite: Suite[Any, Any], case: Sequence[ByMethod]) -> list[str]:
        margin = margin_of(suite)
        # All declared comparisons, even if they have not been run: the correction counts them.
        methods = [method.name for method in suite.methods]
        others = [m for m in methods if m not in (self.baseline, *self.primary)]
        families = {
            "primary": [(method, self.baseline) for method in self.primary],
            "secondary": [(method, self.baseline) for method in others]
            + [(method, self.control) for method in self.primary],
        }
        body = []
        for name, pairs in families.items():
            recommended, evaluated = (
                comparisons.family({pair: _both(case, pair, score) for pair in pairs})
                for score in (RECOMMENDED, EVALUATED)
            )
            for pair, found in recommended.items():
                mean, bounds, *tested = found.cells(".3f", margin)
                cells = [mean, bounds, _percent(found.values), *tested]
                cells += evaluated[pair].mean_cells(".3f")
                body.append([name, " − ".join(pair), str(len(found.values)), *cells])
        header = ["family", "comparison", "seeds", "difference", "95 % interval", "in %", "p"]
        header += ["detectable", "", "best evaluated", "95 % interval"]
        return table(header, body)

    def _by_problem(
        self, collected: Collected, methods: Sequence[str], heading: str, score: Score
    ) -> list[str]:
        others = [method for method in methods if method != self.baseline]
        named = [collected[problem] for problem in self.former if problem in collected]
        groups = {
            "all": list(collected.values()),
            f"the {len(named)} of `misspecified`": named,
            f"all but {self.largest}": [v for k, v in collected.items() if k != self.largest],
            **{problem: [by_method] for problem, by_method in collected.items()},
        }
        body = []
        for name, case in groups.items():
            pairs = [_both(case, (method, self.baseline), score) for method in others]
            cells = (mean_with_interval(comparisons.differences(*pair), "+.2f") for pair in pairs)
            body.append([name, *cells])
        return table([heading, *others], body)

    def _draw_regret(
        self, panel: Axes, collected: Collected, methods: Sequence[str], colors: Mapping[str, str]
    ) -> None:
        """Draw the mean over all problems as a large point, single problems as small points."""
        others = [method for method in methods if method != self.baseline]
        groups = {"all": list(collected.values())} | {p: [r] for p, r in collected.items()}
        for row, method in enumerate(others):
            for i, (name, case) in enumerate(groups.items()):
                values = comparisons.differences(*_both(case, (method, self.baseline), RECOMMENDED))
                if not values:
                    continue
                style: dict[str, Any] = (
                    {"fmt": "o", "capsize": 3} if name == "all" else {"fmt": ".", "alpha": 0.4}
                )
                height = -row - 0.8 * i / len(groups)
                _draw_interval(panel, values, height, color=colors[method], **style)
        panel.axvline(0.0, color="black", linewidth=0.8, linestyle="--")
        panel.set_yticks([-row for row in range(len(others))], others)
        panel.set_xlabel(f"log10 regret, recommended, less that of {self.baseline}")


# ------------------------------------------------------------ tables


def _regret_table(case: Sequence[ByMethod], methods: Sequence[str]) -> list[str]:
    body = []
    for method in methods:
        scores = [list(seed_means(case, method, s).values()) for s in (RECOMMENDED, EVALUATED)]
        body.append([method, str(len(scores[0])), *map(_geometric, scores)])
    header = ["method", "seeds", "recommended", "best evaluated"]
    return table(header, body)


def _coverage_table(case: Sequence[ByMethod], methods: Sequence[str]) -> list[str]:
    body = []
    for row in _statements(case, methods):
        cells = []
        for record in OF_OBJECTIVE.values():
            cells.append(_percentage(case, row.method, Share(record + row.ending)))
        for record in OF_OUTCOME.values():
            # Statements about the outcome do not depend on the attribution of the excess.
            cells.append("–" if row.ending else _percentage(case, row.method, Share(record)))
        body.append([str(row), *cells])
    header = ["method", *OF_OBJECTIVE, *OF_OUTCOME]
    return table(header, body)


def _claim_table(case: Sequence[ByMethod], methods: Sequence[str]) -> list[str]:
    body = []
    for row in _statements(case, methods):
        cells = []
        for over in OVER:
            made = seed_means(case, row.method, Claims(over, row.ending))
            cells += [f"{np.mean(list(made.values())):.2f}", _false(case, row, over)]
        body.append([str(row), *cells])
    header = ["method"]
    for over in OVER:
        header += [f"over {over}", "false, %"]
    return table(header, body)


def _problem_table(by_method: ByMethod) -> list[str]:
    header = ["method", "seeds", "recommended", "best evaluated", *OF_OBJECTIVE, *OF_OUTCOME, "s"]
    body = []
    for method, results in by_method.items():
        case = [by_method]
        scores = [list(seed_means(case, method, s).values()) for s in (RECOMMENDED, EVALUATED)]
        shares = [
            _percentage(case, method, Share(record))
            for record in (*OF_OBJECTIVE.values(), *OF_OUTCOME.values())
        ]
        body.append(
            [
                method,
                str(len(results)),
                *map(_geometric, scores),
                *shares,
                f"{np.mean([metrics.seconds(r) for r in results]):.1f}",
            ]
        )
    return table(header, body)


def _statements(case: Sequence[ByMethod], methods: Sequence[str]) -> list[Statement]:
    """A row for each method, and a second row for methods with two statements."""
    rows = [Statement(method) for method in methods if seed_means(case, method, RECOMMENDED)]
    return [
        version
        for row in rows
        for version in (row, Statement(row.method, EXCESS))
        if seed_means(case, version.method, Claims("visited", version.ending))
    ]


# ------------------------------------------------------------ cells


def _both(
    case: Sequence[ByMethod], pair: tuple[str, str], score: Score
) -> tuple[dict[int, float], dict[int, float]]:
    own, other = (seed_means(case, method, score) for method in pair)
    return own, other


def _geometric(logarithms: Sequence[float]) -> str:
    """The exponential of the mean of logarithms, with its interval."""
    if len(logarithms) < 2:
        return "–"
    low, high = statistics.student_interval(logarithms)
    return f"{10 ** np.mean(logarithms):.3g} ({10**low:.3g} to {10**high:.3g})"


def _percent(differences: Sequence[float]) -> str:
    """A difference of logarithms as a change in percent, with its interval."""
    low, high = statistics.student_interval(differences)
    changes = (100.0 * (10.0**value - 1.0) for value in (np.mean(differences), low, high))
    return "{:+.0f} ({:+.0f} to {:+.0f})".format(*changes)


def _percentage(case: Sequence[ByMethod], method: str, score: Score) -> str:
    return mean_with_interval([100.0 * v for v in seed_means(case, method, score).values()], ".1f")


def _false(case: Sequence[ByMethod], row: Statement, over: str) -> str:
    rate, low, high = _false_claims(case, row, over)
    if np.isnan(rate):
        return "–"
    bounds = "–" if np.isnan(low) else f"{100 * low:.1f} to {100 * high:.1f}"
    return f"{100 * rate:.1f} ({bounds})"


def _false_claims(
    case: Sequence[ByMethod], row: Statement, over: str
) -> tuple[float, float, float]:
    """The share of false claims among all claims of all problems and seeds, with its interval."""
    made, false = (
        seed_means(case, row.method, Claims(over, row.ending, false)) for false in (False, True)
    )
    return pooled_ratio(list(false.values()), list(made.values()))


# ------------------------------------------------------------ panels


def _draw_interval(panel: Axes, values: Sequence[float], height: float, **style: Any) -> None:
    mean = float(np.mean(values))
    low, high = statistics.student_interval(values) if len(values) > 1 else (mean, mean)
    panel.errorbar([mean], [height], xerr=[[mean - low], [high - mean]], **style)


def _draw_coverage(panel: Axes, case: Sequence[ByMethod], methods: Sequence[str]) -> None:
    rows = _statements(case, methods)
    for i, (heading, record) in enumerate({**OF_OBJECTIVE, **OF_OUTCOME}.items()):
        label = heading
        for at, row in enumerate(rows):
            if row.ending and record not in OF_OBJECTIVE.values():
                continue
            values = list(seed_means(case, row.method, Share(record + row.ending)).values())
            if values:
                scaled = [100.0 * value for value in values]
                style: dict[str, Any] = {"fmt": ".", "color": f"C{i}", "label": label}
                _draw_interval(panel, scaled, -at - 0.14 * i, **style)
                label = ""
    panel.axvline(100 * (1 - ALPHA), color="black", linewidth=0.8, linestyle="--")
    _finish(panel, rows, "coverage, %")


def _draw_claims(panel: Axes, case: Sequence[ByMethod], methods: Sequence[str]) -> None:
    rows = _statements(case, methods)
    for i, over in enumerate(OVER):
        label = f"over {over}"
        for at, row in enumerate(rows):
            rate, low, high = (100.0 * v for v in _false_claims(case, row, over))
            if np.isnan(rate):
                continue
            reach = None if np.isnan(low) else [[rate - low], [high - rate]]
            style: dict[str, Any] = {"fmt": ".", "color": f"C{i}", "label": label}
            panel.errorbar([rate], [-at - 0.2 * i], xerr=reach, **style)
            label = ""
    panel.axvline(100 * (1 - CLAIM), color="black", linewidth=0.8, linestyle="--")
    _finish(panel, rows, "false claims, %")


def _finish(panel: Axes, rows: Sequence[Statement], label: str) -> None:
    panel.set_yticks([-at for at in range(len(rows))], [str(row) for row in rows])
    panel.set_xlabel(label)
    panel.legend()

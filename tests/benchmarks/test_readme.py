"""The table "when it helps" of the README agrees with the committed tables."""

from __future__ import annotations

import re

from benchmarks.framework.report import TABLES_DIR
from tests.documentation import ROOT

SITUATIONS = (ROOT / "README.md").read_text(encoding="utf-8").partition("## When it helps")[2]


def rows(suite: str, *begin: str) -> list[list[str]]:
    """The cells of a table's rows that begin with these cells; "" matches any cell."""
    text = (TABLES_DIR / f"{suite}.md").read_text(encoding="utf-8")
    lines = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if "|" in line]
    return [line for line in lines if all(a in ("", b) for a, b in zip(begin, line, strict=False))]


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?", cell)]


def percent(share: float) -> int:
    return int(100 * share + 0.5)


def test_coverage_where_the_model_is_wrong() -> None:
    problems = [line for line in rows("misspecified") if re.match(r"\w+_[a-z]+$", line[0])][:20]
    assert len(problems) == 20
    plain, calibrated = ([percent(numbers(row[i])[0]) for row in problems] for i in (1, 2))
    stated = f"miss {min(calibrated)} to {max(calibrated)} % of the outcomes"
    assert f"{stated}, where the plain model's miss {min(plain)} to {max(plain)} %" in SITUATIONS


def test_errors_and_losses_of_other_models() -> None:
    primary = [row for row in rows("any_model", "primary") if row[1] != "given"]
    falls = [percent(1 - numbers(row[5])[0] / numbers(row[4])[0]) for row in primary]
    assert f"falls by {min(falls)} to {max(falls)} %" in SITUATIONS
    # The first table with these rows has errors and losses over all problems.
    over_problems = reversed(rows("any_model", "", "recalibrated"))
    losses = {row[0]: numbers(row[5])[0] for row in over_problems}
    processes = sorted(losses[name] for name in ("default", "log", "saas"))
    assert f"rises by {processes[0]:.0f} to {processes[-1]:.0f} %" in SITUATIONS
    assert losses["forest"] <= 0 and losses["networks"] <= 0


def test_violations_of_limits() -> None:
    every, *_ = rows("decisions_violations", "all", "budget")
    both = rows("decisions_violations", "", "budget")
    by_case, by_round = (
        [row for row in both if (" of " in row[2]) is late] for late in (False, True)
    )
    shares = [numbers(row[3])[0] for row in by_case]
    early = sorted(numbers(row[2])[0] for row in by_round)
    stated = f"in {every[2]} runs {min(shares)} to {max(shares)} % did, by case"
    assert f"{stated}, and {early[0]:.0f} to {early[-1]:.0f} % of the first twelve" in SITUATIONS


def test_violations_on_the_public_suite() -> None:
    ours, plain = (
        [numbers(row[3])[0] for row in rows("bbob_constrained", "", method) if len(row) == 15]
        for method in ("budget", "plain")
    )
    assert len(ours) == len(plain) == 4
    stated = f"{min(ours):.0f} to {max(ours):.0f} % did, and {min(plain):.0f} to {max(plain):.0f} %"
    assert f"{stated} with the plain model" in SITUATIONS


def test_regret_under_understated_noise() -> None:
    gains = [-numbers(row[5])[0] for row in rows("understated_noise", "primary")]
    assert f"{min(gains):.0f} to {max(gains):.0f} %" in SITUATIONS
    # Most of the gain comes from one function: without it, at least half of the gain is gone.
    everywhere, without = (
        [numbers(cell)[0] for cell in rows("understated_noise", name)[0][4:]]
        for name in ("all", "all but hartmann6")
    )
    assert all(a > b / 2 for a, b in zip(without, everywhere, strict=True))


def test_regret_with_pending_evaluations() -> None:
    rules = ("ucb_sdf", "ucb_default", "ucb_sdf_worst", "ucb_hallucinate", "qlogei_pending")
    falls = [-numbers(rows("delay", "", rule, "ucb")[0][4])[0] for rule in rules]
    assert f"{min(falls):.0f} to {max(falls):.0f} % lower" in SITUATIONS
    rival = rows("delay", "primary", "ucb_default", "qlogei_pending")[0]
    more, (low, high), less = numbers(rival[4])[0], numbers(rival[5]), -numbers(rival[9])[0]
    assert f"{more:.0f} % ({low:.0f} to {high:.0f}) more regret" in SITUATIONS
    assert f"{less:.0f} % less regret over all queries" in SITUATIONS


def test_regret_where_a_context_is_badly_wrong() -> None:
    def changes(method: str, shift: str) -> list[float]:
        problems = (f"{name}_{shift}" for name in ("context_shift", "newsvendor", "ackley"))
        return [numbers(rows("robust_shift", problem, method)[0][3])[0] for problem in problems]

    for method in ("observed", "exact_0.1"):
        first, second, third = changes(method, "0.2")
        gains = f"{-first:.0f} and {-second:.0f} % less regret on two of three functions"
        assert gains in SITUATIONS and f"{third:.0f} % more on the third" in SITUATIONS
    times = [1 + change / 100 for change in changes("exact_0.1", "0")]
    assert (round(min(times)), round(max(times))) == (2, 6)
    assert "two to six times the regret" in SITUATIONS

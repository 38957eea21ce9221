"""Protocols: their headers, their errors, and their summaries in reports."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks.calibration.suites import SMOKE
from benchmarks.framework.protocol import (
    PROTOCOLS_DIR,
    ExperimentProtocol,
    ProtocolError,
    configuration_hash,
)
from benchmarks.framework.report import write_report
from benchmarks.framework.runner import run_suite
from benchmarks.framework.stored_results import ResultStore
from benchmarks.framework.suite import Suite
from benchmarks.suites import SUITES

SUITE: Suite = replace(SMOKE, seeds=range(100, 102), protocol="trial")

HEADER = {
    "suite": "smoke",
    "configuration": configuration_hash(SUITE),
    "seeds": "100:102",
    "endpoint": "regret",
    "comparison": "none",
    "test": "Wilcoxon's,\n  two-sided",
    "correction": "Holm's",
    "margin": "0.5",
}


NO_DEVIATIONS = "\n## Deviations\n\nNone.\n"


def write(folder: Path, text: str = NO_DEVIATIONS, **changes: str | None) -> None:
    """Write the protocol ``trial``, with some entries changed or, for None, left out."""
    entries = {key: value for key, value in {**HEADER, **changes}.items() if value is not None}
    lines = "".join(f"{key}: {value}\n" for key, value in entries.items())
    (folder / "trial.md").write_text(f"---\n{lines}---\n\n# Trial\n{text}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the protocol, instead of the usual folder."""
    write(tmp_path)
    load = ExperimentProtocol.load.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(ExperimentProtocol, "load", classmethod(partial(load, folder=tmp_path)))
    return tmp_path


def test_a_header_is_read(folder: Path) -> None:
    assert ExperimentProtocol.load("trial") == ExperimentProtocol(
        suite="smoke",
        configuration=HEADER["configuration"],
        seeds=range(100, 102),
        endpoint="regret",
        comparison="none",
        test="Wilcoxon's, two-sided",
        correction="Holm's",
        margin=0.5,
        deviations="",
        name="trial",
    )


def test_deviations_are_what_stands_at_the_end(folder: Path) -> None:
    write(folder, "\n## Deviations\n\n- 2 runs failed.\n- One was\n  slow.\n")
    loaded = ExperimentProtocol.load("trial")
    assert loaded.deviations == "- 2 runs failed. - One was slow."
    assert f"- deviations: {loaded.deviations}" in loaded.lines()
    left_out = f"- deviations: `random` is left out of this report. {loaded.deviations}"
    assert left_out in loaded.lines(["random"])


BAD_HEADERS: list[tuple[dict[str, str | None], str]] = [
    ({"margin": None}, "not .*margin"),
    ({"power": "0.8"}, "states .*power"),
    ({"endpoint": ""}, "states"),
    ({"seeds": "100"}, "100:102|10000:10050"),
    ({"seeds": "102:100"}, "range"),
    ({"margin": "small"}, "small"),
    ({"margin": "0"}, "positive"),
    ({"margin": "nan"}, "positive"),
    ({"endpoint": "a\nb"}, "cannot read 'b'"),
    ({"endpoint": "a\nsuite: b"}, "cannot read 'suite: b'"),
]


def test_bad_files(folder: Path) -> None:
    for changes, message in BAD_HEADERS:
        write(folder, NO_DEVIATIONS, **changes)
        with pytest.raises(ProtocolError, match=message):
            ExperimentProtocol.load("trial")
    with pytest.raises(ProtocolError, match=r"missing\.md is missing"):
        ExperimentProtocol.load("missing")
    write(folder, text="\nNothing.\n")
    with pytest.raises(ProtocolError, match="Deviations"):
        ExperimentProtocol.load("trial")
    (folder / "trial.md").write_text("# Trial\n")
    with pytest.raises(ProtocolError, match="header"):
        ExperimentProtocol.load("trial")


def test_a_suite_must_be_the_one_of_its_protocol(folder: Path) -> None:
    protocol = ExperimentProtocol.load("trial")
    protocol.check(SUITE)
    with pytest.raises(ProtocolError, match="'other'"):
        protocol.check(replace(SUITE, name="other"))
    with pytest.raises(ProtocolError, match="range"):
        protocol.check(replace(SUITE, seeds=range(3)))
    (problem,) = SUITE.problems
    longer = replace(SUITE, problems=(replace(problem, num_evaluations=99),))
    with pytest.raises(ProtocolError, match=configuration_hash(longer)):
        protocol.check(longer)


def test_the_hash_depends_on_all_that_is_run() -> None:
    (problem,), (method,) = SUITE.problems, SUITE.methods
    other = replace(method, name="other")
    changed = [
        replace(SUITE, problems=(replace(problem, num_initial=9),)),
        replace(SUITE, methods=(method, other)),
        replace(SUITE, methods=(method, other), baseline="other"),
    ]
    hashes = {configuration_hash(suite) for suite in [SUITE, *changed]}
    assert len(hashes) == 4
    # The protocol determines what is reported.
    assert configuration_hash(replace(SUITE, seeds=range(5))) == configuration_hash(SUITE)


def test_the_report_refuses_results_of_another_configuration(folder: Path) -> None:
    store = ResultStore(folder / "results")
    (problem,) = SUITE.problems
    longer = replace(SUITE, problems=(replace(problem, num_evaluations=1),))
    run_suite(longer, store, [100], progress=False)
    run_suite(SUITE, store, [101], progress=False)
    with pytest.raises(ProtocolError, match="1 results"):
        write_report(SUITE, store, folder, folder)
    # Without a protocol, they are left out.
    assert "1 outdated" in write_report(replace(SUITE, protocol=None), store, folder, folder)


def test_replicates_that_raise_each_time_are_missing(folder: Path) -> None:
    """Those that the deviations name do not make a report incomplete."""
    store = ResultStore(folder / "results")
    run_suite(SUITE, store, [100], progress=False)
    assert "**Incomplete: 1 of 2 replicates" in write_report(SUITE, store, folder, folder)
    ((problem,), (method,)) = SUITE.problems, SUITE.methods
    named = f"`{problem.name}/{method.name}/seed 101`"
    write(folder, f"\n## Deviations\n\nAn error was raised twice by\n{named}.\n")
    text = write_report(SUITE, store, folder, folder)
    assert "\n1 of 2 replicates have been run. 1 raised an error each time and are missing" in text
    assert "Seeds used" not in text and f"raised twice by {named}" in text
    run_suite(SUITE, store, [101], progress=False)
    assert "\n2 of 2 replicates have been run.\n" in write_report(SUITE, store, folder, folder)


def test_suites_are_what_their_protocols_say() -> None:
    named = {suite.protocol: suite for suite in SUITES.values() if suite.protocol is not None}
    # Protocols of deleted suites are kept.
    assert named.keys() <= {path.stem for path in PROTOCOLS_DIR.glob("*.md")}
    for name, suite in named.items():
        ExperimentProtocol.load(name).check(suite)

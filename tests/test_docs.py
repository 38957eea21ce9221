"""The documentation names everything public; its examples and the README's examples run.

``make docs`` checks that the site builds without a warning.
"""

import importlib
import os
import runpy
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_calib import FeedbackLedger
from docs.api_names import documented_names
from docs.drawn_figures import draw
from tests.documentation import DOCS, ROOT, python_blocks, run_blocks
from tests.long_grids import mostly_slow

PUBLIC_MODULES = (
    "",
    "acquisition",
    "asynchronous",
    "calibration",
    "calibration.learners",
    "decisions",
    "diagnostics",
    "distributions",
    "ledger",
    "models",
    "optim",
    "plotting",
    "posteriors",
    "robust",
    "test_functions",
)
# Pages that need an extra, and the module that shows whether it is installed.
EXTRAS = {
    "guides/ax.md": "ax",
    "guides/baybe.md": "baybe",
    "guides/optuna.md": "optuna_integration",
    "guides/xopt.md": "xopt",
    "how_to/memory_limit.md": "optuna_integration",
    "how_to/online_experiments.md": "ax",
    "how_to/operate_a_machine.md": "xopt",
    "how_to/plates.md": "baybe",
}

PAGES = sorted(
    page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if python_blocks(page)
)
# The slowest pages, whose code other tests run as well. `make docs` runs their examples.
LONG = ["getting_started.md", *EXTRAS]
LONG += [f"guides/{name}.md" for name in ("acquisition", "decisions", "delays", "diagnosis")]


def load(path: str) -> Any:
    """The object of a full dotted path."""
    parts = path.split(".")
    for i in reversed(range(1, len(parts) + 1)):
        try:
            module = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        return reduce(getattr, parts[i:], module)
    raise ImportError(path)


@pytest.fixture(scope="module")
def documented() -> list[str]:
    return documented_names(DOCS / "api")


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_in_the_reference(module: str, documented: list[str]) -> None:
    """Each name is listed under its path, or its object under another path."""
    path = f"botorch_calib.{module}".rstrip(".")
    entries = {name.rpartition(".")[2]: name for name in documented}
    missing = [
        name
        for name in importlib.import_module(path).__all__
        if name not in entries or load(entries[name]) is not load(f"{path}.{name}")
    ]
    assert not missing, f"{missing} of {path}: one line each in a page of {DOCS / 'api'}"


def test_reference_names_exist_and_stand_once(documented: list[str]) -> None:
    assert len(documented) > 80
    assert len(set(documented)) == len(documented)
    for name in documented:
        if ".integrations." not in name:  # integrations need their extra
            load(name)


@pytest.mark.parametrize("file", sorted((DOCS / "inventories").iterdir()), ids=lambda f: f.stem)
def test_names_of_other_libraries_exist(file: Path) -> None:
    """The names to which the site links, each with one page; `make links` opens the pages."""
    pytest.importorskip(file.stem)
    header, _, _, *lines = file.read_text(encoding="utf-8").splitlines()
    assert header == "# Sphinx inventory version 1"
    for name, kind, address in map(str.split, lines):
        assert name.startswith(f"{file.stem}.") and address.endswith(".html")
        found = load(name)
        assert isinstance(found, type) == (kind in ("class", "exception"))


@pytest.mark.parametrize("page", mostly_slow(PAGES, [p for p in PAGES if p not in LONG]))
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in EXTRAS:
        pytest.importorskip(EXTRAS[page])
    monkeypatch.chdir(tmp_path)  # the folder of ledgers
    run_blocks(DOCS / page)


@pytest.mark.slow  # `make docs` runs it
def test_shortest_script_runs_as_a_file(tmp_path: Path) -> None:
    """Under ten lines, with worker processes; `tests/asynchronous` tests how a run resumes."""
    page = (DOCS / "guides" / "delays.md").read_text(encoding="utf-8")
    script = page.partition("```{code-block} python\n")[2].partition("```")[0]
    assert len([line for line in script.splitlines() if line]) < 10
    for long, short in (("Executor, 4)", "Executor, 2)"), ("evaluations=10", "evaluations=7")):
        assert long in script
        script = script.replace(long, short)
    # Workers import the script, but neither BoTorch nor this package, which takes seconds.
    fails = "    assert 'botorch' not in __import__('sys').modules\n"
    script = script.replace("    return", f"{fails}    return", 1)
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Trial(id=")
    assert len(FeedbackLedger.read(tmp_path / "run.ledger").to_observations()[0]) == 7


def test_every_table_tutorial_and_example_has_its_page() -> None:
    overviews = {"index", "claims"}
    results = {page.stem for page in (DOCS / "results").glob("*.md")} - overviews
    assert {table.stem for table in (ROOT / "benchmarks" / "tables").glob("*.md")} == results
    index = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    for tutorial in (ROOT / "tutorials").glob("[0-9]*.py"):
        assert f"]({tutorial.stem}.ipynb)" in index
    gallery = (DOCS / "examples" / "index.md").read_text(encoding="utf-8")
    for example in (ROOT / "examples").glob("*.py"):
        assert f":link: {example.stem}\n" in gallery
    for page in results:
        assert f"]({page}.md)" in (DOCS / "results" / "index.md").read_text(encoding="utf-8")


def test_quickstart_runs() -> None:
    runpy.run_path(str(ROOT / "tutorials" / "quickstart.py"), run_name="__main__")


def test_spawned_processes_import_the_script_without_running_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guide sends readers to this script for its guard."""
    monkeypatch.setattr("sys.argv", ["tune_svc.py", "--no-such-option"])
    script = ROOT / "tutorials" / "scripts" / "tune_svc.py"
    names = runpy.run_path(str(script), run_name="__mp_main__")
    assert "accuracy" in names and "optimizer" not in names


def test_workers_of_the_example_stay_where_its_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the script too, and must not change to another folder."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(ROOT / "examples" / "four_workers.py"), run_name="__mp_main__")
    assert Path.cwd() == ROOT and "AsynchronousOptimizer" not in names


@pytest.mark.slow  # `make docs` runs it
def test_picture_of_the_readme_is_current(tmp_path: Path) -> None:
    """If not, copy the new one from ``docs/images/drawn``, where the site's build draws it."""
    for kind, drawn in draw("stated_and_met", tmp_path).items():
        committed = DOCS / "images" / f"stated_and_met-{kind}.svg"
        assert drawn.read_bytes() == committed.read_bytes(), kind


def test_examples_of_the_readme_run() -> None:
    """They run without other code, since they define their data."""
    readme = ROOT / "README.md"
    assert len(python_blocks(readme)) == 2
    candidate = run_blocks(readme)["candidate"]
    assert isinstance(candidate, torch.Tensor)
    assert candidate.shape == (1, 2)
    assert ((candidate >= 0) & (candidate <= 1)).all()
    assert len(readme.read_text(encoding="utf-8").splitlines()) <= 120

"""The committed notebooks of tutorials and examples are their scripts, executed.

No test checks the outputs; `make tutorials` executes scripts whose outputs may have changed.
"""

import re
from pathlib import Path

import pytest

from tests.documentation import ROOT
from tests.test_links import anchors

jupytext = pytest.importorskip("jupytext")

TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))
SCRIPTS = [*TUTORIALS, *sorted((ROOT / "examples").glob("*.py"))]
NOTEBOOKS = [script.with_suffix(".ipynb") for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_has_the_cells_of_its_script(script: Path) -> None:
    """If not, run `make tutorials`; after a change of text, `jupytext --update --to ipynb`."""
    written, executed = (
        [
            (cell.cell_type, cell.source, cell.metadata.get("tags"), cell.metadata.get("mystnb"))
            for cell in jupytext.read(path).cells
        ]
        for path in (script, script.with_suffix(".ipynb"))
    )
    assert executed == written


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_was_executed_without_an_error(notebook: Path) -> None:
    code = [cell for cell in jupytext.read(notebook).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_the_first_cell_of_a_tutorial_installs_the_package(script: Path) -> None:
    first = next(cell for cell in jupytext.read(script).cells if cell.cell_type == "code")
    assert "pip install" in first.source and not first.get("outputs")


def test_notebooks_are_small() -> None:
    assert sum(notebook.stat().st_size for notebook in NOTEBOOKS) < 2e6


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_links_lead_somewhere_on_github(notebook: Path) -> None:
    """On the site, `docs/conf.py` takes ``../docs`` away."""
    cells = [cell for cell in jupytext.read(notebook).cells if cell.cell_type == "markdown"]
    for link in re.findall(r"\]\(([^)\s]+)\)", "\n".join(cell.source for cell in cells)):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            assert path.startswith("../docs/") and (notebook.parent / path).exists()
            assert not anchor or anchor in anchors(notebook.parent / path)

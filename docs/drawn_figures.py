"""The directive ``drawn``: a figure that a script in ``docs/figures`` draws at build time.

A script defines ``draw()``, which returns a figure of matplotlib. It is saved twice, with text and
lines for light and for dark pages, and the page shows the one that fits. Drawings go to
``docs/images/drawn``, which git ignores, and are kept until the script or the package changes:

    ```{drawn} stated_and_met
    :alt: What is seen

    The caption.
    ```
"""

import gc
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import matplotlib as mpl
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SCRIPTS = Path(__file__).parent / "figures"
DRAWN = Path(__file__).parent / "images" / "drawn"
PACKAGE = Path(__file__).parents[1] / "botorch_calib"

#: Colour of text and lines on a page of each kind.
INK = {"light": "#1a1a1a", "dark": "#d9d9d9"}

#: Points beyond which the letters of a figure are too small on a phone, where the page scrolls it.
WIDE = 450.0


def draw(name: str, folder: Path = DRAWN) -> dict[str, Path]:
    """Draw the figure of a script for light and for dark pages."""
    folder.mkdir(parents=True, exist_ok=True)
    drawing = runpy.run_path(str(SCRIPTS / f"{name}.py"))["draw"]
    paths = drawings(name, folder)
    with mpl.rc_context(_style(INK["light"])):
        drawing().savefig(paths["light"], dpi=200, transparent=True, metadata={"Date": None})
    light = paths["light"].read_text(encoding="utf-8")
    paths["dark"].write_text(light.replace(INK["light"], INK["dark"]), encoding="utf-8")
    return paths


def drawings(name: str, folder: Path = DRAWN) -> dict[str, Path]:
    """The files of a figure, by the kind of page."""
    return {kind: folder / f"{name}-{kind}.svg" for kind in INK}


def draw_stale_ones() -> None:
    """Draw what is not there, or older than its script or the package."""
    changed = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    for script in sorted(SCRIPTS.glob("*.py")):
        made = max(changed, script.stat().st_mtime)
        paths = drawings(script.stem).values()
        if any(not path.exists() or path.stat().st_mtime < made for path in paths):
            gc.freeze()  # for the import of BayBE: see `conf.py`
            draw(script.stem)


def before_reading(app: Sphinx) -> None:
    """Draw, in another process: Sphinx changes signatures that Ax reads."""
    subprocess.run([sys.executable, __file__], cwd=PACKAGE.parent, check=True)


def _style(ink: str) -> Any:
    colored = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        "backend": "agg",
        "figure.max_open_warning": 0,
        "svg.hashsalt": "botorch_calib",  # so that the same figure makes the same bytes
        "axes.facecolor": "none",
        **dict.fromkeys(colored, ink),
    }


class Drawn(SphinxDirective):
    """Two images, of which the page's colour scheme shows one, with a caption below."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """The figure."""
        name = self.arguments[0]
        self.env.note_dependency(str(SCRIPTS / f"{name}.py"))
        figure = nodes.figure(classes=["drawn"])
        width = re.search(r'width="([\d.]+)pt"', drawings(name)["light"].read_text("utf-8"))
        if width and float(width[1]) > WIDE:
            figure["classes"].append("wide")
        for kind, path in drawings(name).items():
            uri = f"/{path.relative_to(DRAWN.parents[1]).as_posix()}"
            _, file = self.env.relfn2path(uri)
            image = nodes.image(uri=uri, alt=self.options["alt"], classes=[f"only-{kind}"])
            figure += image
            self.env.note_dependency(file)
        caption = nodes.caption()
        caption += self.parse_content_to_nodes()[0].children if self.content else []
        figure += caption
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive, and draw before pages are read."""
    app.connect("builder-inited", before_reading)
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGE.parent))  # scripts import the benchmarks as well
    draw_stale_ones()

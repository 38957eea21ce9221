"""The directive ``drawn``: a figure that a script in ``docs/figures`` draws at build time.

A script defines ``draw()``, which returns a figure of matplotlib. It is called twice, in colours
for light and for dark pages, and the page shows the one that fits. Drawings go to
``docs/images/drawn``, which git ignores, and are kept until the script or the package changes:

    ```{drawn} stated_and_met
    :alt: What is seen

    The caption.
    ```
"""

import runpy
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


def draw(name: str, folder: Path = DRAWN) -> dict[str, Path]:
    """The drawings of a script for light and dark pages, drawn anew where they are stale."""
    script = SCRIPTS / f"{name}.py"
    paths = {kind: folder / f"{name}-{kind}.svg" for kind in INK}
    newest = max(path.stat().st_mtime for path in [script, *PACKAGE.rglob("*.py")])
    if any(not path.exists() or path.stat().st_mtime < newest for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        drawing = runpy.run_path(str(script))["draw"]
        for kind, path in paths.items():
            with mpl.rc_context(_style(INK[kind])):
                drawing().savefig(path, transparent=True, metadata={"Date": None})
    return paths


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
        for kind, path in draw(name).items():
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
    """Add the directive."""
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}

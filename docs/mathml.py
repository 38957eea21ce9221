"""Formulas as MathML, which browsers show without a script and without a network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator


def write_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula within a line."""
    translator.body.append(_converted(node, "inline"))
    raise nodes.SkipNode


def write_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    translator.body.append(_converted(node, "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def _converted(node: nodes.Element, display: str) -> str:
    latex = node.astext()
    try:
        return str(convert(latex, display=display))
    except Exception as error:
        raise ExtensionError(f"{node.source}: cannot write {latex!r} as MathML: {error}") from error


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer, by the name ``mathml``."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

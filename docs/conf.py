"""Configuration of the documentation: `make docs` builds it, with warnings as errors.

A new public name needs one line in a page of ``docs/api``; everything else is found from there.
"""

import functools
import gc
import importlib
import inspect
import json
import re
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext import autosummary
from sphinx.ext.intersphinx import resolve_reference_any_inventory
from sphinx.search.en import SearchEnglish
from sphinx.util.nodes import make_refnode

import botorch_calib

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

from api_names import documented_names  # noqa: E402
from docstring_examples import completed, examples  # noqa: E402

# BayBE collects garbage 56 times while it is imported. Each time Python would visit all objects of
# torch, half a minute in all. Frozen objects are not visited.
gc.freeze()
importlib.import_module("baybe")
# With the usual threshold, the trees of documents take a fifth of the build to search for garbage.
gc.set_threshold(50_000)
# A word is stemmed once for the search, not on each page.
SearchEnglish.stem = functools.cache(SearchEnglish.stem)

project = "botorch_calib"
author = "botorch_calib developers"
copyright = "botorch_calib developers"  # noqa: A001, the name that Sphinx reads
release = version = botorch_calib.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "drawn_figures",
    "mathml",
]
exclude_patterns = ["_build", "Thumbs.db"]
templates_path = ["_templates"]

# Formulas are written by `mathml.py`: no script, no network.
html_math_renderer = "mathml"

# Pages and notebooks, which come executed, with their pictures: see `copy_notebooks`.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# The API reference. Type annotations stand in the signature, in short form.
autosummary_generate = True
# The first sentence of a docstring does not end at "eq.".
autosummary.WELL_KNOWN_ABBREVIATIONS += ("eq.", "eqs.", "sec.", "alg.", "cf.")
autosummary_ignore_module_all = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
# See `inherit_docstrings`: classes would inherit that of `Module.__init__` as well.
autodoc_inherit_docstrings = False
autoclass_content = "both"  # as in BoTorch, a constructor's docstring holds its arguments
autodoc_default_options = {
    "members": True,
    # Of pydantic, which puts it into each class; and BayBE's method, since `recommend` is ours.
    "exclude-members": "model_post_init, recommend",
    "show-inheritance": True,
    # What comes from these is documented by the libraries that they belong to.
    "inherited-members": ", ".join(
        (
            "ABC",
            "AcquisitionFunction",
            "AnalyticAcquisitionFunction",
            "BayesianGenerator",
            "BaseModel",
            "BaseTestProblem",
            "Enum",
            "Executor",
            "Generic",
            "Model",
            "ModelConstructor",
            "Module",
            "Posterior",
            "Protocol",
            "StandardModelConstructor",
            "TestCase",
            "Warning",
            "XoptBaseModel",
            "object",
            "str",
            "tuple",
        )
    ),
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
# Docstrings write `Name` for a class or function; what is none of ours is set as code.
default_role = "any"
nitpicky = True
# Each docstring lists its own sources, so that `help` shows them: the same paper on several pages.
suppress_warnings = ["ref.citation"]

# Each file lists the names that these pages mention, and where their project documents them. So the
# build needs no network, and is the same everywhere. A name that no file lists is set as code.
# `tests/test_docs.py` checks the names, and `make links` the addresses.
INVENTORIES = {
    "torch": "https://docs.pytorch.org/docs/stable/",
    "botorch": "https://botorch.readthedocs.io/en/stable/",
    "gpytorch": "https://docs.gpytorch.ai/en/stable/",
    "ax": "https://ax.readthedocs.io/en/stable/",
    "optuna": "https://optuna.readthedocs.io/en/stable/",
}
intersphinx_mapping = {
    name: (address, f"inventories/{name}.txt") for name, address in INVENTORIES.items()
}

# `make links`, which the scheduled workflow runs.
linkcheck_retries = 3

# Members in the tables of contents cost a third of the build and crowd them.
toc_object_entries = False

html_theme = "furo"
html_title = f"botorch_calib {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
# A copied example leaves the prompts and the output behind.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Public name -> where it is documented, for references that name the defining module instead.
PUBLIC = {name.rpartition(".")[2]: name for name in documented_names(DOCS / "api")}
# The same for other libraries.
LINKED = {
    (library, line.split()[0].rpartition(".")[2]): line.split()[0]
    for library in INVENTORIES
    for line in (DOCS / "inventories" / f"{library}.txt").read_text("utf-8").splitlines()[3:]
}
# Docstrings may be inherited, from BoTorch's classes too.
EXAMPLES = set(examples().values())


def copy_notebooks(app: Sphinx) -> None:
    """Bring the executed notebooks, which `make tutorials` writes, below the source folder.

    Links of a tutorial are those of its place in the repository. The last picture of each example
    becomes that of its card.
    """
    for pattern in ("tutorials/*.ipynb", "examples/*.ipynb"):
        for notebook in sorted(ROOT.glob(pattern)):
            target = DOCS / notebook.parent.name / notebook.name
            if not target.exists() or target.stat().st_mtime < notebook.stat().st_mtime:
                text = notebook.read_text(encoding="utf-8").replace("](../docs/", "](../")
                target.write_text(text, encoding="utf-8")
                if notebook.parent.name == "examples":
                    picture = DOCS / "images" / "drawn" / f"{notebook.stem}.png"
                    picture.parent.mkdir(exist_ok=True)
                    picture.write_bytes(_last_picture(notebook))


def _last_picture(notebook: Path) -> bytes:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return b64decode([data["image/png"] for data in outputs if "image/png" in data][-1])


def inherit_docstrings(app: Sphinx) -> None:
    """Give methods and properties without a docstring that of the one they override."""
    for name in documented_names(DOCS / "api"):
        documented = autosummary.import_by_name(name)[1]
        for cls in documented.__mro__ if isinstance(documented, type) else ():
            if cls.__module__.startswith("botorch_calib."):
                for own, member in vars(cls).items():
                    if own == "__init__":  # the class describes its arguments
                        continue
                    if inspect.isfunction(member) or isinstance(member, property):
                        overridden = (vars(base).get(own) for base in cls.__mro__)
                        member.__doc__ = next(
                            (m.__doc__ for m in overridden if m and m.__doc__), None
                        )


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """What to do about a reference that Sphinx cannot resolve.

    Names of this package, and then of other libraries, are looked up by their last part, since
    annotations hold the path of the module that defines a class. Other names (arguments,
    expressions in backticks) are set as code. A path below ``botorch_calib`` that does not exist
    stays a warning.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") not in ("py", "", None):
        return None
    parts = target.removeprefix("~").split(".")
    objects = env.domains.python_domain.objects
    for i in reversed(range(len(parts))):
        if parts[i] not in PUBLIC:
            continue
        # A method leads to its own entry if it has one, else to that of its class.
        for name in (".".join([PUBLIC[parts[i]], *parts[i + 1 :]]), PUBLIC[parts[i]]):
            if name in objects:
                found = objects[name]
                return make_refnode(
                    app.builder, node["refdoc"], found.docname, found.node_id, content, name
                )
    for library in INVENTORIES if len(parts) == 1 else parts[:1]:
        if (library, parts[-1]) in LINKED:
            node["reftarget"] = LINKED[library, parts[-1]]
            return resolve_reference_any_inventory(env, False, node, content)
    if node.get("reftype") == "any" or not _is_missing(target):
        return content
    return None


def _is_missing(target: str) -> bool:
    """Whether a dotted path claims to be of this package and is not."""
    if not re.match(r"botorch_calib(\.|$)", target):
        return False
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return True
            value = getattr(value, part)
        return False
    return True


def set_tables(app: Sphinx, doctree: nodes.document) -> None:
    """Break a cell such as ``0.21 (0.20 to 0.23)`` before the bracket only, and name classes.

    Tables of nine columns or more are dense; a cell of more than three words in a first column has
    the class ``words``, and one of more than ten beside at least two others ``text``.
    """
    for group in doctree.findall(nodes.tgroup):
        if group["cols"] >= 9:
            group.parent["classes"].append("dense")
    for body in doctree.findall(nodes.tbody):
        for cell in body.findall(nodes.entry):
            count = len(cell.astext().split())
            if count > 3 and cell.parent[0] is cell:
                cell["classes"].append("words")
            if count > 10 and len(cell.parent) > 2:
                cell["classes"].append("text")
            if re.match(r"[-+<]?\d[^A-Za-z]*((to|of|e)[^A-Za-z]*)*$", cell.astext()):
                for text in list(cell.findall(nodes.Text)):
                    text.parent.replace(text, nodes.Text(re.sub(r" (?![(\[])", "\u00a0", text)))


def complete_example(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]):
    """Put imports and data in front of a docstring's example, if it is one of ours."""
    if "\n".join(lines).strip() in EXAMPLES:
        lines[:] = completed(lines, PUBLIC)


def collapse_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], *_: Any):
    """Show the branch of this page in the sidebar, and only the tops of others.

    The theme asks for the whole tree, with every public name, on each page: two thirds of the time
    of a build.
    """
    if whole := context.get("toctree"):
        context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def setup(app: Sphinx) -> None:
    """Connect the functions above to Sphinx."""
    app.connect("autodoc-process-docstring", complete_example, priority=400)  # Napoleon has 500
    app.connect("builder-inited", copy_notebooks)
    app.connect("doctree-read", set_tables)
    app.connect("missing-reference", resolve)
    app.connect("builder-inited", inherit_docstrings)
    app.connect("html-page-context", collapse_navigation, priority=400)  # before the theme

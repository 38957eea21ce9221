"""The package's structure, read from its source with ``ast``: nothing here imports it."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "botorch_calib"

# Each component may import those before it, never one after it.
CHAIN = (
    "exceptions",
    "_validation",
    "_roots",
    "distributions",
    "calibration",
    "posteriors",
    "models",
    "diagnostics",
    "acquisition",
    "decisions",
    "asynchronous",
    "integrations",
)
# What searches: it knows BoTorch alone, and serves what chooses points.
SEARCH = "optim"
# These serve the chain's later components and know nothing of acquisitions.
SIDE = ("ledger", "robust")
# These may import all of the above, and nothing in the package imports them.
LEAVES = ("test_functions", "plotting", "testing")
# Components of the chain that are siblings: neither imports the other.
STRANGERS = {("acquisition", "diagnostics")}
# Python files that may stand at the top of the package, besides its subpackages.
ROOT_FILES = {"", "exceptions", "_roots", "_validation"}

Graph = dict[str, set[str]]


class Source(NamedTuple):
    """One module: its dotted name, its text and whether it is a package's ``__init__``."""

    name: str
    text: str
    is_package: bool


def read_sources(package: Path) -> list[Source]:
    sources = []
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources.append(Source(name, path.read_text(encoding="utf-8"), is_package))
    return sources


def parents(name: str) -> list[str]:
    """The packages that hold a module, the top-level one left out: every import loads that."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(2, len(parts))]


@cache
def imported_names(source: Source) -> list[str]:
    """Dotted names that a module imports, anywhere in its text, with relative ones resolved."""
    package = source.name.split(".") if source.is_package else source.name.split(".")[:-1]
    names = []
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            names += [".".join([*base, alias.name]) for alias in node.names]
    return names


def import_graph(sources: list[Source]) -> Graph:
    """Edges from each module to the package's modules that importing it loads."""
    modules = {source.name for source in sources}
    graph: Graph = {name: set() for name in modules}
    for source in sources:
        for name in imported_names(source):
            target = name
            while target not in modules and "." in target:  # a class or function of a module
                target = target.rpartition(".")[0]
            if target not in modules:
                continue
            # Importing a.b.c runs a.b first, unless the importer lies in a.b itself.
            implied = {p for p in parents(target) if not f"{source.name}.".startswith(f"{p}.")}
            graph[source.name] |= {target} | (implied & modules)
        graph[source.name].discard(source.name)
    return graph


def component(name: str) -> str:
    """The part of the package a module belongs to: the name below the top, "" for the top."""
    return [*name.split("."), ""][1]


def component_graph(graph: Graph) -> Graph:
    result: Graph = {component(name): set() for name in graph}
    for name, targets in graph.items():
        result[component(name)] |= {component(t) for t in targets} - {component(name)}
    return result


def find_cycle(graph: Graph) -> list[str]:
    """A closed path of the graph, or an empty list."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph[node]):
            if cycle := visit(target, [*path, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


def is_allowed(source: str, target: str) -> bool:
    """Whether one component may import another one; "" is the package's ``__init__``."""
    if source == "":
        return True
    if target == "" or target in LEAVES:
        return False
    if source in LEAVES:
        return True
    if (source, target) in STRANGERS:
        return False
    if source == SEARCH:
        return target in ROOT_FILES
    if target == SEARCH:
        return source not in SIDE and CHAIN.index(source) >= CHAIN.index("acquisition")
    if source in SIDE:
        # They may use models, and nothing that chooses queries.
        return target in SIDE or CHAIN.index(target) < CHAIN.index("diagnostics")
    # Nothing more is asked of an import of `ledger` or `robust` than that no cycle arises.
    return target in SIDE or CHAIN.index(target) < CHAIN.index(source)


def unranked(sources: list[Source]) -> list[str]:
    known = {"", *CHAIN, SEARCH, *SIDE, *LEAVES}
    return sorted({component(source.name) for source in sources} - known)


def forbidden_imports(sources: list[Source]) -> list[str]:
    graph = import_graph(sources)
    return [
        f"{name} imports {target}"
        for name in sorted(graph)
        for target in sorted(graph[name])
        if component(name) != component(target)
        and not is_allowed(component(name), component(target))
    ]


def trespasses(sources: list[Source]) -> list[str]:
    """Imports of a private module, or of a private name of one, from outside of its package."""
    graph = import_graph(sources)
    found = []
    for name in sorted(graph):
        for target in sorted(graph[name]):
            home, _, last = target.rpartition(".")
            if last.startswith("_") and component(target) != last:
                if not f"{name}.".startswith(f"{home}."):
                    found.append(f"{name} imports {target}")
    return found


def undocumented(sources: list[Source]) -> list[str]:
    return [
        source.name
        for source in sources
        if not any(part.startswith("_") for part in source.name.split("."))
        and not ast.get_docstring(ast.parse(source.text))
    ]


def wrong_tables(sources: list[Source]) -> list[str]:
    """Packages whose docstring has a table of their files that is not theirs."""
    names = {source.name for source in sources}
    found = []
    for package in filter(lambda source: source.is_package, sources):
        docstring = ast.get_docstring(ast.parse(package.text)) or ""
        listed = set(re.findall(r"^``(\w+)`` ", docstring, re.MULTILINE))
        held = {
            name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == package.name
        }
        has_table = listed or re.search(r"^===", docstring, re.MULTILINE)  # rows may be lost
        if has_table and listed != held:
            found.append(f"{package.name}: {sorted(listed ^ held)}")
    return found


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    found = read_sources(PACKAGE)
    assert found, f"no modules below {PACKAGE}"
    return found


def test_every_component_has_a_rank(sources: list[Source]) -> None:
    names = unranked(sources)
    assert not names, f"{names}: give them a place in CHAIN, SIDE or LEAVES of {__file__}"


def test_import_graph_is_acyclic(sources: list[Source]) -> None:
    graph = import_graph(sources)
    assert not find_cycle(graph), " -> ".join(find_cycle(graph))
    parts = component_graph(graph)
    assert not find_cycle(parts), " -> ".join(find_cycle(parts))


def test_import_graph_of_the_benchmarks_is_acyclic() -> None:
    found = read_sources(ROOT / "benchmarks")
    assert found, "no modules of benchmarks"
    cycle = find_cycle(import_graph(found))
    assert not cycle, " -> ".join(cycle)


def test_imports_run_one_way(sources: list[Source]) -> None:
    if names := unranked(sources):
        pytest.fail(f"rank {names} first")
    found = forbidden_imports(sources)
    assert not found, "\n".join(found)


def test_private_modules_stay_in_their_package(sources: list[Source]) -> None:
    found = trespasses(sources)
    assert not found, "\n".join(found)


def test_no_loose_modules_at_the_root(sources: list[Source]) -> None:
    packages = {source.name for source in sources if source.is_package}
    loose = {component(s.name) for s in sources if s.name.count(".") == 1} - {
        component(name) for name in packages if name.count(".") == 1
    }
    assert loose <= ROOT_FILES, loose


def test_public_modules_have_docstrings(sources: list[Source]) -> None:
    assert not undocumented(sources)


def test_tables_of_files_are_complete(sources: list[Source]) -> None:
    assert not wrong_tables(sources)
    assert not wrong_tables(read_sources(ROOT / "benchmarks"))


class TestTheChecksThemselves:
    """Each check finds the fault it is there for, in a package of a few lines."""

    @staticmethod
    def package(files: dict[str, str]) -> list[Source]:
        return [
            Source(
                ".".join(["pkg", *path.split("/")]).removesuffix(".__init__"),
                text,
                path.endswith("__init__"),
            )
            for path, text in {"__init__": "", **files}.items()
        ]

    @pytest.mark.parametrize(
        "statement",
        [
            "import pkg.models.a",
            "from pkg import models",
            "from pkg.models.a import A",
            "from ..models import a",
            "from ..models.a import A",
            "def f():\n    from pkg.models import a",
            "if TYPE_CHECKING:\n    from pkg.models.a import A",
        ],
    )
    def test_backward_import(self, statement: str) -> None:
        files = {"calibration/__init__": "", "calibration/b": statement}
        found = forbidden_imports(self.package({**files, "models/__init__": "", "models/a": ""}))
        assert "pkg.calibration.b imports pkg.models" in found

    @pytest.mark.parametrize(
        ("importer", "target", "allowed"),
        [
            ("models", "calibration", True),
            ("calibration", "models", False),
            ("distributions", "_validation", True),
            ("_validation", "distributions", False),
            ("ledger", "models", True),
            ("ledger", "acquisition", False),
            ("robust", "diagnostics", False),
            ("diagnostics", "models", True),
            ("acquisition", "diagnostics", False),
            ("asynchronous", "acquisition", True),
            ("acquisition", "asynchronous", False),
            ("integrations", "asynchronous", True),
            ("robust", "acquisition", False),
            ("decisions", "acquisition", True),
            ("acquisition", "decisions", False),
            ("robust", "decisions", False),
            ("optim", "_validation", True),
            ("optim", "models", False),
            ("optim", "acquisition", False),
            ("acquisition", "optim", True),
            ("models", "optim", False),
            ("robust", "optim", False),
            ("acquisition", "robust", True),
            ("models", "testing", False),
            ("plotting", "testing", False),
            ("plotting", "acquisition", True),
        ],
    )
    def test_rules(self, importer: str, target: str, allowed: bool) -> None:
        sources = self.package({importer: f"from pkg.{target} import f", target: ""})
        assert (forbidden_imports(sources) == []) is allowed

    def test_only_init_imports_a_leaf_and_none_imports_the_top(self) -> None:
        files = {"__init__": "from pkg.plotting import plot", "plotting": ""}
        assert not forbidden_imports(self.package(files))
        found = forbidden_imports(self.package({"models": "from pkg import CalibratedModel"}))
        assert found == ["pkg.models imports pkg"]

    def test_cycle_within_a_component(self) -> None:
        files = {"models/a": "from .b import B", "models/b": "from .a import A"}
        cycle = find_cycle(import_graph(self.package(files)))
        assert cycle == ["pkg.models.a", "pkg.models.b", "pkg.models.a"]

    def test_cycle_through_a_package_init(self) -> None:
        files = {"ledger/__init__": "from .a import A", "ledger/a": "import pkg.models"}
        graph = import_graph(
            self.package({**files, "ledger/b": "", "models": "import pkg.ledger.b"})
        )
        assert find_cycle(graph)

    def test_cycle_between_components_alone(self) -> None:
        files = {"ledger/a": "import pkg.models.a", "models/b": "import pkg.ledger.b"}
        graph = import_graph(self.package({**files, "ledger/b": "", "models/a": ""}))
        assert not find_cycle(graph)
        assert find_cycle(component_graph(graph))

    def test_package_that_imports_its_own_modules_is_no_cycle(self) -> None:
        files = {"models/__init__": "from .a import A", "models/a": "from pkg.models.b import B"}
        assert not find_cycle(import_graph(self.package({**files, "models/b": ""})))

    def test_unknown_component(self) -> None:
        assert unranked(self.package({"models": "", "helpers/a": ""})) == ["helpers"]

    def test_private_modules(self) -> None:
        files = {"models/__init__": "", "models/_a": "", "models/b": "from pkg.models._a import f"}
        assert not trespasses(self.package(files))
        files["acquisition/c"] = "from pkg.models._a import f"
        assert trespasses(self.package(files)) == ["pkg.acquisition.c imports pkg.models._a"]

    def test_tables(self) -> None:
        table = '"""Models.\n\n``a``  one\n``b``  the other\n"""'
        files = {"models/__init__": table, "models/a": ""}
        assert wrong_tables(self.package(files)) == ["pkg.models: ['b']"]
        assert not wrong_tables(self.package({**files, "models/b": ""}))
        files["models/__init__"] = '"""Models.\n\n====== ======\n"""'
        assert wrong_tables(self.package(files)) == ["pkg.models: ['a']"]

    def test_docstrings(self) -> None:
        files = {"__init__": "'''Top.'''", "_private": "", "models/__init__": "", "models/a": "1"}
        assert undocumented(self.package(files)) == ["pkg.models", "pkg.models.a"]

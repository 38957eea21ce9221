"""The package's structure, read from its source with ``ast``, without importing it."""

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
# Searches. They depend only on BoTorch, and all components that choose points use them.
SEARCH = "optim"
# The chain's later components use these, which do not import acquisition functions.
SIDE = ("ledger", "robust")
# These may import all of the above, and nothing in the package imports them.
LEAVES = ("test_functions", "plotting")
# Components of the chain that are siblings: neither imports the other.
STRANGERS = {("acquisition", "diagnostics")}
# Python files that may be at the top of the package, next to its subpackages.
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
    """The packages that contain a module, without the top-level package, which is always loaded."""
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
    """Edges from each module to the package's modules that its import loads."""
    modules = {source.name for source in sources}
    graph: Graph = {name: set() for name in modules}
    for source in sources:
        for name in imported_names(source):
            target = name
            while target not in modules and "." in target:  # a class or function of a module
                target = target.rpartition(".")[0]
            if target not in modules:
                continue
            # Importing a.b.c runs a.b first, unless the importer is in a.b itself.
            implied = {p for p in parents(target) if not f"{source.name}.".startswith(f"{p}.")}
            graph[source.name] |= {target} | (implied & modules)
        graph[source.name].discard(source.name)
    return graph


def component(name: str) -> str:
    """The part of the package to which a module belongs: the name below the top, "" for the top."""
    return [*name.split("."), ""][1]


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
        # They may use models, but nothing that chooses queries.
        return target in SIDE or CHAIN.index(target) < CHAIN.index("diagnostics")
    # An import of `ledger` or `robust` must not make a cycle, and has no other restriction.
    return target in SIDE or CHAIN.index(target) < CHAIN.index(source)


def wrong_tables(sources: list[Source]) -> list[str]:
    """Packages whose docstring has a wrong table of files."""
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
    known = {"", *CHAIN, SEARCH, *SIDE, *LEAVES}
    names = sorted({component(source.name) for source in sources} - known)
    assert not names, f"{names}: give them a place in CHAIN, SIDE or LEAVES of {__file__}"


def test_import_graph_is_acyclic(sources: list[Source]) -> None:
    graph = import_graph(sources)
    assert not find_cycle(graph), " -> ".join(find_cycle(graph))
    parts: Graph = {component(name): set() for name in graph}
    for name, targets in graph.items():
        parts[component(name)] |= {component(t) for t in targets} - {component(name)}
    assert not find_cycle(parts), " -> ".join(find_cycle(parts))


def test_import_graph_of_the_benchmarks_is_acyclic() -> None:
    cycle = find_cycle(import_graph(read_sources(ROOT / "benchmarks")))
    assert not cycle, " -> ".join(cycle)


def test_imports_run_one_way(sources: list[Source]) -> None:
    for name, targets in import_graph(sources).items():
        for target in targets:
            parts = component(name), component(target)
            assert parts[0] == parts[1] or is_allowed(*parts), f"{name} imports {target}"


def test_private_modules_stay_in_their_package(sources: list[Source]) -> None:
    """Private modules and private names are imported only inside their package."""
    for name, targets in import_graph(sources).items():
        for target in targets:
            home, _, last = target.rpartition(".")
            is_private = last.startswith("_") and component(target) != last
            assert not is_private or f"{name}.".startswith(f"{home}."), f"{name} imports {target}"


def test_no_loose_modules_at_the_root(sources: list[Source]) -> None:
    packages = {source.name for source in sources if source.is_package}
    loose = {component(s.name) for s in sources if s.name.count(".") == 1} - {
        component(name) for name in packages if name.count(".") == 1
    }
    assert loose <= ROOT_FILES, loose


def test_public_modules_have_docstrings(sources: list[Source]) -> None:
    for source in sources:
        is_private = any(part.startswith("_") for part in source.name.split("."))
        assert is_private or ast.get_docstring(ast.parse(source.text)), source.name


def test_tables_of_files_are_complete() -> None:
    assert not wrong_tables(read_sources(ROOT / "benchmarks"))

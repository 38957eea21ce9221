"""Examples of docstrings, completed: for the site, where they can be copied, and for a test.

A docstring shows the one or two lines that matter. Here imports and data are put in front of them.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping
from doctest import DocTestParser
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "botorch_calib"

# Name -> the lines that make it, in the order in which they are written.
DATA = {
    "X": "X = torch.rand(20, 2, dtype=torch.double)",
    "Y": "Y = torch.sin(6 * X).sum(dim=-1, keepdim=True)",
    "bounds": "bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)",
    "gp": "gp = SingleTaskGP(X, Y)",
    "model": "model = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))",
    "constraint": "constraint = ChanceConstraint(gp, upper=1.0, level=0.9)",
    "contexts": "contexts = ContextDistribution.empirical(X[:, 1:])",
    "ledger": """\
ledger = FeedbackLedger(dim=2)
ids = ledger.add([[0.1, 0.9], [0.8, 0.2]], [0.5, 0.7])""",
    "client": """\
client = Client(random_seed=0)
parameters = [RangeParameterConfig(name, (0, 1), "float") for name in ("x", "c")]
client.configure_experiment(parameters)
client.configure_optimization("y")""",
    "vocs": """\
vocs = VOCS(
    variables={"a": [0.0, 1.0]},
    objectives={"current": "MAXIMIZE"},
    constraints={"loss": ["LESS_THAN", 0.8]},
)""",
}
# Module -> the names that examples take from it.
NAMES = {
    "copy": "deepcopy",
    "functools": "partial",
    "concurrent.futures": "ThreadPoolExecutor",
    "ax.api.client": "Client",
    "ax.api.configs": "RangeParameterConfig",
    "botorch.acquisition": "LogExpectedImprovement UpperConfidenceBound",
    "botorch.models": "ModelListGP SingleTaskGP",
    "botorch.models.ensemble": "EnsembleModel",
    "botorch.models.map_saas": "EnsembleMapSaasSingleTaskGP",
    "botorch.models.transforms": "ChainedOutcomeTransform Log Standardize",
    "botorch.optim": "optimize_acqf",
    "botorch.posteriors": "TorchPosterior",
    "botorch.sampling.pathwise": "draw_matheron_paths",
    "botorch.test_functions": "Ackley",
    "optuna_integration": "BoTorchSampler",
    "torch.distributions": "Normal StudentT",
    "xopt": "Evaluator VOCS Xopt",
    "xopt.generators.bayesian": "ExpectedImprovementGenerator",
}
MODULE_OF = {name: module for module, names in NAMES.items() for name in names.split()}

# Longest line of an import that a page shows without a scroll bar.
WIDTH = 80


def examples() -> dict[str, str]:
    """All docstrings with an example, by file and name: ``"optim/robust_search.py::name"``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for name, node in _definitions(ast.parse(path.read_text(encoding="utf-8")), ""):
            docstring = ast.get_docstring(node) or ""
            if ">>> " in docstring:
                found[f"{file}::{name}"] = docstring
    return found


def _definitions(
    parent: ast.Module | ast.ClassDef, prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for node in parent.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node, f"{prefix}{node.name}.")


def completed(lines: list[str], public: Mapping[str, str]) -> list[str]:
    """The lines of a docstring, with imports and data in front of its first example.

    ``public`` has the full path of each name of the API reference.
    """
    found = DocTestParser().get_examples("\n".join(lines))
    if not found:
        return lines
    start, indent = found[0].lineno, found[0].indent * " "
    added = _setting("".join(example.source for example in found), public)
    return [*lines[:start], *(f"{indent}{line}" for line in added), *lines[start:]]


def _setting(code: str, public: Mapping[str, str]) -> list[str]:
    """What an example takes for granted, as lines with prompts."""
    module_of = {name: path.rpartition(".")[0] for name, path in public.items()} | MODULE_OF
    needed = _names_taken(code)
    data: list[str] = []
    for name, statements in reversed(DATA.items()):
        if name in needed:
            data = [*statements.splitlines(), *data]
            needed |= _names_taken(statements)
    imports: dict[str, list[str]] = {}
    for name in sorted(needed & module_of.keys()):
        imports.setdefault(module_of[name], []).append(name)
    froms = [line for module in sorted(imports) for line in _import(module, imports[module])]
    modules = [f"import {name}" for name in sorted(needed & {"optuna", "torch"})]
    return [f"{'...' if line[0] in ' )' else '>>>'} {line}" for line in modules + froms + data]


def _import(module: str, names: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names), ")"]


def _names_taken(code: str) -> set[str]:
    """The names that a piece of code reads and does not make."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.name for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {node.id for node in names} - made - set(dir(builtins))

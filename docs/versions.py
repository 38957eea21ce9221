"""The page of versions. Where the tests have passed, `make versions` writes it anew."""

import platform
import re
import tomllib
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
PACKAGES = ("torch", "gpytorch", "botorch", "ax-platform", "optuna-integration", "xopt", "baybe")

_PAGE = """\
# Versions

On {date} all tests passed with the newest packages, under Python {python}. Each night a workflow
runs the tests with the newest releases and writes this page. The continuous integration runs them
with each Python from the oldest to the newest, and with the oldest BoTorch and GPyTorch.

| | oldest | newest |
|---|---|---|
{rows}

An empty cell means that this package states no limit: BoTorch asks for the torch that it needs.
"""


def project() -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def oldest() -> dict[str, str]:
    """The least version of each package for which the project asks, if it asks for one."""
    described = project()
    extras = described["optional-dependencies"].values()
    asked = (re.match(r"([\w-]+)>=([\d.]+)$", d) for d in sum(extras, described["dependencies"]))
    least = {match[1]: match[2] for match in asked if match}
    return {
        "Python": described["requires-python"].removeprefix(">="),
        **{name: least.get(name, "") for name in PACKAGES},
    }


def installed() -> dict[str, str]:
    """The versions of this environment; of Python, the newest one that the project declares."""
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))
    newest = {"Python": pythons[-1]}
    for name in PACKAGES:
        try:
            newest[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            newest[name] = ""
    return newest


def page(newest: dict[str, str], day: date) -> str:
    """The page, if the tests passed with these versions on that day."""
    rows = (f"| {name} | {least} | {newest[name]} |" for name, least in oldest().items())
    python = ".".join(platform.python_version_tuple()[:2])
    return _PAGE.format(date=day, python=python, rows="\n".join(rows))


if __name__ == "__main__":
    PAGE.write_text(page(installed(), date.today()), encoding="utf-8")

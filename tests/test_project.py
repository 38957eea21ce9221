"""Versions and dependencies in other files agree with `pyproject.toml`."""

import re

import pytest

from docs import versions
from tests.documentation import ROOT

PROJECT = versions.project()


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in text


def test_the_recipe_asks_for_the_same_packages() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == PROJECT["version"]
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    python, *run = (entry.replace(" ", "") for entry in recipe["requirements"]["run"])
    assert python == "python>=${{python_min}}"
    # conda-forge calls one of them differently.
    assert [re.sub("^pytorch$", "torch", entry) for entry in run] == PROJECT["dependencies"]


def test_the_page_of_versions_is_current() -> None:
    """If not, run `make versions` in an environment in which the tests pass."""
    text = versions.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]*) \| ([\d.]+) \|$", text, flags=re.M)
    assert {name: least for name, least, _ in rows} == versions.oldest()
    for _, least, newest in rows:
        parts = [[int(part) for part in number.split(".") if part] for number in (least, newest)]
        assert parts[0] <= parts[1]

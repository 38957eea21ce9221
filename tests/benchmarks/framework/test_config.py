"""A configuration is described completely, and a change of it changes the hash."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from benchmarks.framework.config import config_hash, describe, normalised
from benchmarks.framework.replicate_result import replicate_config
from benchmarks.suites import SUITES

# Descriptions name the package of a function and not its module.
PACKAGE = __name__.partition(".")[0]


def settings(a: int, b: float = 2.0, *, c: str = "c") -> None:
    """Something with settings."""


@dataclass(frozen=True)
class Inner:
    size: int = 3


class Plain:
    def __init__(self, level: float) -> None:
        self.level = level


def test_what_has_no_name_or_no_parts_is_refused() -> None:
    with pytest.raises(TypeError, match="no importable name"):
        describe(lambda x: x)
    with pytest.raises(TypeError, match="Cannot describe a object"):
        describe(object())


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let a function or class claim to be in another module of its package."""

    def move(value: Any) -> None:
        monkeypatch.setattr(value, "__module__", f"{PACKAGE}.somewhere.else")

    return move


@pytest.mark.parametrize("value", [settings, Inner(), Plain(0.5)], ids=lambda v: type(v).__name__)
def test_moving_to_another_module_leaves_the_hash(value: Any, moved: Callable[[Any], None]) -> None:
    before = config_hash(describe({"a": value}))
    moved(value if inspect.isfunction(value) else type(value))
    assert config_hash(describe({"a": value})) == before


def test_a_changed_default_or_setting_changes_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = config_hash(describe(settings))
    assert config_hash(describe(partial(settings, b=2.0))) == before
    assert config_hash(describe(partial(settings, b=2.5))) != before
    assert config_hash(describe(Inner(4))) != config_hash(describe(Inner()))
    monkeypatch.setattr(settings, "__kwdefaults__", {"c": "d"})
    assert config_hash(describe(settings)) != before


def test_a_new_optional_argument_leaves_the_hash() -> None:
    def hash_of(**arguments: Any) -> str:
        return config_hash({"method": {"callable": "package.f", "a": 1.0, **arguments}})

    assert hash_of(b=None) == hash_of()
    assert hash_of(b=0.0) != hash_of()
    # Elsewhere, None is an ordinary value.
    assert config_hash({"a": None}) != config_hash({})
    assert config_hash([1, None]) != config_hash([1])


def test_two_things_of_one_name_are_refused() -> None:
    first, second = type("Twin", (), {}), type("Twin", (), {})
    first.__module__, second.__module__ = "package.a", "package.b"
    for twin in (first, second):
        twin.__qualname__ = "Twin"
        assert describe([twin, twin()])[0]["callable"] == "package.Twin"
    with pytest.raises(ValueError, match="package.a and package.b"):
        describe([first(), second()])
    elsewhere = type("Twin", (), {"__module__": "other.b", "__qualname__": "Twin"})
    assert len(describe([first, elsewhere])) == 2


def test_a_former_constant_has_its_value_in_older_results() -> None:
    old = normalised({"type": "botorch_calib.calibration.scores.GaussianScore"})
    assert old == normalised({"type": "botorch_calib.GaussianScore", "max_width": 3.4})
    assert old != normalised({"type": "botorch_calib.GaussianScore", "max_width": 3.0})


@pytest.mark.parametrize("name", sorted(SUITES))
def test_registered_suites_have_distinct_configurations(name) -> None:
    suite = SUITES[name]
    hashes = set()
    for problem in suite.problems:
        for method in suite.methods:
            config = replicate_config(problem, method)
            assert json.loads(json.dumps(config, allow_nan=False)) == config
            hashes.add(config_hash(config))
    assert len(hashes) == len(suite.problems) * len(suite.methods)

"""A configuration is described completely, and a change of it changes the hash."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from benchmarks.config import config_hash, describe
from benchmarks.core import replicate_config
from benchmarks.suites import SUITES


def settings(a: int, b: float = 2.0, *, c: str = "c") -> None:
    """Something with settings."""


@dataclass(frozen=True)
class Inner:
    size: int = 3


class Plain:
    def __init__(self, level: float) -> None:
        self.level = level


def test_plain_values() -> None:
    value = {"a": [1, 2.5, None, True], "b": ("x", float("inf")), "c": torch.float64}
    expected = {"a": [1, 2.5, None, True], "b": ["x", "inf"], "c": "torch.float64"}
    assert describe(value) == expected


def test_defaults_and_bound_arguments_are_described() -> None:
    name = f"{__name__}.settings"
    assert describe(settings) == {"callable": name, "b": 2.0, "c": "c"}
    bound = partial(partial(settings, 1, c="old"), c="new")
    assert describe(bound) == {"callable": name, "b": 2.0, "c": "new", "positional": [1]}


def test_objects_are_described_by_their_parts() -> None:
    assert describe(Inner(4)) == {"type": f"{__name__}.Inner", "size": 4}
    assert describe(Inner) == {"callable": f"{__name__}.Inner", "size": 3}
    assert describe(Plain(0.5)) == {"type": f"{__name__}.Plain", "level": 0.5}


def test_what_has_no_name_or_no_parts_is_refused() -> None:
    with pytest.raises(TypeError, match="no importable name"):
        describe(lambda x: x)
    with pytest.raises(TypeError, match="Cannot describe a object"):
        describe(object())


def test_hash_ignores_order_and_sees_changes() -> None:
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


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


def test_a_changed_budget_changes_the_hash() -> None:
    suite = SUITES["smoke"]
    problem, method = suite.problems[0], suite.methods[0]
    longer = replace(problem, num_evaluations=problem.num_evaluations + 1)
    before = config_hash(replicate_config(problem, method))
    assert config_hash(replicate_config(longer, method)) != before


def test_the_published_method_uses_the_scale_of_p_values() -> None:
    (method,) = (m for m in SUITES["locbo_settings"].methods if m.name == "locbo_published")
    calibrator = describe(method)["build"]["calibrator"]
    assert calibrator["score"] == {
        "type": "botorch_calib.calibration.scores.GaussianScore",
        "max_width": 3.4,
    }
    assert calibrator["tails"] == "gaussian"
    assert calibrator["step_size"] == 5e-3

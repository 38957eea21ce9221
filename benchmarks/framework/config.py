"""Describe a configuration as JSON, so that a change of the configuration is detected.

The description is derived from the objects that are run, including the defaults of their
arguments. A changed setting therefore always changes the description.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Keys under which a description holds the name of a class or a function.
NAMES = ("type", "callable")

_SCORE = {"type": "botorch_calib.calibration.RationalScore", "max_width": 50.0}

# Settings that some descriptions lack, because they were constants in older results or no longer
# exist, with their values in these cases.
FORMER_CONSTANTS: dict[str, dict[str, Any]] = {
    "botorch_calib.GaussianScore": {"max_width": 3.4},
    "botorch_calib.calibration.RationalScore": {"max_width": 50.0},
    **dict.fromkeys(
        ("botorch_calib.LocalizedConformal", "botorch_calib.OnlineConformal"), {"score": _SCORE}
    ),
    # Settings that no longer exist.
    "benchmarks.DelayedObjective": {"num_contexts": 0, "rounds_per_context": 0},
    "benchmarks.DelayedAcquisition": {"hyperparameters": "observed"},
    "botorch_calib.DelayStrategy": {"hyperparameters": "observed"},
    "botorch_calib.QuantileRecalibrator": {"score": _SCORE, "tails": "stretched"},
}


# Names of test functions that have moved from the package to `benchmarks.problems`, and their
# former names, which results have.
_MOVED = {
    f"benchmarks.{name}": f"botorch_calib.{name}"
    for name in ("ContextualAckley", "ContextualHartmann6", "ModifiedBranin", "ThreeHumpCamel")
}


# Settings whose unit has changed, with functions that convert them to the unit in older results.
# `beta` is a factor of the variance; it was a factor of the standard deviation.
RESTATED: dict[str, dict[str, Callable[[float], float]]] = {
    "botorch_calib.DelayStrategy": {"beta": math.sqrt}
}


def describe(value: Any) -> Any:
    """Return a JSON value that names ``value`` and every setting bound into it.

    The description of a function or class has its package, its qualified name and the values of
    arguments that have one, by default or through ``functools.partial``. The module is left out,
    since moving a function to another file changes nothing that is run. The description of another
    object has its type and attributes.

    Raises:
        TypeError: If a function has no importable name (a lambda or a local function), or an object
            has no attributes to describe.
        ValueError: If two different functions or classes of ``value`` have the same name.
    """
    return _Description().of(value)


def config_hash(config: Any) -> str:
    """A short hash of a described configuration, stable between processes.

    It does not depend on the order of settings or on what `normalised` removes.
    """
    text = json.dumps(normalised(config), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalised(config: Any) -> Any:
    """Return a description in its present form, without parts that do not affect the results.

    * Modules in the names of functions and classes, which older results have, are removed. Test
      functions that have moved here from the package keep their former names.
    * Arguments that are ``None`` are removed, so that a new optional argument does not make
      earlier results outdated.

    Missing settings are filled in from `FORMER_CONSTANTS`.
    """
    if isinstance(config, list):
        return [normalised(item) for item in config]
    if not isinstance(config, dict):
        return config
    if not any(key in config for key in NAMES):
        return {key: normalised(item) for key, item in config.items()}
    described = {
        key: _without_module(item) if key in NAMES and isinstance(item, str) else normalised(item)
        for key, item in config.items()
        if item is not None
    }
    name = next(described[key] for key in NAMES if key in described)
    return {**FORMER_CONSTANTS.get(name, {}), **described}


def _without_module(name: str) -> str:
    """Return ``"package.module.Class.method"`` as ``"package.Class.method"``.

    Modules have lower-case names here, so the qualified name starts at the first part with a
    capital letter; if there is none, it is the last part.
    """
    package, *parts = name.split(".")
    starts = [i for i, part in enumerate(parts) if part.lstrip("_")[:1].isupper()]
    name = ".".join([package, *parts[starts[0] if starts else -1 :]])
    return _MOVED.get(name, name)


class _Description:
    """The state of one call of `describe`: the function or class of each name."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else repr(value)
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if isinstance(value, (range, torch.dtype)):
            return repr(value)
        if isinstance(value, Mapping):
            return {str(key): self.of(item) for key, item in value.items()}
        if isinstance(value, torch.Tensor):
            return self.of(value.tolist())
        if isinstance(value, (functools.partial, type)) or inspect.isroutine(value):
            return self._of_callable(value)
        if dataclasses.is_dataclass(value):
            attributes = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        elif hasattr(value, "__dict__"):
            attributes = vars(value)
        else:
            kind = type(value).__name__
            raise TypeError(f"Cannot describe a {kind} in a benchmark configuration.")
        name = self._name(type(value))
        for setting, restate in RESTATED.get(name, {}).items():
            attributes = {**attributes, setting: restate(attributes[setting])}
        return {"type": name, **self.of(attributes)}

    def _of_callable(self, value: Callable[..., Any]) -> Any:
        bound: dict[str, Any] = {}
        positional: list[Any] = []
        while isinstance(value, functools.partial):
            bound = {**value.keywords, **bound}
            positional = [*value.args, *positional]
            value = value.func
        arguments = {**_defaults(value), **bound}
        description = {"callable": self._name(value), **self.of(arguments)}
        return {**description, "positional": self.of(positional)} if positional else description

    def _name(self, value: Callable[..., Any]) -> str:
        qualified = getattr(value, "__qualname__", "<nameless>")
        if "<" in qualified:
            raise TypeError(
                f"{value!r} has no importable name. Use a module-level function, with "
                "functools.partial for its settings."
            )
        name = f"{value.__module__.partition('.')[0]}.{qualified}"
        # `==` and not `is`: each access to a bound method makes a new object.
        if self.named.setdefault(name, value) != value:
            raise ValueError(
                f"One configuration has two objects named {name!r}, from the modules "
                f"{self.named[name].__module__} and {value.__module__}: rename one of them."
            )
        return name


def _defaults(value: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return {}
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

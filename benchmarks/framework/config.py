"""Describe a configuration as JSON, so that a changed one is noticed.

The description is read off the objects that are run, defaults of their arguments included,
and never written beside them: a setting cannot be changed and its description forgotten.
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


def describe(value: Any) -> Any:
    """Return a JSON value that names ``value`` and every setting bound into it.

    Functions and classes are named by module and qualified name, together with the values
    of those arguments that have one, by default or through ``functools.partial``. Other
    objects are named by their type and attributes. A lambda or a local function has no name
    that would tell a changed one from the old one, so it is refused.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, (range, torch.dtype)):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return describe(value.tolist())
    if isinstance(value, (functools.partial, type)) or inspect.isroutine(value):
        return _describe_callable(value)
    if dataclasses.is_dataclass(value):
        attributes = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif hasattr(value, "__dict__"):
        attributes = vars(value)
    else:
        raise TypeError(f"Cannot describe a {type(value).__name__} in a benchmark configuration.")
    return {"type": _qualified_name(type(value)), **describe(attributes)}


def config_hash(config: Any) -> str:
    """A short hash of a described configuration, stable between processes."""
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _describe_callable(value: Callable[..., Any]) -> Any:
    bound: dict[str, Any] = {}
    positional: list[Any] = []
    while isinstance(value, functools.partial):
        bound = {**value.keywords, **bound}
        positional = [*value.args, *positional]
        value = value.func
    arguments = {**_defaults(value), **bound}
    description = {"callable": _qualified_name(value), **describe(arguments)}
    return {**description, "positional": describe(positional)} if positional else description


def _defaults(value: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return {}
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def _qualified_name(value: Callable[..., Any]) -> str:
    name = getattr(value, "__qualname__", "<nameless>")
    if "<" in name:
        raise TypeError(
            f"{value!r} has no importable name. Use a module-level function, with "
            "functools.partial for its settings."
        )
    return f"{value.__module__}.{name}"

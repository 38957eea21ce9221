"""Context distributions and ambiguity sets as clients store them in their files: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from botorch_calib import robust
from botorch_calib.integrations.stored_calibrators import PLAIN
from botorch_calib.robust import AmbiguitySet, ContextDistribution, RadiusSchedule


def stored_contexts(contexts: ContextDistribution) -> dict[str, Any]:
    """A distribution without ``indices``."""
    tensors = {name: getattr(contexts, name) for name in ("points", "weights", "lipschitz_points")}
    return {name: None if t is None else t.tolist() for name, t in tensors.items()}


def read_contexts(stored: Mapping[str, Any]) -> ContextDistribution:
    """The inverse of `stored_contexts`."""
    tensors: dict[str, Any] = {
        name: None if values is None else torch.tensor(values, dtype=torch.double)
        for name, values in stored.items()
    }
    return ContextDistribution(**tensors)


def stored_ambiguity(ambiguity: AmbiguitySet) -> dict[str, Any] | AmbiguitySet:
    """The name of a set of this package and its arguments.

    Any other set stands for itself, and so does one with a function for an argument.
    """
    name, arguments = type(ambiguity).__name__, ambiguity._arguments()
    for key, value in arguments.items():
        if type(value) is RadiusSchedule:
            arguments[key] = {"c": value.c}
        elif isinstance(value, tuple):
            arguments[key] = list(value)
        elif not isinstance(value, PLAIN):
            return ambiguity
    if getattr(robust, name, None) is not type(ambiguity):
        return ambiguity
    return {"name": name, "arguments": arguments}


def read_ambiguity(stored: Any) -> AmbiguitySet:
    """The inverse of `stored_ambiguity`."""
    if isinstance(stored, AmbiguitySet):
        return stored
    arguments = dict(stored["arguments"])
    for key, value in arguments.items():
        if isinstance(value, Mapping):
            arguments[key] = RadiusSchedule(**value)
        elif isinstance(value, list):
            arguments[key] = torch.tensor(value, dtype=torch.double)  # lengthscales
    return getattr(robust, stored["name"])(**arguments)

"""Calibrators as clients store them in their files: the name of a class, and plain options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib import calibration
from botorch_calib.calibration import Calibrator, LocalizedConformal

#: Types of options that can be stored, alone and in lists.
PLAIN = (bool, int, float, str, type(None))
#: Classes of this package, by name.
KNOWN = {name: kind for name, kind in vars(calibration).items() if isinstance(kind, type)}


def checked_options(calibrator: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a calibrator, ``alpha=0.2`` if there are none and it is a `LocalizedConformal`.

    Raises now if a fit, after the initial trials, or a client's file would fail.
    """
    if not (isinstance(calibrator, type) and issubclass(calibrator, Calibrator)):
        raise InputDataError(f"`calibrator` must be a class of calibrators, got {calibrator!r}.")
    checked = {"alpha": 0.2} if calibrator is LocalizedConformal and not options else {**options}
    for name, value in checked.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, PLAIN) for item in items):
            raise InputDataError(f"Option `{name}` is not a plain value: {value!r}.")
    calibrator(**checked)
    return checked


def stored_name(calibrator: type[Calibrator]) -> str | type[Calibrator]:
    """The name of a class of this package; any other class stands for itself."""
    name = calibrator.__name__
    return name if KNOWN.get(name) is calibrator else calibrator


def calibrator_class(stored: str | type[Calibrator]) -> Any:
    """The inverse of `stored_name`; an unknown name is returned as it is."""
    return KNOWN.get(stored, stored) if isinstance(stored, str) else stored

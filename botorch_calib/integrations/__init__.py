"""Calibrated models inside other frameworks, each behind its extra.

Without it, or with a client of another version, importing ``ax``, ``optuna``, ``xopt``, ``baybe``
or one of the files around them raises an error that names both.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

#: The package of each client and its least version, by its extra.
CLIENTS = {
    "ax": ("ax-platform", "1.3"),
    "optuna": ("optuna-integration", "5"),
    "xopt": ("xopt", "3.2"),
    "baybe": ("baybe", "0.15"),
}


@contextmanager
def client_needed(extra: str) -> Iterator[None]:
    """Raise an ``ImportError`` that says what to install if a client cannot be imported within."""
    package, least = CLIENTS[extra]
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "none"
    message = (
        f"botorch_calib.integrations.{extra} needs {package}>={least}, and {found} is installed: "
        f"pip install botorch_calib[{extra}]"
    )
    numbers = ([*map(int, re.findall(r"\d+", each)[:3])] for each in (found, least))
    try:
        if next(numbers) < next(numbers):
            raise ImportError(f"{package} is too old")
        yield
    except ImportError as error:
        raise ImportError(f"{message} ({error})") from error

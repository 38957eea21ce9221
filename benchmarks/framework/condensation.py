"""What the archive of a suite keeps of a result: the few traces that reports use, rounded.

A raw result is some kilobytes, most of it points and digits that no table reads. A `Condensation`
names the fields that are kept and how, and traces that are derived from the whole result before
the rest is left out, where rounding the numbers behind them could change a flag, a count or a mean.
What is left out raises an error when it is read, so that nothing is computed from its absence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, Protocol

from benchmarks.framework.metrics import regret_evaluated
from benchmarks.framework.result import Result

# Fields of a result that identify it; they are kept as they are.
IDENTITY = ("problem", "method", "seed", "num_initial", "config", "versions")
_REST = tuple(f.name for f in fields(Result) if f.name not in (*IDENTITY, "extras"))

Trace = Sequence[float | None]


class ArchiveError(ValueError):
    """An archive cannot be read or used."""


class Encoding(Protocol):
    """How a trace is kept. `decode` reads what any of them makes; ``str`` says what is lost."""

    def encode(self, values: Trace) -> Any:
        """The trace as JSON."""


@dataclass(frozen=True)
class Exact:
    """Every digit."""

    def encode(self, values: Trace) -> Any:
        """The same numbers."""
        return list(values)

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True)
class Significant:
    """Rounded to significant digits: for numbers of any magnitude, such as regrets."""

    digits: int

    def encode(self, values: Trace) -> Any:
        """Rounded numbers, the missing ones as they are."""
        return [None if v is None else float(f"{v:.{self.digits}g}") for v in values]

    def __str__(self) -> str:
        return f"{self.digits} significant digits"


@dataclass(frozen=True)
class Decimals:
    """Rounded to decimals: for numbers whose sums count, such as probabilities."""

    decimals: int

    def encode(self, values: Trace) -> Any:
        """Rounded numbers, the missing ones as they are."""
        return [None if v is None else round(v, self.decimals) for v in values]

    def __str__(self) -> str:
        return f"{self.decimals} decimals"


@dataclass(frozen=True)
class Ceiling:
    """Rounded up to decimals, so that ``v <= level`` stays as it is for levels with no more."""

    decimals: int

    def encode(self, values: Trace) -> Any:
        """Rounded numbers, the missing ones as they are."""
        unit = 10**self.decimals
        return [None if v is None else math.ceil(v * unit) / unit for v in values]

    def __str__(self) -> str:
        return f"rounded up to {self.decimals} decimals"


@dataclass(frozen=True)
class Flags:
    """Zeros and ones, one character each."""

    def encode(self, values: Trace) -> Any:
        """Such as ``"0110-"``, where a dash is missing."""
        if unknown := [v for v in values if v not in (0.0, 1.0, None)]:
            raise ArchiveError(f"Flags are 0, 1 or missing, got {unknown[0]!r}.")
        return "".join("-" if v is None else str(int(v)) for v in values)

    def __str__(self) -> str:
        return "exact (0 or 1)"


@dataclass(frozen=True)
class Average:
    """The mean in place of each number: means, sums and lengths stay."""

    digits: int = 4

    def encode(self, values: Trace) -> Any:
        """The mean and the length."""
        total = math.fsum(v for v in values if v is not None)
        mean = float(f"{total / max(len(values), 1):.{self.digits}g}")
        return {"mean": mean, "length": len(values)}

    def __str__(self) -> str:
        return f"each number replaced by the mean, {self.digits} significant digits"


def decode(kept: Any) -> Any:
    """A trace from what an `Encoding` made of it; raises `ArchiveError` for anything else."""
    if kept is None or isinstance(kept, list):
        return kept
    if isinstance(kept, str) and set(kept) <= set("01-"):
        return [None if c == "-" else float(c) for c in kept]
    if isinstance(kept, dict) and kept.keys() == {"mean", "length"}:
        return [float(kept["mean"])] * int(kept["length"])
    raise ArchiveError(f"{kept!r:.80} is no trace.")


@dataclass(frozen=True)
class Derived:
    """A trace that is computed from a whole result, and kept among the extras.

    Args:
        trace: Computes it; ``None`` where a result has none.
        encoding: How it is kept.
    """

    trace: Callable[[Result], Trace | None]
    encoding: Encoding


@dataclass(frozen=True)
class Condensation:
    """What an archive keeps beside problem, method, seed, configuration and versions.

    Args:
        fields: The fields of `Result` that are kept, and how.
        extras: Likewise for its extras, of those that it has.
        derived: Extras that are made from the whole result.
        others: How extras are kept that ``extras`` does not name; by default they are left out.
    """

    fields: Mapping[str, Encoding] = field(default_factory=dict)
    extras: Mapping[str, Encoding] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    others: Encoding | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(self.fields.keys() - set(_REST)):
            raise ValueError(f"A condensation can keep the fields {list(_REST)}, not {unknown}.")

    def statement(self) -> dict[str, str]:
        """What is kept, and how, in words."""
        derived = {f"extras.{name}": str(made.encoding) for name, made in self.derived.items()}
        extras = {f"extras.{name}": str(encoding) for name, encoding in self.extras.items()}
        kept = {**{name: str(how) for name, how in self.fields.items()}, **extras, **derived}
        others = "left out" if self.others is None else str(self.others)
        return {**kept, "other extras": others, "all else": "left out"}

    def condense(self, result: Result) -> dict[str, Any]:
        """The kept traces of a result, as JSON; raises `ArchiveError` if one cannot be kept."""
        kept: dict[str, Any] = {}
        for name, encoding in self.fields.items():
            values = getattr(result, name)
            kept[name] = None if values is None else encoding.encode(values)
        extras: dict[str, Any] = {}
        for name, values in result.extras.items():
            how = self.extras.get(name, self.others)
            if how is not None:
                extras[name] = how.encode(values)
        for name, made in self.derived.items():
            trace = made.trace(result)
            if trace is not None:
                extras[name] = made.encoding.encode(trace)
        return {**kept, "extras": extras}


class LeftOut:
    """Stands for a trace that an archive does not keep: any use of it raises `ArchiveError`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ArchiveError(
            f"The archive does not keep {self.name}: use the raw results, by running the suite "
            "with --archives set to another folder."
        )

    __getitem__ = __len__ = __iter__ = __bool__ = __array__ = __contains__ = _refuse


class ArchivedResult(Result):
    """A result from an archive: rounded, and without what is left out."""

    def to_json(self) -> NoReturn:
        """An archived result is no raw one, and is never written as one."""
        raise ArchiveError(f"Seed {self.seed} of {self.method} is from an archive: it is rounded.")


def restore(identity: Mapping[str, Any], kept: Mapping[str, Any]) -> ArchivedResult:
    """A result from what `Condensation.condense` kept of it.

    Args:
        identity: Its fields of `IDENTITY`, and under ``left_out`` the extras that it had besides.
        kept: What was kept.
    """
    named = {name: value for name, value in identity.items() if name != "left_out"}
    left_out: dict[str, Any] = {name: LeftOut(f"the field {name!r}") for name in _REST}
    traces = {name: decode(value) for name, value in kept.items() if name != "extras"}
    extras: dict[str, Any] = {
        name: LeftOut(f"the record {name!r}") for name in identity["left_out"]
    }
    extras |= {name: decode(value) for name, value in kept["extras"].items()}
    try:
        return ArchivedResult(**named, **{**left_out, **traces}, extras=extras)
    except TypeError as error:
        raise ArchiveError(f"A result in the archive is not as it should be: {error}.") from None


# Of suites that do not say otherwise: regrets and what is recorded, without points and outcomes.
REGRETS = Condensation(
    fields={
        "inference_by_outcome": Exact(),
        "inference_by_mean": Exact(),
        "regret_by_outcome": Significant(4),
        "regret_by_mean": Significant(4),
        "fit_seconds": Average(),
        "acquisition_seconds": Average(),
    },
    extras={
        "covered": Flags(),
        "objective_covered": Flags(),
        # Compared with levels of two decimals.
        "pit": Ceiling(3),
    },
    derived={"regret_evaluated": Derived(regret_evaluated, Significant(4))},
    others=Significant(4),
)

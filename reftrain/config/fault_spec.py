"""Reads a fault as users write it, `slow_compute:rank=5,factor=1.5,steps=2:`, into a checked `FaultSpec`.

`fault_kinds` lists the fields of every kind with unit, default and bounds; anything else is refused with the name of
the field and the remedy. The same object is written to run.json as the truth of the run.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reftrain.config.fault_kinds import FAULT_KINDS, HANGS, Field
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_FAULT, MOST_STEPS
from tracekit.axes import AXES, PARTS
from tracekit.text import whole_number

if TYPE_CHECKING:
    from reftrain.documents import FaultDocument

FIRST_CALL: Final[Mapping[str, tuple[str, ...]]] = {
    "axis": (*AXES, *PARTS),
    "op": ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv"),
}
"""Fields of the hangs that choose the communication they strike at: `axis=dp,op=reduce_scatter`."""

_RANGE_PARTS: Final = 3  # first:end:stride


@dataclass(frozen=True)
class FaultSpec:
    """One planted fault. `values` holds the kind's own fields, units as in `fault_kinds`.

    A hang strikes at the rank's first communication of the step: on `axis` and of operation `op` where they are
    named, else at whichever comes first.
    """

    kind: str
    rank: int | None
    values: Mapping[str, float]
    first: int = 0
    end: int | None = None
    stride: int = 1
    axis: str | None = None
    op: str | None = None

    def active(self, step: int) -> bool:
        """Whether the fault strikes in `step`."""
        if step < self.first or (self.end is not None and step >= self.end):
            return False
        return (step - self.first) % self.stride == 0

    @property
    def steps(self) -> str:
        """The steps as the user writes them."""
        tail = f":{self.stride}" if self.stride != 1 else ""
        return f"{self.first}:{'' if self.end is None else self.end}{tail}"

    def to_json(self) -> "FaultDocument":
        """Return the fault as run.json holds it."""
        words = {n: w for n, w in (("axis", self.axis), ("op", self.op)) if w is not None}
        return {"kind": self.kind, "rank": self.rank, "steps": self.steps, **words, **self.values}


@dataclass(frozen=True)
class Listed:
    """A field as `reftrain faults` lists it: meaning, default (None: none), whether it must be given, and its words."""

    meaning: str
    default: float | str | None
    required: bool = False
    choices: tuple[str, ...] = ()


_AIM: Final[Mapping[str, str]] = {
    "axis": "strike at the step's first communication on this axis; left out: on any",
    "op": "strike at the step's first communication of this kind; left out: of any",
}


def fields_of(kind: str) -> dict[str, Listed]:
    """Return every field that a kind takes, in the order in which users write them."""
    known = FAULT_KINDS[kind]
    rank = Listed(known.rank_meaning or "global rank that it strikes", None, required=known.needs_rank)
    own = {name: Listed(field.meaning, field.default) for name, field in known.fields.items()}
    aim = {name: Listed(_AIM[name], None, choices=words) for name, words in FIRST_CALL.items()}
    once = "; strikes once, in the first of them" if kind in HANGS and not known.repeats else ""
    steps = Listed(f"one step (3) or a range first:end:stride, end excluded (2:, 2:8, 2:20:3){once}", "0:")
    return {"rank": rank, **own, **(aim if kind in HANGS else {}), "steps": steps}


def kind_of(text: str) -> str:
    """Return the kind of a fault as users write it."""
    return text.strip().partition(":")[0]


def is_hang(text: str) -> bool:
    """Whether a fault as users write it is of a kind that ends a run."""
    return kind_of(text) in HANGS


def slow_faults(texts: Sequence[str]) -> list[str]:
    """Return those of a run's faults that make it slower and let it end."""
    return [text for text in texts if kind_of(text) in FAULT_KINDS and not is_hang(text)]


def parse_fault(text: str, world_size: int) -> FaultSpec:
    """Return one fault as written for a run of `world_size` ranks.

    Raises ConfigError naming the field and the remedy.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in FAULT_KINDS:
        near = difflib.get_close_matches(kind, FAULT_KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(FAULT_KINDS)}"
        raise ConfigError("fault", f"no such kind '{kind}'", hint)
    given = _pairs(kind, rest)
    steps = _steps(given.pop("steps", "0:"))
    rank = _rank(kind, given.pop("rank", None), world_size)
    words = {
        n: _word(n, given.pop(n), known) for n, known in FIRST_CALL.items() if kind in HANGS and n in given
    }
    fields = FAULT_KINDS[kind].fields
    for name in given:
        if name not in fields:
            taken = ", ".join(fields_of(kind))
            raise ConfigError(f"fault.{name}", f"{kind} has no such field", f"it takes {taken}")
    values = {name: _number(name, given.get(name), spec) for name, spec in fields.items()}
    return FaultSpec(kind, rank, values, *steps, axis=words.get("axis"), op=words.get("op"))


def _pairs(kind: str, rest: str) -> dict[str, str]:
    """`rank=5,factor=1.5` as a dictionary."""
    pairs: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not name or not value:
            raise ConfigError("fault", f"'{part}' is not of the form name=value", f"write {kind}:rank=5,…")
        if name in pairs:
            raise ConfigError(f"fault.{name}", "given twice", "give it once")
        pairs[name] = value
    return pairs


def _rank(kind: str, text: str | None, world_size: int) -> int | None:
    if text is None:
        if not FAULT_KINDS[kind].needs_rank:
            return None
        raise ConfigError(
            "fault.rank", f"{kind} strikes one rank and none is given", f"add rank=0…{world_size - 1}"
        )
    rank = whole_number(text, world_size - 1)
    if rank is None:
        raise ConfigError(
            "fault.rank",
            f"'{text[:40]}' is not a rank of a world of {world_size}",
            f"give one of 0…{world_size - 1}",
        )
    return rank


def _word(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ConfigError(f"fault.{name}", f"'{text}' is unknown", f"choose among {', '.join(known)}")
    return text


def _number(name: str, text: str | None, spec: Field) -> float:
    if text is None:
        return spec.default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(
            f"fault.{name}", f"'{text}' is not a number", f"give one ({spec.meaning})"
        ) from None
    low = value < spec.least or (spec.above and value == spec.least)
    if not math.isfinite(value) or low or value > LARGEST_FAULT:
        bound = f"{'above' if spec.above else 'at least'} {spec.least:g}, up to {LARGEST_FAULT:g}"
        raise ConfigError(f"fault.{name}", f"{text} is out of bounds", f"give a number {bound}")
    return value


def _steps(text: str) -> tuple[int, int | None, int]:
    """`3`, `2:`, `2:8` or `2:8:3` as first, end (excluded) and stride."""
    parts = [p.strip() for p in text.split(":")]
    numbers = [whole_number(p, MOST_STEPS) for p in parts]
    remedy = f"write one step (3) or a range first:end:stride (2: or 2:8 or 2:20:3), up to {MOST_STEPS}"
    odd = any(part and number is None for part, number in zip(parts, numbers, strict=True))
    if odd or len(parts) > _RANGE_PARTS or not any(parts):
        raise ConfigError("fault.steps", f"'{text[:40]}' is not a range of steps", remedy)
    first, end, stride = (*numbers, None, None)[:_RANGE_PARTS]
    first, stride = first or 0, 1 if stride is None else stride
    end = first + 1 if len(parts) == 1 else end
    if stride < 1 or (end is not None and end <= first):
        raise ConfigError("fault.steps", f"'{text[:40]}' holds no step", remedy)
    return first, end, stride

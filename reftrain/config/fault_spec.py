"""Reads a fault as users write it, `slow_compute:rank=5,factor=1.5,steps=2:`, into a checked `FaultSpec`.

Every kind lists the fields it takes, with unit, default and bounds; anything else is refused with the name of
the field and the remedy. The same object is written to run.json as the truth of the run.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reftrain.errors import ConfigError


@dataclass(frozen=True)
class Field:
    """One field of a fault: what it means, its unit, its default (None: must be given) and least value."""

    meaning: str
    default: float | None
    least: float
    above: bool = False  # the value must exceed `least`, not only reach it


FACTOR: Final = Field("multiplies the rank's own compute time", 1.5, 1.0, above=True)
_PAUSE: Final = Field("length of a pause, milliseconds", 50.0, 0.0, above=True)
_LATE: Final = Field("time by which each batch is late, milliseconds", 50.0, 0.0, above=True)

KINDS: Final[Mapping[str, Mapping[str, Field]]] = {
    "slow_compute": {"factor": FACTOR},
    "launch_bound": {
        "delay_us": Field("host time added before each operator, microseconds", 200.0, 0.0, above=True)
    },
    "pauses": {
        "pause_ms": _PAUSE,
        "every": Field("one pause each so many compute segments", 8.0, 1.0),
    },
    "late_data": {"delay_ms": _LATE},
    "slow_link": {"delay_ms": Field("milliseconds added to each communication call", 5.0, 0.0, above=True)},
    "doc_imbalance": {
        "factor": Field("multiplies the attention pairs of the sequences it strikes", 3.0, 1.0, above=True)
    },
    "long_stage": {"factor": FACTOR},
    "skip_collective": {},
    "host_stall": {},
    "hold_gil": {},
    "wrong_size": {},
    "crash": {},
}
"""Fields of each kind besides `rank` and `steps`."""

HANGS: Final = frozenset({"skip_collective", "host_stall", "hold_gil", "wrong_size", "crash"})
"""Kinds that end a run; they strike once, at the first of their steps."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "axis": ("tp", "cp", "pp", "dp"),
    "op": ("all_reduce", "all_gather", "reduce_scatter", "send", "recv"),
}
"""Fields of the hangs that choose the communication they strike at: `axis=dp,op=reduce_scatter`."""

WHAT: Final[Mapping[str, str]] = {
    "slow_compute": "the rank's own computing takes `factor` times as long",
    "launch_bound": "the rank's host waits around each operator",
    "pauses": "the rank's process stops now and then, as for garbage collection",
    "late_data": "the rank's data loader is late",
    "slow_link": "the rank's messages and collectives are delayed, its computing is not",
    "doc_imbalance": "some sequences hold longer documents, so that their ranks have more attention to compute",
    "long_stage": "all ranks of a pipeline stage compute `factor` times as long",
    "skip_collective": "the rank leaves a communication out and goes on",
    "host_stall": "the rank never comes to a communication: asleep on the host",
    "hold_gil": "the rank never comes to a communication: a library call holds the interpreter's lock",
    "wrong_size": "the rank makes a communication with another size than its peers",
    "crash": "the rank is killed before a communication",
}
"""What each kind does, in one sentence."""

RANKLESS: Final = frozenset({"doc_imbalance", "long_stage"})
"""Kinds that no rank is to blame for: `rank` is optional (a stage, or wherever long documents fall)."""


@dataclass(frozen=True)
class FaultSpec:
    """One planted fault. `values` holds the kind's own fields, units as in `KINDS`.

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

    def to_json(self) -> dict[str, object]:
        """As run.json holds it."""
        words = {n: w for n, w in (("axis", self.axis), ("op", self.op)) if w is not None}
        return {"kind": self.kind, "rank": self.rank, "steps": self.steps, **words, **self.values}


@dataclass(frozen=True)
class Listed:
    """A field as `reftrain faults` lists it: meaning, default (None: none), whether it must be given, and its words."""

    meaning: str
    default: float | str | None
    required: bool = False
    choices: tuple[str, ...] = ()


_RANK_OF: Final[Mapping[str, str]] = {
    "doc_imbalance": "whose data-parallel replica gets them; left out: another one each step",
    "long_stage": "a rank of the stage; left out: the last stage",
}
_AIM: Final[Mapping[str, str]] = {
    "axis": "strike at the step's first communication on this axis; left out: on any",
    "op": "strike at the step's first communication of this kind; left out: of any",
}


def fields_of(kind: str) -> dict[str, Listed]:
    """Every field that a kind takes, in the order in which users write them."""
    rank = Listed(_RANK_OF.get(kind, "global rank that it strikes"), None, required=kind not in RANKLESS)
    own = {name: Listed(field.meaning, field.default) for name, field in KINDS[kind].items()}
    aim = {name: Listed(_AIM[name], None, choices=words) for name, words in WORDS.items()}
    once = "; strikes once, in the first of them" if kind in HANGS else ""
    steps = Listed(f"one step (3) or a range first:end:stride, end excluded (2:, 2:8, 2:20:3){once}", "0:")
    return {"rank": rank, **own, **(aim if kind in HANGS else {}), "steps": steps}


def kind_of(text: str) -> str:
    """Kind of a fault as users write it."""
    return text.strip().partition(":")[0]


def is_hang(text: str) -> bool:
    """Whether a fault as users write it is of a kind that ends a run."""
    return kind_of(text) in HANGS


def slow_faults(texts: Sequence[str]) -> list[str]:
    """Those of a run's faults that make it slower and let it end."""
    return [text for text in texts if kind_of(text) in KINDS and not is_hang(text)]


def parse_fault(text: str, world_size: int) -> FaultSpec:
    """Read one fault for a run of `world_size` ranks.

    Raises ConfigError naming the field and the remedy.
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(KINDS)}"
        raise ConfigError("fault", f"no such kind '{kind}'", hint)
    given = _pairs(kind, rest)
    steps = _steps(given.pop("steps", "0:"))
    rank = _rank(kind, given.pop("rank", None), world_size)
    words = {n: _word(n, given.pop(n), known) for n, known in WORDS.items() if kind in HANGS and n in given}
    fields = KINDS[kind]
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
        if kind in RANKLESS:
            return None
        raise ConfigError(
            "fault.rank", f"{kind} strikes one rank and none is given", f"add rank=0…{world_size - 1}"
        )
    if not text.isascii() or not text.isdigit() or int(text) >= world_size:
        raise ConfigError(
            "fault.rank", f"'{text}' is no rank of a world of {world_size}", f"give one of 0…{world_size - 1}"
        )
    return int(text)


def _word(name: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise ConfigError(f"fault.{name}", f"'{text}' is unknown", f"choose among {', '.join(known)}")
    return text


def _number(name: str, text: str | None, spec: Field) -> float:
    if text is None:
        if spec.default is None:
            raise ConfigError(f"fault.{name}", f"is missing ({spec.meaning})", f"add {name}=…")
        return spec.default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"fault.{name}", f"'{text}' is no number", f"give one ({spec.meaning})") from None
    if not math.isfinite(value) or value < spec.least or (spec.above and value == spec.least):
        bound = f"{'above' if spec.above else 'at least'} {spec.least:g}"
        raise ConfigError(f"fault.{name}", f"{text} is out of bounds", f"give a number {bound}")
    return value


def _steps(text: str) -> tuple[int, int | None, int]:
    """`3`, `2:`, `2:8` or `2:8:3` as first, end (excluded) and stride."""
    parts = [p.strip() for p in text.split(":")]
    remedy = "write one step (3) or a range first:end:stride (2: or 2:8 or 2:20:3)"
    if len(parts) > 3 or any(p and not (p.isascii() and p.isdigit()) for p in parts) or not any(parts):
        raise ConfigError("fault.steps", f"'{text}' is no range of steps", remedy)
    if len(parts) == 1:
        return int(parts[0]), int(parts[0]) + 1, 1
    first = int(parts[0] or 0)
    end = int(parts[1]) if parts[1] else None
    stride = int(parts[2]) if len(parts) == 3 and parts[2] else 1
    if stride < 1 or (end is not None and end <= first):
        raise ConfigError("fault.steps", f"'{text}' holds no step", remedy)
    return first, end, stride

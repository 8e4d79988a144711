"""A planted bug: its entry in the catalogue, its fields, the layouts that can show it, and its patches.

A bug changes the trainer's results; the kinds of `config.fault_kinds` change only its time.
It is no branch in the trainer's code: at the start of a run every rank replaces, in its own process, the
functions that a wrong trainer would have written differently, and puts them back at the end.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_FAULT

Value = int | float | str
Values = Mapping[str, Value]
Check = Callable[[RunConfig, Values], str | None]
"""Says why a layout cannot show the bug and what would, or None where it can."""


@dataclass(frozen=True)
class BugField:
    """One field of a bug: meaning, default, and its range: one of `choices`, or a number from `least`."""

    meaning: str
    default: Value
    choices: tuple[str, ...] = ()
    least: float = 0.0


class Patches:
    """Replacements of attributes of modules and classes, undone in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute that `owner` itself defines."""
        if name not in vars(owner):
            raise AssertionError(f"{owner} defines no {name}: the trainer has changed under the planted bugs")
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            setattr(*self._undo.pop())


@dataclass(frozen=True)
class Place:
    """Where a bug is planted: the run, this rank, its coordinates on tp, cp, pp and dp."""

    config: RunConfig
    rank: int
    coords: Mapping[str, int]


Plant = Callable[[Patches, Place, Values], None]


@dataclass(frozen=True)
class Bug:
    """One entry of the catalogue.

    `axis` is what a report should name (tp, sp, cp, pp, dp, fsdp, optimizer, numerics), `what` the wrong
    statement, `shows` where it first shows, `magnitudes` settings of its fields from large to small.
    """

    name: str
    axis: str
    what: str
    shows: str
    plant: Plant
    fields: Mapping[str, BugField] = field(default_factory=dict)
    magnitudes: tuple[Values, ...] = ({},)
    needs: tuple[Check, ...] = ()

    def refusal(self, config: RunConfig, values: Values) -> str | None:
        """Return the reason why this layout cannot show the bug, or None."""
        reasons = (check(config, values) for check in self.needs)
        return next((reason for reason in reasons if reason), None)


@dataclass(frozen=True)
class BugSpec:
    """A bug chosen for a run, with the values of all its fields."""

    bug: Bug
    values: Values

    def to_json(self) -> dict[str, object]:
        """As run.json holds it: the truth, which no analysis may read."""
        return {
            "kind": self.bug.name,
            "axis": self.bug.axis,
            "what": self.bug.what,
            "shows": self.bug.shows,
            **self.values,
        }


CATALOGUE: Final[dict[str, Bug]] = {}
"""All bugs by name; filled by the modules beside this one."""


def bug(
    name: str,
    axis: str,
    what: str,
    shows: str,
    *needs: Check,
    fields: Mapping[str, BugField] | None = None,
    magnitudes: tuple[Values, ...] = ({},),
) -> Callable[[Plant], Plant]:
    """Enter a planting function into the catalogue."""

    def enter(plant: Plant) -> Plant:
        CATALOGUE[name] = Bug(name, axis, what, shows, plant, fields or {}, magnitudes, needs)
        return plant

    return enter


def parse_value(where: str, known: BugField, text: str) -> Value:
    """Read one field; raises `ConfigError` with the remedy."""
    if known.choices:
        if text not in known.choices:
            raise ConfigError(where, f"'{text}' is unknown", f"choose among {', '.join(known.choices)}")
        return text
    try:
        number = int(text) if isinstance(known.default, int) else float(text)
    except ValueError:
        kind = "whole number" if isinstance(known.default, int) else "number"
        raise ConfigError(where, f"'{text}' is not a {kind}", f"it is: {known.meaning}") from None
    if not known.least <= number <= LARGEST_FAULT:
        raise ConfigError(where, f"{text} is out of bounds", f"give {known.least:g} to {LARGEST_FAULT:g}")
    return number


@contextmanager
def patched(specs: "list[BugSpec]", place: Place) -> Iterator[None]:
    """Plant the bugs in this process while the block runs."""
    patches = Patches()
    try:
        for spec in specs:
            spec.bug.plant(patches, place, spec.values)
        yield
    finally:
        patches.undo()

"""What faults are planted with: programs, places in them, and what is true afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.hang_shapes.calls import Collective, Item, Messages, Program, StepEnd

HOST, DEVICE, MISMATCH, MISSING = "host_stalled", "device_stalled", "mismatched_call", "missing_dump"


@dataclass
class Fault:
    """A fault in place: its kind, its culprits, the kinds an answer may give, and files that nobody wrote."""

    kind: str
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    gone: frozenset[int] = frozenset()
    dead: dict[tuple[str, int], int | None] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    """Where in the programs of its culprits it is."""
    blind: dict[int, int] = field(default_factory=dict)
    """From which place on the ends of a rank's calls are not seen."""


class NotHere(Exception):  # noqa: N818 - no error, but a drawn place without such a call
    """The program drawn has no call that this fault could change."""


@dataclass
class Bench:
    """Programs in which a fault is planted, from a step on."""

    programs: Sequence[Program]
    step: int
    drawn: Random
    at: dict[int, int] = field(default_factory=dict)

    def rank(self) -> int:
        """Any rank."""
        return self.drawn.randrange(len(self.programs))

    def places(self, rank: int, wanted: Callable[[Item], bool]) -> list[int]:
        """Where a rank's program has such items in the chosen step."""
        items = self.programs[rank].items
        ends = [place for place, item in enumerate(items) if isinstance(item, StepEnd)]
        first = ends[self.step - 1] + 1 if self.step else 0
        return [place for place in range(first, ends[self.step]) if wanted(items[place])]

    def place(self, rank: int, wanted: Callable[[Item], bool]) -> int:
        """One of these places; raises NotHere if there is none."""
        places = self.places(rank, wanted)
        if not places:
            raise NotHere
        return self.drawn.choice(places)

    def change(self, rank: int, place: int, *items: Item) -> None:
        """Put these items in the place of one."""
        self.programs[rank].items[place : place + 1] = items
        self.at[rank] = place


def is_call(item: Item) -> bool:
    """Whether others wait in it."""
    return isinstance(item, Collective | Messages)


def is_collective(item: Item) -> bool:
    """Whether it is a collective for which the device waits."""
    return isinstance(item, Collective) and not item.key

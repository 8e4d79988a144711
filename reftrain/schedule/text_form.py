"""Tables as text and back: one line a rank, `0: F0.0 F0.1 B0.0`, with the sizes in a heading.

The text is untrusted: its size is bounded, every action is read by one pattern, and `check` decides
whether the table can run.
"""

import re
from collections.abc import Iterator

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.thresholds import MOST_TABLE_BYTES, MOST_TABLE_RANKS

HEADING = "reftrain.schedule/1"
SIZES = frozenset({"micro_batches", "consecutive", "update_every"})
"""Words of the heading's sizes."""
LETTERS = "|".join(sorted((k.value for k in Kind), key=len, reverse=True))
ACTION = re.compile(rf"({LETTERS})(-1|\d{{1,7}})\.(\d{{1,7}})(?:@(\d{{1,5}}))?", re.ASCII)


def parse_action(text: str) -> Action:
    """Return one action, read from for example `F2.5` or `SA0.3@1`; raises ValueError for any other text."""
    match = ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an action")
    letters, stage, micro_batch, replica = match.groups()
    return Action(Kind(letters), int(stage), int(micro_batch), int(replica or 0))


def to_text(schedule: Schedule) -> str:
    """Return a table as text; `from_text` reads an equal one back."""
    lines = [
        f"{HEADING} {schedule.name}",
        f"micro_batches {schedule.micro_batches}",
        f"consecutive {schedule.consecutive}",
        f"update_every {schedule.update_every}",
        *(f"placement {' '.join(map(str, placement))}" for placement in schedule.placements),
        *([f"encoders {' '.join(map(str, schedule.encoders))}"] if schedule.encoders else []),
        *(f"{rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(schedule.actions)),
    ]
    return "\n".join(lines) + "\n"


def from_text(text: str, source: str) -> Schedule:
    """Return the table that a text holds; `source` names it in errors. Raises `ScheduleError` with line and reason."""
    return _Reader(text, source).read()


def refuse(source: str, line: int, problem: str) -> ScheduleError:
    """Return the error that names the file, the line, the problem and the remedy."""
    return ScheduleError(source, f"line {line}: {problem}", "see docs/schedules.md for the form of a table")


class _Reader:
    """Reads the lines of one table: a heading, sizes, placements, and one line of actions a rank."""

    def __init__(self, text: str, source: str) -> None:
        if len(text) > MOST_TABLE_BYTES:
            raise ScheduleError(source, f"longer than {MOST_TABLE_BYTES} characters", "give a smaller table")
        self.source = source
        self.lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        self.sizes: dict[str, int] = {}
        self.placements: list[tuple[int, ...]] = []
        self.ranks: list[tuple[Action, ...]] = []
        self.encoders: tuple[int, ...] = ()

    def read(self) -> Schedule:
        if not self.lines or self.lines[0][1].split(" ", 1)[0] != HEADING:
            raise refuse(self.source, 1, f"does not begin with {HEADING}")
        name = self.lines[0][1].partition(" ")[2].strip() or "unnamed"
        for number, line in self.lines[1:]:
            self._line(number, line)
        self._check()
        return Schedule(
            name,
            self.sizes["micro_batches"],
            self.sizes["consecutive"],
            self.placements[0],
            tuple(self.ranks),
            tuple(self.placements[1:]),
            self.sizes.get("update_every", 0),
            self.encoders,
        )

    def _line(self, number: int, line: str) -> None:
        """Read one line after the heading."""
        word, _, rest = line.partition(" ")
        if word in SIZES:
            self.sizes[word] = self._integers(number, rest, 1)[0]
        elif word == "placement":
            self.placements.append(self._integers(number, rest, MOST_TABLE_RANKS))
        elif word == "encoders":
            self.encoders = self._integers(number, rest, MOST_TABLE_RANKS)
        elif word == f"{len(self.ranks)}:" and len(self.ranks) < MOST_TABLE_RANKS:
            self.ranks.append(tuple(self._actions(number, rest)))
        else:
            raise refuse(self.source, number, f"{word[:40]!r} is neither a size nor rank {len(self.ranks)}")

    def _check(self) -> None:
        """Raise `ScheduleError` where sizes and placements do not make a table."""
        placements, ranks = self.placements, self.ranks
        if not placements or not ranks or len({len(p) for p in placements}) != 1:
            raise refuse(self.source, 1, "placements of equal length and at least one rank are needed")
        if self.sizes.get("micro_batches", 0) < 1 or self.sizes.get("consecutive", 0) < 1:
            raise refuse(self.source, 1, "micro_batches and consecutive must be 1 or more")
        if any(rank >= len(ranks) for placement in (*placements, self.encoders) for rank in placement):
            raise refuse(self.source, 1, f"a placement names a rank beyond the {len(ranks)} of the table")

    def _integers(self, number: int, text: str, most: int) -> tuple[int, ...]:
        words = text.split()
        if not 1 <= len(words) <= most or not all(re.fullmatch(r"[0-9]{1,7}", w) for w in words):
            raise refuse(self.source, number, f"{text[:40]!r} is not a list of numbers")
        return tuple(map(int, words))

    def _actions(self, number: int, text: str) -> Iterator[Action]:
        for word in text.split():
            try:
                yield parse_action(word)
            except ValueError as error:
                raise refuse(self.source, number, str(error)) from None

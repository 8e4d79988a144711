"""Tables as text and back: one line a rank, `0: F0.0 F0.1 B0.0`, with the sizes in a heading.

The text may come from anybody: its size is bounded, every line is parsed by one pattern, and `check` decides
whether what it says can run.
"""

import re
from collections.abc import Iterator

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Action, Kind, Schedule

HEADING = "reftrain.schedule/1"
MOST_CHARACTERS = 64_000_000
MOST_RANKS = 16_384
LETTERS = "|".join(sorted((k.value for k in Kind), key=len, reverse=True))
ACTION = re.compile(rf"({LETTERS})(\d{{1,7}})\.(\d{{1,7}})(?:@(\d{{1,5}}))?", re.ASCII)


def parse_action(text: str) -> Action:
    """Read one action, e.g. `F2.5` or `SA0.3@1`; raises ValueError otherwise."""
    match = ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no action")
    letters, stage, micro_batch, replica = match.groups()
    return Action(Kind(letters), int(stage), int(micro_batch), int(replica or 0))


def to_text(schedule: Schedule) -> str:
    """Write a table as text; `from_text` reads it back to an equal one."""
    lines = [
        f"{HEADING} {schedule.name}",
        f"micro_batches {schedule.micro_batches}",
        f"consecutive {schedule.consecutive}",
        f"update_every {schedule.update_every}",
        *(f"placement {' '.join(map(str, placement))}" for placement in schedule.placements),
        *(f"{rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(schedule.actions)),
    ]
    return "\n".join(lines) + "\n"


def from_text(text: str, source: str) -> Schedule:
    """Read a table; `source` names it in errors. Raises `ScheduleError` with line and reason."""
    return _Reader(text, source).read()


def refuse(source: str, line: int, problem: str) -> ScheduleError:
    """Build the error that names the file, the line, what is wrong there and the remedy."""
    return ScheduleError(source, f"line {line}: {problem}", "see docs/schedules.md for the form of a table")


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise ScheduleError(source, f"longer than {MOST_CHARACTERS} characters", "give a smaller table")
        self.source = source
        self.lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]

    def read(self) -> Schedule:
        if not self.lines or self.lines[0][1].split(" ", 1)[0] != HEADING:
            raise refuse(self.source, 1, f"does not begin with {HEADING}")
        name = self.lines[0][1].partition(" ")[2].strip() or "unnamed"
        sizes: dict[str, int] = {}
        placements: list[tuple[int, ...]] = []
        ranks: list[tuple[Action, ...]] = []
        for number, line in self.lines[1:]:
            word, _, rest = line.partition(" ")
            if word in {"micro_batches", "consecutive", "update_every"}:
                sizes[word] = self._integers(number, rest, 1)[0]
            elif word == "placement":
                placements.append(self._integers(number, rest, MOST_RANKS))
            elif word == f"{len(ranks)}:" and len(ranks) < MOST_RANKS:
                ranks.append(tuple(self._actions(number, rest)))
            else:
                raise refuse(self.source, number, f"{word[:40]!r} is neither a size nor rank {len(ranks)}")
        if not placements or not ranks or len({len(p) for p in placements}) != 1:
            raise refuse(self.source, 1, "placements of equal length and at least one rank are needed")
        if sizes.get("micro_batches", 0) < 1 or sizes.get("consecutive", 0) < 1:
            raise refuse(self.source, 1, "micro_batches and consecutive must be 1 or more")
        if any(rank >= len(ranks) for placement in placements for rank in placement):
            raise refuse(self.source, 1, f"a placement names a rank beyond the {len(ranks)} of the table")
        return Schedule(
            name,
            sizes["micro_batches"],
            sizes["consecutive"],
            placements[0],
            tuple(ranks),
            tuple(placements[1:]),
            sizes.get("update_every", 0),
        )

    def _integers(self, number: int, text: str, most: int) -> tuple[int, ...]:
        words = text.split()
        if not 1 <= len(words) <= most or not all(re.fullmatch(r"[0-9]{1,7}", w) for w in words):
            raise refuse(self.source, number, f"{text[:40]!r} is no list of numbers")
        return tuple(map(int, words))

    def _actions(self, number: int, text: str) -> Iterator[Action]:
        for word in text.split():
            try:
                yield parse_action(word)
            except ValueError as error:
                raise refuse(self.source, number, str(error)) from None

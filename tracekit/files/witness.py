"""What a file tells of the job it is of, whatever its format; and the job that files were found to be of."""

from dataclasses import dataclass
from functools import cached_property

GroupNames = tuple[tuple[str, tuple[int, ...]], ...]
"""(description, members) of groups that one file tells, each description once."""


@dataclass(frozen=True)
class Window:
    """What a file holds of one rank: `events` from `first` to `last` (ns), the steps marked in it, the rank's host."""

    rank: int
    first: int
    last: int
    steps: frozenset[int] = frozenset()
    host: str | None = None
    events: int = 0


@dataclass(frozen=True)
class WindowName:
    """The window of a job that the path of a file tells.

    place: the path without what tells the window; only files of one place are windows of one job. numbers: its
    progress, or the time in the name that torch's handler gave. loop: the word for a loop that trains nothing ("").
    told: the window as people call it ("iteration_20"); "" where only a time tells it.
    """

    place: str
    numbers: tuple[int, ...]
    loop: str = ""
    told: str = ""

    def beside(self, other: "WindowName | None") -> bool:
        """Whether both are windows of one job, and not the same one."""
        if other is None or self.place != other.place:
            return False
        return (self.numbers, self.loop) != (other.numbers, other.loop)


@dataclass(frozen=True)
class Witness:
    """What one file tells of the job it is of; `digest` is the same for copies, `run` the folder of a recorded run.

    alone: whether two files of a rank are two recordings in any case, as two dumps are. moment: the time at
    which the file was written, where other files were written at other times. window: which one its path tells.
    """

    label: str
    digest: str
    windows: tuple[Window, ...]
    run: str = ""
    world: int | None = None
    mesh: str = ""
    groups: GroupNames = ()
    alone: bool = False
    moment: str | None = None
    window: WindowName | None = None


@dataclass(frozen=True)
class Job:
    """Files of one job, and what sets it apart from the others of an input ("world of 8 ranks", "folder monday").

    surely: whether no file may be taken for a stray one: the jobs lie in folders of their own, or share ranks. silent:
    labels of files that are here because this is the largest job; nothing tells which they are of.
    """

    files: tuple[Witness, ...]
    told: str = ""
    surely: bool = False
    silent: frozenset[str] = frozenset()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its files hold, sorted."""
        return tuple(sorted({w.rank for f in self.files for w in f.windows}))

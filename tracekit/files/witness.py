"""What a file of any format shows of its job; and the job that files were found to belong to."""

from dataclasses import dataclass
from functools import cached_property

GroupNames = tuple[tuple[str, tuple[int, ...]], ...]
"""(description, members) of the groups of one file, each description once."""


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
    """The window of a job in the path of a file.

    place: the path without the window; only files of one place are windows of one job. numbers: its
    progress, or the time in the name that torch's handler gave. loop: the word for a loop that trains nothing ("").
    name: the name of the window ("iteration_20"); "" if it has only a time.
    """

    place: str
    numbers: tuple[int, ...]
    loop: str = ""
    name: str = ""

    def beside(self, other: "WindowName | None") -> bool:
        """Whether both are windows of one job, and not the same one."""
        if other is None or self.place != other.place:
            return False
        return (self.numbers, self.loop) != (other.numbers, other.loop)


@dataclass(frozen=True)
class Witness:
    """What one file shows of its job; `digest` is the same for copies, `run` the folder of a recorded run.

    alone: whether two files of a rank are two recordings in any case, as two dumps are. moment: the time at
    which the file was written, if other files were written at other times. window: the one in its path.
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
    """Files of one job, and its difference from other jobs of an input ("world of 8 ranks", "folder monday").

    surely: whether no file may be taken for a stray one: the jobs lie in folders of their own, or share ranks. silent:
    labels of files that are here because this is the largest job; their own job is unknown.
    """

    files: tuple[Witness, ...]
    name: str = ""
    surely: bool = False
    silent: frozenset[str] = frozenset()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its files hold, sorted."""
        return tuple(sorted({w.rank for f in self.files for w in f.windows}))

"""The evidence of a file about its job, in any format; and the job that a set of files belongs to."""

from dataclasses import dataclass
from functools import cached_property

GroupNames = tuple[tuple[str, tuple[int, ...]], ...]
"""(description, members) of groups that one file holds, each description once."""


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
    """The window of a job that the path of a file names.

    place: the path without the parts that name the window; only files of one place are windows of one job. numbers: its
    progress, or the time in the name from torch's handler. loop: the word for a loop without training, else "".
    told: its name as in the path ("iteration_20"); "" where only a time identifies it.
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
    """The evidence of one file about its job; `digest` is equal for copies, `run` the folder of a recorded run.

    alone: whether two files of a rank are two recordings in any case, as two dumps are. moment: the time at
    which the file was written, if other files were written at other times. window: the one that its path names.
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
    """Files of one job, and its distinction from other jobs of an input ("world of 8 ranks", "folder monday").

    surely: whether no file may count as a stray one, because the jobs have separate folders, or share ranks. silent:
    labels of files that are here only because this is the largest job, without evidence of theirs.
    """

    files: tuple[Witness, ...]
    told: str = ""
    surely: bool = False
    silent: frozenset[str] = frozenset()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its files hold, sorted."""
        return tuple(sorted({w.rank for f in self.files for w in f.windows}))

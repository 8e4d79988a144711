"""The operations of one rank as arrays: what this room hands on, and all that later rooms know of its events."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.arrays import compact
from tracekit.intervals import Intervals
from tracekit.rank_events.coded_words import Words
from tracekit.units import I8, I32, I64, Mask

NO_KERNELS: Final = (
    "it holds no kernels, or few with a duration, unlike other ranks' traces: it was cut before them, damaged, or "
    "recorded without ProfilerActivity.CUDA, so what its device did is unknown"
)
"""Reason why a rank of `without_device` is not compared."""


@dataclass(frozen=True)
class KernelOrder:
    """Kernels of one stream in order, one entry a kernel, without kernels that were launched before their window.

    Times in ns. On a recording without kernels the entries are its communication operations.
    """

    names: tuple[str, ...]  # distinct ones
    name: I64  # index in `names`
    window: I64  # number of the capture, ascending
    issued: I64  # when the host launched it, where known, else its start
    pause: I64  # from the end of all earlier work to `issued`; negative where the host ran ahead
    optimizer: npt.NDArray[np.bool_]  # whether an optimizer ran it
    of_kernels: bool = True  # whether these are kernels, and not communication operations
    communicates: Mask | None = None  # whether each of them communicates; None if none does

    @property
    def windows(self) -> int:
        """Return the number of captures."""
        return int(self.window.max(initial=-1)) + 1

    @property
    def talks(self) -> Mask:
        """Whether each of them communicates."""
        return np.zeros(len(self.name), bool) if self.communicates is None else self.communicates

    def computing(self) -> "KernelOrder":
        """Return the order without the kernels that communicate."""
        keep = ~self.talks
        return KernelOrder(
            self.names, self.name[keep], self.window[keep], self.issued[keep], self.pause[keep],
            self.optimizer[keep], self.of_kernels,
        )  # fmt: skip


@dataclass(frozen=True)
class RankOps:
    """Communication of one rank, sorted by start; all arrays have one entry an operation, times in ns.

    The messages of one batched kernel follow each other, in order of issue, and share `kernel`, start and end.
    """

    rank: int
    on_gpu: bool
    start: I64
    end: I64
    op: tuple[str, ...]  # canonical names, by operation
    token: tuple[str, ...]  # op, dtype and element count: equal for one collective on all ranks, by operation
    group: I32  # index into Run.groups; -1 unknown
    src: I32  # global rank of the sender of a p2p operation, -1 else
    dst: I32
    seq: I64  # -1 unknown
    nelems: I64
    step: I32  # NO_STEP outside every step
    busy: Intervals  # compute, disjoint
    kernel: I64  # number of the kernel that carries the operation, in order of start
    issued: I64  # when the host issued the operation: its launch, where known, else its start
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # host span of each profiler step
    window: tuple[int, int] = (0, 0)  # first start and last end of anything recorded
    ready: I64 | None = None  # wall time from which it could start; UNKNOWN where not recorded
    stream: I64 | None = None  # stream of its kernel, or thread of Gloo; -1 unknown
    way: I64 | None = None  # direction of a message: SENDS, RECEIVES, 0 unknown
    message: I64 | None = (
        None  # number that both ends of an inferred message share; -1 of any other operation
    )
    group_size: I32 | None = None  # ranks in the operation's group, as the trace counts them; -1 unknown
    found: Mask | None = None  # messages that were done before the host looked for them
    begins: tuple[int, ...] = (0,)  # of the recording's windows, ns
    opens: tuple[
        int, ...
    ] = ()  # when the host was free to continue in each window, ns; as `begins` where empty
    taken: I64 | None = None  # elements that the rank received; -1 unknown
    order: KernelOrder | None = None  # the kernels of its device, where no step is marked
    place: I64 | None = None  # group rank of a message's peer in an unnamed group; -1 unknown
    own: I64 | None = None  # group rank of the rank itself there; -1 unknown
    grid: I64 | None = None  # grid of a message's kernel, an upper bound of its channels; -1 unknown
    waited: I8 | None = None  # whether compute waited for it: WAITED, FREE, or UNTOLD
    hint: I32 | None = None  # recorded group of an operation that cannot be matched by order; -1 none
    inferred: Mask | None = None  # whether its group was inferred from the ends of its stream or position
    operators: Intervals | None = None  # when operators ran, on a CPU trace; None: as `busy`
    held: I64 | None = None  # ns for which only the host held up the compute after it
    used: I64 | None = (
        None  # begin of compute launched after the host had waited for it; UNKNOWN where not recorded
    )
    usable: I64 | None = (
        None  # begin of the first compute that may use it as a message; UNKNOWN where `used` is complete
    )
    timed: bool = True  # nearly all of its kernels have a duration
    device: int = -1  # number of its device on its node; -1 where the trace names none or several
    worked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Begin and end of the work of each profiler step, ns, as from `step_work`."""

    def __post_init__(self) -> None:
        """Number the words of operations once for all that ask for them, and keep one entry of constant columns."""
        object.__setattr__(self, "op", Words(self.op))
        object.__setattr__(self, "token", Words(self.token))
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                self.__dict__[name] = compact(column)

    def sharing(self, known: "SharedColumns") -> "RankOps":
        """Return itself with the equal columns of earlier ranks in place of its own, and add the others to `known`.

        Ranks of one pipeline stage run the same program: a third of their memory is equal on all of them.
        """
        for name in _ALIKE:
            column = getattr(self, name)
            words = isinstance(column, Words)
            if column is None or (not words and column.strides == (0,)):
                continue
            key = name, hash(column if words else column.tobytes())
            other = known.setdefault(key, column)
            if other is not column and (other == column if words else _same_bits(other, column)):
                self.__dict__[name] = other
        return self

    @property
    def computed(self) -> Intervals:
        """Return when the rank computed, ns; for a CPU trace without the Python inside autograd nodes."""
        return self.busy if self.operators is None else self.operators


SharedColumns = dict[tuple[str, int], Any]
"""Columns by name and hash."""
_ALIKE: Final = (
    "op", "token", "seq", "nelems", "step", "kernel", "stream", "way", "group_size", "taken", "grid",
)  # fmt: skip


def _same_bits(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two columns are of one type and have the same entries."""
    return one.dtype == other.dtype and np.array_equal(one, other)


def without_device(ranks: Sequence[RankOps]) -> list[int]:
    """Return the ranks of which only the host was recorded, or the device without times, where another's device was."""
    known = {r.rank for r in ranks if r.on_gpu and r.timed}
    return [r.rank for r in ranks if r.rank not in known] if known else []

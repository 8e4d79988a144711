"""Hand-made jobs whose hosts set the pace: each launches small kernels for nearly the whole step."""

from collections.abc import Callable
from pathlib import Path

from tests.slowrank.events import Timeline, write_run
from tracekit.store import Run

KERNEL_US, TRANSFER_US, PACE_US, LOADING_US, SYNC_US = 4.0, 5.0, 20.0, 60.0, 10.0
ROUNDS, KERNELS = 12, 5  # a step: all-reduces, and kernels before each of them


class _Rank(Timeline):
    """A rank with its host, whose clock reads `now`."""

    def __init__(self, rank: int, recorded: bool) -> None:
        super().__init__(rank)
        self.now, self.recorded, self.launched = 0.0, recorded, 0

    def host(self, us: float, cat: str, name: str, **more: object) -> None:
        if self.recorded and us > 0:
            self._row(self.now, us, cat, name, pid=1, tid=1, **more)

    def launch(self, us: float) -> None:
        """The host needs so long for an operator and the launch at its end; the device begins no sooner."""
        self.launched += 1
        self.host(us - 1, "cpu_op", "aten::mm")
        self.now += us - 5
        self.host(4, "cuda_runtime", "cudaLaunchKernel", correlation=self.launched)
        self.now += 5
        self.at = max(self.at, self.now)

    def compute(self, us: float, name: str = "gemm") -> None:
        super().compute(us, name)
        self.rows[-1]["correlation"] = self.launched

    def finish(self, handle: tuple, end: float, **more: object) -> None:
        super().finish(handle, end, correlation=self.launched, **more)


def host_bound(
    folder: Path,
    *,
    world: int = 8,
    steps: int = 5,
    recorded: bool = True,
    pace: Callable[[int], float] = lambda rank: 1.0,
    loading: Callable[[int, int], float] = lambda rank, step: LOADING_US,
    also: tuple[str, str, float] | None = None,
    kernel: Callable[[int], float] = lambda turn: KERNEL_US,
) -> tuple[Run, float]:
    """(the run, mean step in ms). `pace`: factor on the time between two launches of a rank's host; `loading`: µs for
    which it loads at the begin of a step; `recorded`: whether hosts are; `also`: (category, name, µs) of what hosts
    do behind that, of no category if nothing is recorded of it; `kernel`: µs of each kernel, by round of the step."""
    lines = [_Rank(r, recorded) for r in range(world)]
    for step in range(steps):
        begins = [line.now for line in lines]
        for line in lines:
            us = loading(line.rank, step)
            line.host(us, "user_annotation", "enumerate(DataLoader)#_Iter.__next__")
            line.now += us
            if also is not None:
                if also[0]:
                    line.host(also[2], also[0], also[1])
                line.now += also[2]
        for turn in range(ROUNDS):
            handles = []
            for line in lines:
                for _ in range(KERNELS):
                    line.launch(PACE_US * pace(line.rank))
                    line.compute(kernel(turn))
                line.launch(PACE_US * pace(line.rank))
                handles.append(line.post(0))
            end = max(begin for begin, *_ in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            until = max(line.at, line.now) + SYNC_US
            line.host(until - line.now, "cuda_runtime", "cudaStreamSynchronize")
            line.now = until
            line._row(begin, line.now - begin, "user_annotation", f"ProfilerStep#{step}")
    run = write_run(folder, lines, {0: tuple(range(world))}, {0: "default_pg"}, world)
    return run, lines[0].now / steps / 1000


def running_ahead(
    folder: Path,
    *,
    late: int,
    pausing: int = -1,
    share: Callable[[int], float] = lambda step: 0.99,
    steps: int = 6,
    world: int = 6,
) -> Run:
    """The run of hosts that wait for little, each far ahead of its device: rank `late` loads for most of a step.

    The host of `pausing` records nothing for a `share` of that, by step, behind kernels that it launched before.
    """
    lines, longest = [_Rank(r, True) for r in range(world)], 10 * LOADING_US * ROUNDS
    lines[late].now = 2 * longest
    for step in range(steps):
        for line in lines:
            begin = line.now
            if line.rank == late:
                line.host(longest, "user_annotation", "enumerate(DataLoader)#_Iter.__next__")
            line.now += {late: longest, pausing: share(step) * longest}.get(line.rank, 0.0)
            line.host(PACE_US, "cuda_runtime", "cudaEventSynchronize")
            line.now += PACE_US
            line._row(
                begin,
                line.now + (KERNELS + 1) * ROUNDS * PACE_US - begin,
                "user_annotation",
                f"ProfilerStep#{step}",
            )
        for _ in range(ROUNDS):
            handles = []
            for line in lines:
                for _ in range(KERNELS):
                    line.launch(PACE_US)
                    line.compute(10 * KERNEL_US)
                line.launch(PACE_US)
                handles.append(line.post(0))
            end = max(begin for begin, *_ in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
    return write_run(folder, lines, {0: tuple(range(world))}, {0: "default_pg"}, world)

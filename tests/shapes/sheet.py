"""What the events of one rank share: its threads, streams, numbers and clock."""

import random
from dataclasses import dataclass
from zlib import crc32

from tests.shapes.comms import NAME_SINCE, Args
from tests.shapes.events import Clock, Events
from tests.shapes.job import Job
from tests.shapes.rank import COMPUTE
from tests.shapes.rocm import AMD_COPIES, HIP, amd_name
from tests.shapes.setting import Habits

CALLBACKS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131,
    "cudaStreamWaitEvent": 147,
    "cudaEventRecord": 135,
    "cudaEventSynchronize": 137,
    "cudaMalloc": 20,
    "cudaFree": 22,
    "cudaGraphLaunch": 311,
    "cuLaunchKernel": 307,
    "cuMemMap": 556,
    "cuMemUnmap": 557,
    "cuMemCreate": 558,
}
"""CUPTI's numbers of runtime calls."""
INPUTS: Args = {
    "Concrete Inputs": ["", ""],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Input Strides": [[4096, 1], [1, 4096]],
    "Input Dims": [[4096, 4096], [4096, 4096]],
}
PROCESSORS = 132
TRAINED, AUTOGRAD = 0, 612
"""By how much the threads' numbers are above the process's."""
ID_OF_CORRELATION_UNTIL = (2, 6)
"""Before this torch, a kernel of no operator has its correlation as id."""


@dataclass(frozen=True)
class Recording:
    """What is written of a rank: the steps, how the profiler was set, the host's clock (offset in µs, drift)."""

    job: Job
    rank: int
    steps: tuple[int, ...]
    habits: Habits
    began_us: int
    clock: tuple[float, float]
    process: int


class Sheet:
    """The events of one rank, as they are told."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.habits = recording, recording.habits
        self.job, self.torch = recording.job, recording.job.setting.torch
        self.rank = recording.job.ranks[recording.rank]
        self.begin, self.end = self.job.graph.begin, self.job.graph.end
        self.events = Events(
            Clock(recording.began_us, *recording.clock, nanoseconds=self.torch >= NAME_SINCE)
        )
        self.chance = random.Random(self.job.setting.seed * 17 + recording.rank)
        self.threads = (recording.process + TRAINED, recording.process + AUTOGRAD)
        self.device = recording.rank % self.job.setting.per_host
        self.numbers = {COMPUTE: 0 if self.habits.amd else 7}
        self.streams: set[int] = set()
        self.external = self.event_number = 0
        self.correlation = 1000 + self.chance.randrange(500)
        begins = self.rank.step_begins
        self.first_us = self.begin[begins[recording.steps[0]]] - 30.0
        after = begins.get(recording.steps[-1] + 1, self.rank.window_end)
        self.last_us = self.begin[after] if after is not None else max(self.end)

    def inside(self, at: float) -> bool:
        """Whether the profiler ran."""
        return self.first_us <= at <= self.last_us

    def correlated(self, by: int = 1) -> int:
        """The next correlation."""
        self.correlation += by
        return self.correlation

    def operator(self, name: str, thread: int, begin: float, end: float, more: Args | None = None) -> int:
        """The id of an operator's event."""
        self.external += 1
        if self.habits.host:
            args: Args = {"External id": self.external, "Record function id": self.external, **(more or {})}
            if self.habits.shapes and not more:
                args |= INPUTS
            self.numbered("cpu_op", name, thread, (begin, end), args)
        return self.external

    def annotation(
        self, name: str, thread: int, begin: float, end: float, category: str = "user_annotation"
    ) -> None:
        """An annotation of the host."""
        self.external += 1
        if self.habits.host:
            args: Args = {"External id": self.external, "Record function id": self.external}
            self.numbered(category, name, thread, (begin, end), args)

    def numbered(self, category: str, name: str, thread: int, times: tuple[float, float], args: Args) -> None:
        """An event of the host, which has a number."""
        place = (self.recording.process, self.threads[thread])
        self.events.complete(category, name, place, *times, {**args, "Ev Idx": self.event_number})
        self.event_number += 1

    def runtime(
        self,
        name: str,
        thread: int,
        times: tuple[float, float],
        correlation: int,
        external: int | None = None,
        *,
        arrow: bool = True,
    ) -> None:
        """A call of the CUDA runtime."""
        place = (self.recording.process, self.threads[thread])
        args: Args = {"External id": external} if external and self.habits.host else {}
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        if self.habits.amd:
            name, number = HIP[name]
            args |= {"cid": number, "correlation": correlation}
        else:
            args |= {"cbid": CALLBACKS[name], "correlation": correlation}
        self.events.complete(category, name, place, *times, args)
        if arrow:
            self.events.flow(correlation, place, times[0], ends=False)

    def stream(self, name: str) -> int:
        """The number of a stream."""
        further = len(self.numbers) if self.habits.amd else 16 + 4 * len(self.numbers)
        number = self.numbers.setdefault(name, further)
        self.streams.add(number)
        return number

    def kernel(
        self,
        name: str,
        stream: str,
        times: tuple[float, float],
        correlation: int,
        external: int | None,
        args: Args | None = None,
        *,
        blocks: int = 0,
    ) -> None:
        """A kernel; communication has its own number of `blocks`."""
        place = (self.device, self.stream(stream))
        if self.habits.amd:
            self.dispatch(name, place, times, correlation, external, args)
            return
        grid = blocks or PROCESSORS * (1 + crc32(name.encode()) % 7)  # by its work, however long it takes
        told: Args = self.id_of(external, correlation)
        told |= {
            "queued": 0,
            "device": self.device,
            "context": 1,
            "stream": place[1],
            "correlation": correlation,
        }
        told |= {
            "registers per thread": 96 if blocks else 128,
            "shared memory": 82240 if blocks else 1024,
            "blocks per SM": round(grid / PROCESSORS, 6),
            "warps per SM": round(grid * 8 / PROCESSORS, 6),
            "grid": [grid, 1, 1],
            "block": [544 if blocks else 256, 1, 1],
            "est. achieved occupancy %": 0 if blocks else 38,
        }
        self.events.complete("kernel", name, place, *times, {**told, **(args or {})})
        self.events.flow(correlation, place, times[0], ends=True)

    def dispatch(
        self,
        name: str,
        place: tuple[int, int],
        times: tuple[float, float],
        correlation: int,
        external: int | None,
        args: Args | None,
    ) -> None:
        """A kernel of an AMD device, which tells less of itself."""
        told = self.id_of(external, correlation)
        told |= {"device": self.device, "stream": place[1], "correlation": correlation}
        told |= {"kind": "Dispatch Kernel"}
        self.events.complete("kernel", amd_name(name), place, *times, {**told, **(args or {})})
        self.events.flow(correlation, place, times[0], ends=True)

    def id_of(self, external: int | None, correlation: int) -> Args:
        """The operator's id that a kernel carries."""
        if external and self.habits.host:
            return {"External id": external}
        return {} if self.torch >= ID_OF_CORRELATION_UNTIL else {"External id": correlation}

    def copy(
        self,
        name: str,
        stream: str,
        times: tuple[float, float],
        correlation: int,
        external: int | None,
        size: int,
    ) -> None:
        """A copy of `size` bytes."""
        place = (self.device, self.stream(stream))
        told = self.id_of(external, correlation)
        if self.habits.amd:
            name, kind = AMD_COPIES[name]
            told |= {"device": self.device, "stream": place[1], "correlation": correlation, "kind": kind}
            self.events.complete("gpu_memcpy", name, place, *times, told)
            self.events.flow(correlation, place, times[0], ends=True)
            return
        told |= {"device": self.device, "context": 1, "stream": place[1], "correlation": correlation}
        bandwidth = round(size / max(1e-3, (times[1] - times[0]) * 1e3), 6)
        told |= {"bytes": size, "memory bandwidth (GB/s)": bandwidth}
        self.events.complete("gpu_memcpy", name, place, *times, told)
        self.events.flow(correlation, place, times[0], ends=True)

    def device_span(self, name: str, stream: str, times: tuple[float, float], external: int | None) -> None:
        """What an annotation of the host covers on the device, where the profiler writes it."""
        if external and self.habits.host and self.habits.device_spans:
            place = (self.device, self.stream(stream))
            self.events.complete("gpu_user_annotation", name, place, *times, {"External id": external + 1})

"""One rank's outcome as a Kineto file."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from tests.localise import comms
from tests.localise.calls import Call, Collective, Kernel, Messages, Pause, Sync, Wait
from tests.localise.engine import Op, Place
from tests.localise.forms import C10D, Forms, Group
from tests.localise.job import Job

BASE_NS = 1_730_000_000_000_000_000
KERNELS = {
    "gemm": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
    "attention": "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>",
    "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "adam": "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>()",
}
HIP = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cudaStreamWaitEvent": "hipStreamWaitEvent",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaGraphLaunch": "hipGraphLaunch",
}
CPU_OPS = {
    "gemm": "aten::mm",
    "attention": "flash_attn::_flash_attn_forward",
    "norm": "aten::native_layer_norm",
    "elementwise": "aten::mul",
    "adam": "aten::_fused_adamw_",
}


@dataclass
class Clock:
    """How a host's clock reads: ns = true + offset + drift × true."""

    offset: int = 0
    drift: float = 0.0

    def read(self, ns: int) -> int:
        """The host's reading of a true time."""
        return round(ns + self.offset + self.drift * ns)


@dataclass
class Recording:
    """Everything that decides how one rank is written."""

    job: Job
    rank: int
    forms: Forms
    groups: dict[str, Group]
    streams: dict[str, int]
    device: int
    pid: int
    clock: Clock
    first_step: int = 10
    shift: int = 0
    """Ns by which this capture lies later than in the simulation."""
    random: Random = field(default_factory=Random)


class Writer:
    """Collects the lines of one file."""

    def __init__(self, recording: Recording, place: Place, window: tuple[int, int]) -> None:
        self.r, self.place, self.window = recording, place, window
        self.forms, self.job = recording.forms, recording.job
        self.lines: list[str] = []
        self.external = recording.random.randint(1, 4000)
        self.correlation = recording.random.randint(1000, 90000)
        self.tids = {"main": recording.pid, "backward": recording.pid + 371}
        self.seq: dict[tuple, int] = {}
        self.base_seq = recording.job.seed % 97 + 40 + recording.first_step * 1000
        self.step_starts: list[int] = []
        self.missed = 0
        """Steps that began before the window."""
        self.host_recorded = not self.job.has("gpu_only")
        self.graph = 0
        self.recorded: dict[int, int] = {}
        """By operation the correlation of the event that marks its end."""

    def write(self) -> list[str]:
        """Lines of all events in the window."""
        begin, end = self.window
        for index, (call, (start, stop)) in enumerate(zip(self.place.program, self.place.hosts, strict=True)):
            op = self.place.ops.get(index)
            inside = begin <= start < end
            if op is not None and not inside and start < begin and op.start >= begin:
                self.unlinked(op)
            if inside:
                self.event(call, start, stop, op)
            elif isinstance(call, Collective | Messages):
                self.count(call)
            elif isinstance(call, Pause) and call.what == "step" and start < begin:
                self.missed += 1
        self.steps()
        return self.lines

    def count(self, call: Collective | Messages) -> int:
        """The next Seq of a call's group; p2p has a counter of its own before nccl2."""
        key = (call.group, isinstance(call, Messages) and not self.forms.nccl2)
        self.seq[key] = self.seq.get(key, self.base_seq) + 1
        return self.seq[key]

    def event(self, call: Call, start: int, stop: int, op: Op | None) -> None:
        """Write one call."""
        if call.note == "graph":
            self.replayed(call, start, stop, op)
        elif isinstance(call, Kernel):
            self.compute(call, start, stop, op)
        elif isinstance(call, Collective):
            comms.collective(self, call, start, stop, op)
        elif isinstance(call, Messages):
            comms.messages(self, call, start, stop, op)
        elif isinstance(call, Pause):
            self.pause(call, start, stop)
        elif isinstance(call, Sync):
            self.launch(call.what, start, stop, call.thread, 0)
        elif isinstance(call, Wait):
            comms.wait(self, call, start, stop)

    def ts(self, ns: int) -> str:
        """A timestamp."""
        read = self.r.clock.read(ns + self.r.shift)
        if self.forms.decimals:
            return f"{read // 1000}.{read % 1000:03d}"
        absolute = BASE_NS + read
        if self.forms.torch < (2, 3):
            return str(absolute // 1000)
        return f"{absolute // 1000}.{absolute % 1000 // 100}"

    def span(self, category: str, name: str, pid: int, tid: int, start: int, stop: int, args: str) -> None:
        """A complete event."""
        length = max(self.r.clock.read(stop) - self.r.clock.read(start), 0)
        whole = self.forms.torch < (2, 3)
        dur = str(length // 1000) if whole else f"{length // 1000}.{length % 1000:03d}"
        self.lines.append(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
            f'"ts": {self.ts(start)}, "dur": {dur}, "args": {{{args}}}}}'
        )

    def cpu(self, category: str, name: str, start: int, stop: int, thread: str, args: str = "") -> int:
        """A host event; its External id, or 0 where the host is not recorded."""
        if not self.host_recorded:
            return 0
        self.external += 1
        own = f'"External id": {self.external}' + (f", {args}" if args else "")
        self.span(category, name, self.r.pid, self.tids[thread], start, stop, own)
        return self.external

    def launch(self, name: str, start: int, stop: int, thread: str, external: int) -> int:
        """A CUDA call; its correlation."""
        self.correlation += self.r.random.randint(1, 4)
        linked = external or (self.correlation if self.forms.torch < (2, 6) else 0)
        self.call(name, self.correlation, start, stop, thread, f'"External id": {linked}, ' if linked else "")
        return self.correlation

    def call(self, name: str, correlation: int, start: int, stop: int, thread: str, linked: str = "") -> None:
        """A row of the CUDA runtime, where the recording has them."""
        if not self.job.has("no_runtime"):
            args = f'{linked}"cbid": 211, "correlation": {correlation}'
            shown = HIP.get(name, name) if self.forms.rocm else name
            self.span("cuda_runtime", shown, self.r.pid, self.tids[thread], start, stop, args)

    def gpu(
        self, op: Op, name: str, correlation: int, external: int, extra: str = "", grid: int = 132
    ) -> None:
        """A kernel, with a flow from its launch where the job records flows."""
        stream = self.r.streams[op.call.stream]
        linked = external or (correlation if self.forms.torch < (2, 6) else 0)
        shown = f'"External id": {linked}, ' if linked else ""
        lane, shown_stream = stream, f'"stream": {stream}'
        if self.job.has("lane"):
            lane = stream * 10 + op.index % 2
            shown_stream = f'"stream": {lane}, "original_stream": {stream}'
        args = (
            f'{shown}"queued": 0, "device": {self.r.device}, "context": 1, {shown_stream}, '
            f'"correlation": {correlation}, "registers per thread": 96, "shared memory": 82240, '
            f'"grid": [{grid}, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0{extra}'
        )
        self.span("kernel", name, self.r.device, lane, op.start, op.end, args)
        if self.job.has("flows"):
            self.lines.append(
                f'{{"ph": "f", "id": {correlation}, "pid": {self.r.device}, "tid": {lane}, '
                f'"ts": {self.ts(op.start)}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}'
            )

    def bare(self, op: Op, correlation: int) -> None:
        """A kernel without anything that its host's records would have told."""
        call = op.call
        if isinstance(call, Kernel):
            self.gpu(op, KERNELS[call.what], correlation, 0)
            return
        stem = "SendRecv" if isinstance(call, Messages) else C10D[call.op][3]
        self.gpu(op, self.forms.kernel(stem), correlation, 0, grid=self.job.costs.channels)

    def unlinked(self, op: Op) -> None:
        """A kernel whose launch lies before the window."""
        self.correlation += 1
        self.bare(op, self.correlation)

    def replayed(self, call: Call, start: int, stop: int, op: Op | None) -> None:
        """A kernel of a CUDA graph: its correlation is that of the one launch of the graph."""
        if not self.graph:
            self.graph = self.launch("cudaGraphLaunch", start, stop, call.thread, 0)
        if op is not None:
            self.bare(op, self.graph)

    def compute(self, call: Kernel, start: int, stop: int, op: Op) -> None:
        """An aten op, its launch, its kernel."""
        shapes = '"Input Dims": [[4096, 8192], [8192, 8192]]' if self.job.has("shapes") else ""
        external = self.cpu("cpu_op", CPU_OPS[call.what], start, stop, call.thread, shapes)
        launch = self.launch("cudaLaunchKernel", stop - 5000, stop - 500, call.thread, external)
        self.gpu(op, KERNELS[call.what], launch, external)

    def annotation(self, title: str, op: Op) -> None:
        """The GPU's shadow of a title."""
        if self.forms.torch < (2, 3) or not self.host_recorded:
            return
        stream, args = self.r.streams[op.call.stream], f'"External id": {self.external}'
        self.span("gpu_user_annotation", title, self.r.device, stream, op.start, op.end, args)

    def pause(self, call: Pause, start: int, stop: int) -> None:
        """Steps, the loader, garbage collection."""
        if call.what == "step":
            self.graph = 0
            self.step_starts.append(start)
        elif call.what == "data":
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self.cpu("user_annotation", name, start, stop, call.thread)
        elif call.what in {"gc", "pauses"} and self.job.has("python_gc"):
            self.cpu("python_function", "Python GC", start, stop, call.thread)

    def steps(self) -> None:
        """ProfilerStep spans; a span that began before the window is not there.

        A ragged window may begin any number of steps later than another rank's, because hosts run ahead.
        """
        if self.job.has("no_steps"):
            return
        first = self.r.first_step + (self.missed - 1 if self.job.has("ragged") else 0)
        for number, (start, stop) in enumerate(pairwise([*self.step_starts, self.window[1]])):
            name = f"ProfilerStep#{first + number}"
            self.cpu("user_annotation", name, start, stop - 2000, "main")

"""One rank's outcome as a Kineto file."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from tests.localise.calls import Call, Collective, Kernel, Messages, Pause, Sync, Wait
from tests.localise.engine import Op, Place
from tests.localise.forms import C10D, Forms, Group
from tests.localise.job import Job

BASE_NS = 1_730_000_000_000_000_000
ENDED_FROM = (2, 9)
"""`nccl:coalesced` is ended from this version on."""
KERNELS = {
    "gemm": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
    "attention": "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>",
    "norm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
    "adam": "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>()",
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
        self.base_seq = dict.fromkeys(recording.groups, recording.job.seed % 97 + 40)
        self.waits: list[int] = []
        self.step_starts: list[tuple[int, int]] = []

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
        self.steps()
        return self.lines

    def count(self, call: Collective | Messages) -> int:
        """The next Seq of a call's group; p2p has a counter of its own before nccl2."""
        key = (call.group, isinstance(call, Messages) and not self.forms.nccl2)
        self.seq[key] = self.seq.get(key, self.base_seq[call.family]) + 1
        return self.seq[key]

    def event(self, call: Call, start: int, stop: int, op: Op | None) -> None:
        """Write one call."""
        if isinstance(call, Kernel):
            self.compute(call, start, stop, op)
        elif isinstance(call, Collective):
            self.collective(call, start, stop, op)
        elif isinstance(call, Messages):
            self.messages(call, start, stop, op)
        elif isinstance(call, Pause):
            self.pause(call, start, stop)
        elif isinstance(call, Sync):
            self.runtime(call.what, start, stop, call.thread, 0)
        elif isinstance(call, Wait):
            self.wait(call, start, stop)

    def ts(self, ns: int) -> str:
        """A timestamp."""
        read = self.r.clock.read(ns)
        if self.forms.decimals:
            return f"{read // 1000}.{read % 1000:03d}"
        absolute = BASE_NS + read
        return (
            str(absolute // 1000)
            if self.forms.torch < (2, 3)
            else f"{absolute // 1000}.{absolute % 1000 // 100}"
        )

    def span(self, category: str, name: str, pid: int, tid: int, start: int, stop: int, args: str) -> None:
        """A complete event."""
        length = max(stop - start, 0)
        dur = f"{length // 1000}.{length % 1000:03d}" if self.forms.torch >= (2, 3) else str(length // 1000)
        self.lines.append(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
            f'"ts": {self.ts(start)}, "dur": {dur}, "args": {{{args}}}}}'
        )

    def cpu(self, category: str, name: str, start: int, stop: int, thread: str, args: str = "") -> int:
        """A host event with an External id of its own."""
        self.external += 1
        own = f'"External id": {self.external}' + (f", {args}" if args else "")
        self.span(category, name, self.r.pid, self.tids[thread], start, stop, own)
        return self.external

    def runtime(self, name: str, start: int, stop: int, thread: str, external: int) -> int:
        """A CUDA call; its correlation."""
        self.correlation += self.r.random.randint(1, 4)
        linked = external or (self.correlation if self.forms.torch < (2, 6) else 0)
        shown = f'"External id": {linked}, ' if linked else ""
        args = f'{shown}"cbid": 211, "correlation": {self.correlation}'
        self.span("cuda_runtime", name, self.r.pid, self.tids[thread], start, stop, args)
        return self.correlation

    def gpu(
        self, op: Op, name: str, correlation: int, external: int, extra: str = "", grid: int = 132
    ) -> None:
        """A kernel, with a flow from its launch where the job records flows."""
        stream = self.r.streams[op.call.stream]
        linked = external or (correlation if self.forms.torch < (2, 6) else 0)
        shown = f'"External id": {linked}, ' if linked else ""
        args = (
            f'{shown}"queued": 0, "device": {self.r.device}, "context": 1, "stream": {stream}, '
            f'"correlation": {correlation}, "registers per thread": 96, "shared memory": 82240, '
            f'"grid": [{grid}, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0{extra}'
        )
        self.span("kernel", name, self.r.device, stream, op.start, op.end, args)
        if self.job.has("flows"):
            self.lines.append(
                f'{{"ph": "f", "id": {correlation}, "pid": {self.r.device}, "tid": {stream}, '
                f'"ts": {self.ts(op.start)}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}'
            )

    def unlinked(self, op: Op) -> None:
        """A kernel whose launch lies before the window."""
        self.correlation += 1
        call = op.call
        if isinstance(call, Kernel):
            self.gpu(op, KERNELS[call.what], self.correlation, 0)
        else:
            stem = "SendRecv" if isinstance(call, Messages) else C10D[call.op][3]
            self.gpu(op, self.forms.kernel(stem), self.correlation, 0, grid=self.job.costs.channels)

    def compute(self, call: Kernel, start: int, stop: int, op: Op) -> None:
        """An aten op, its launch, its kernel."""
        shapes = '"Input Dims": [[4096, 8192], [8192, 8192]]' if self.job.has("shapes") else ""
        external = self.cpu("cpu_op", CPU_OPS[call.what], start, stop, call.thread, shapes)
        launch = self.runtime("cudaLaunchKernel", stop - 5000, stop - 500, call.thread, external)
        self.gpu(op, KERNELS[call.what], launch, external)

    def collective(self, call: Collective, start: int, stop: int, op: Op) -> None:
        """c10d op, record, title, launch and kernel of a collective."""
        forms, group = self.forms, self.r.groups[call.family]
        number = self.count(call)
        cpu_op, record, title = forms.names(call.op)
        common = forms.base(record, group, forms.sizes(call), "BFloat16", call.splits)
        common += forms.sequence(number, comms_id(group.ranks, number))
        only = forms.record_only(group, group.ranks.index(self.r.rank))
        self.cpu("cpu_op", cpu_op, start, stop, call.thread)
        external = self.cpu(
            "cpu_op", "record_param_comms", start + 3000, stop - 1500, call.thread, joined(common + only)
        )
        if forms.torch >= (2, 12) and self.job.has("nested"):
            external = self.cpu(
                "cpu_op", "record_param_comms", start + 4000, stop - 2500, call.thread, joined(common + only)
            )
        self.cpu("user_annotation", title, start + 6000, stop - 4000, call.thread)
        launch = self.runtime("cudaLaunchKernelExC", stop - 14000, stop - 6000, call.thread, external)
        keep = not (self.job.has("lost_args") and forms.torch <= (2, 12) and self.r.random.random() < 0.1)
        extra = "".join(f', "{key}": {value}' for key, value in common) if keep else ""
        name = forms.kernel(C10D[call.op][3])
        self.gpu(op, name, launch, external, extra, grid=16)
        if forms.torch >= (2, 3):
            self.annotation(title, op)
        if not call.sync:
            self.waits.append(op.index)

    def annotation(self, title: str, op: Op) -> None:
        """The GPU's shadow of a title."""
        stream = self.r.streams[op.call.stream]
        self.span(
            "gpu_user_annotation",
            title,
            self.r.device,
            stream,
            op.start,
            op.end,
            f'"External id": {self.external}',
        )

    def messages(self, call: Messages, start: int, stop: int, op: Op) -> None:
        """A batch of messages, or one alone."""
        number = self.count(call)
        group = self.r.groups[call.family]
        if call.batched:
            self.batch(call, start, stop, op, group, number)
            return
        forms, part = self.forms, call.parts[0]
        common, only = self.message_args(call, part, group, number)
        external = self.message_record(part, start, stop, common + only)
        self.cpu(
            "user_annotation",
            forms.message_title(part, group, self.r.rank),
            start + 6000,
            stop - 4000,
            "main",
        )
        launch = self.runtime("cudaLaunchKernelExC", stop - 14000, stop - 6000, "main", external)
        keep = not (self.job.has("lost_args") and forms.torch <= (2, 12) and self.r.random.random() < 0.1)
        extra = "".join(f', "{key}": {value}' for key, value in common) if keep else ""
        self.gpu(op, forms.kernel("SendRecv"), launch, external, extra, grid=self.job.costs.channels)

    def message_args(self, call: Messages, part, group: Group, number: int) -> tuple[list, list]:
        """Keys of a message's kernel, and those of its record alone."""
        forms = self.forms
        name = "send" if part.send else "recv"
        common = forms.base(name, group, (part.elements, part.elements), "BFloat16")
        common += forms.peer(part, group) + forms.sequence(number, comms_id(group.ranks, number))
        return common, forms.record_only(group, group.ranks.index(part.peer))

    def message_record(self, part, start: int, stop: int, args: list) -> int:
        """c10d::send or recv_ around the record; the record's External id, or the op's before 2.2."""
        forms = self.forms
        inputs = ""
        if self.job.has("shapes"):
            pipe = self.r.groups.get("pp", self.r.groups["world"]).ranks
            peer = pipe.index(part.peer)
            inputs = f'"Concrete Inputs": ["", "", "{peer}", "0"], "Input Dims": [[], [], [], []]'
        outer = self.cpu("cpu_op", "c10d::send" if part.send else "c10d::recv_", start, stop, "main", inputs)
        if forms.torch < (2, 2):
            return outer
        return self.cpu("cpu_op", "record_param_comms", start + 3000, stop - 1500, "main", joined(args))

    def batch(self, call: Messages, start: int, stop: int, op: Op, group: Group, number: int) -> None:
        """batch_isend_irecv: records of all messages, then one launch inside `nccl:coalesced`."""
        forms = self.forms
        slot = (stop - start) * 2 // (3 * len(call.parts) + 1)
        if forms.nccl2:
            common = forms.base("batch_op_issue", group, total(call), "BFloat16")
            common += forms.sequence(number, comms_id(group.ranks, number))
            only = forms.record_only(group, group.ranks.index(self.r.rank))
            external = self.cpu(
                "cpu_op", "record_param_comms", start + 3000, stop - 1500, "main", joined(common + only)
            )
            self.cpu("user_annotation", "batch_op_issue", start + 5000, stop - 3000, "main")
            extra = "".join(f', "{key}": {value}' for key, value in common)
            launch = self.runtime("cudaLaunchKernelExC", stop - 14000, stop - 6000, "main", external)
            self.gpu(op, forms.kernel("SendRecv"), launch, external, extra, grid=self.job.costs.channels)
            return
        at = start
        for part in call.parts:
            common, only = self.message_args(call, part, group, number)
            self.message_record(part, at, at + slot - 1000, common + only)
            at += slot
        late = stop if forms.torch >= ENDED_FROM else stop + self.r.random.choice((0, 10**5, 10**7, 10**8))
        self.cpu("user_annotation", "nccl:coalesced", at, late, "main")
        launch = self.runtime("cudaLaunchKernelExC", stop - 12000, stop - 5000, "main", 0)
        self.gpu(op, forms.kernel("SendRecv"), launch, 0, grid=self.job.costs.channels)
        if forms.torch >= (2, 3):
            self.annotation("nccl:coalesced", op)

    def wait(self, call: Wait, start: int, stop: int) -> None:
        """Work.wait: a record of its own for asynchronous collectives, around cudaStreamWaitEvent."""
        external = 0
        if (
            self.forms.torch >= (2, 4)
            and not self.forms.nccl2
            and not getattr(self.place.program[call.handle], "sync", True)
        ):
            args = joined(self.forms.base("wait", Group("", "", (0,)), (0, 0), "Byte"))
            external = self.cpu("cpu_op", "record_param_comms", start, stop, call.thread, args)
        self.runtime("cudaStreamWaitEvent", start + 1000, stop - 1000, call.thread, external)

    def pause(self, call: Pause, start: int, stop: int) -> None:
        """Steps, the loader, garbage collection."""
        if call.what == "step":
            self.step_starts.append((start, stop))
        elif call.what == "data":
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self.cpu("user_annotation", name, start, stop, call.thread)

    def steps(self) -> None:
        """ProfilerStep spans."""
        if self.job.has("no_steps"):
            return
        bounds = [start for start, _ in self.step_starts] + [self.window[1]]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            self.cpu(
                "user_annotation", f"ProfilerStep#{self.r.first_step + number}", start, stop - 2000, "main"
            )


def joined(args: list[tuple[str, str]]) -> str:
    """Arguments as JSON members."""
    return ", ".join(f'"{key}": {value}' for key, value in args)


def total(call: Messages) -> tuple[int, int]:
    """Elements sent and received by a batch."""
    sent = sum(part.elements for part in call.parts if part.send)
    return sent, sum(part.elements for part in call.parts if not part.send)


def comms_id(ranks: tuple[int, ...], number: int) -> int:
    """An id over the whole range of uint64."""
    return hash((ranks, number)) & 0xFFFF_FFFF_FFFF_FFFF

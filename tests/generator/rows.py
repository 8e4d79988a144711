"""Rows of one rank's trace: host operators, launches, kernels, with the arguments torch and Kineto write."""

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tests.generator.forms import FORMS, LISTS, NCCL2, TITLES
from tests.generator.mesh import Group
from tests.generator.program import COLLECTIVES, COMPUTE, LABELS, LOAD, RECV, SEND, SYNC, RankProgram

if TYPE_CHECKING:
    from tests.generator.case import Case

EPOCH = 1_774_000_123_456_789_012  # ns, of true time zero
BASE = 1_771_588_800_000_000_000  # baseTimeNanoseconds
PAUSE = 2_500_000  # ns: no operator's host work is as long as this
SILENT = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
LIST_LIMIT = 30  # Kineto cuts longer lists


def host_busy(span: int) -> int:
    """The part of the host time before a launch that operators take, ns: all but a pause of the process."""
    return 12_000 if span > PAUSE else int(0.8 * span)


@dataclass
class _Clock:
    """Turns true time into the time that this rank's file shows, in integer ns."""

    offset: int
    drift: float
    base: int

    def stamp(self, true: np.ndarray) -> np.ndarray:
        local = np.rint(true * (1 + self.drift)).astype(np.int64)
        return local + (EPOCH + self.offset - self.base)


def us(ns: int) -> str:
    """Microseconds with three decimals, as Kineto prints them."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


class RankRows:
    """Turns one rank's simulated operations into rows."""

    def __init__(self, case: "Case", rank: int) -> None:
        self.case, self.rank, self.capture = case, rank, case.capture
        self.label_of = self.capture.labels or list(range(case.job.mesh.world))
        self.shown = self.label_of[rank]
        self.host, self.device = divmod(rank, case.job.host_size)
        self.pid = 2000 + 37 * self.device + 1000 * self.host
        self.prog: RankProgram = case.program.ranks[rank]
        base = BASE if self.capture.base else 0
        self.clock = _Clock(self.capture.offsets[rank], self.capture.drifts[rank], base)
        self.window = self.capture.windows[rank]
        self.rows: list[tuple[int, int, str]] = []  # (order, ts, text)
        self.form = FORMS[self.capture.form]
        self.comm_args: dict[tuple[int, str, int], tuple[str, str]] = {}

    def members(self, group: Group) -> list[int]:
        return sorted(self.label_of[r] for r in group.ranks)

    def add(self, gpu: int, ts: int, dur: int, cat: str, name: str, ids: str, args: str) -> None:
        self.rows.append(
            (
                gpu,
                ts,
                (
                    f'{{"ph": "X", "cat": "{cat}", "name": "{name}", {ids}, '
                    f'"ts": {us(ts)}, "dur": {us(dur)}, "args": {{{args}}}}}'
                ),
            )
        )

    def step_rows(self, begin: float, stop: float) -> None:
        """ProfilerStep spans of the steps that lie whole within the capture."""
        for step in range(self.case.job.steps):
            low, high = self.bounds[step], self.bounds[step + 1]
            if low < begin - 1 or high > stop + 1:
                continue
            a, b = self.clock.stamp(np.array([low + 200, high - 200])).tolist()
            name = f"ProfilerStep#{self.case.first_step + step}"
            self.add(
                0,
                a,
                b - a,
                "user_annotation",
                name,
                f'"pid": {self.pid}, "tid": {self.pid}',
                '"External id": 1',
            )
            if self.capture.step_spans_on_gpu:
                mine = (np.array(self.prog.step) == step) & (np.array(self.prog.kind) == COMPUTE)
                a, b = self.clock.stamp(np.array([self.start[mine].min(), self.end[mine].max()])).tolist()
                ids = f'"pid": {self.device}, "tid": 7'
                self.add(1, a, b - a, "gpu_user_annotation", name, ids, '"External id": 1')

    def op_rows(self, begin: float, stop: float) -> None:
        """Rows of all operations whose host side or device side lies within the capture."""
        launch, issued = self.clock.stamp(self.launch).tolist(), self.clock.stamp(self.issued).tolist()
        start, end = self.clock.stamp(self.start).tolist(), self.clock.stamp(self.end).tolist()
        cpu_in = ((self.launch >= begin) & (self.issued <= stop)).tolist()
        gpu_in = ((self.start >= begin) & (self.end <= stop)).tolist()
        prog = self.prog
        first = {b for i, b in enumerate(prog.batch) if b != i}  # the second of the batch has the launch
        self.leading = first if self.form.batched else set()
        self.seq = self.one_counter() if self.form.nccl2 else prog.seq
        threads = [f'"pid": {self.pid}, "tid": {self.pid}', f'"pid": {self.pid}, "tid": {self.pid + 7}']
        for i, kind in enumerate(prog.kind):
            if not (cpu_in[i] or gpu_in[i]):
                continue
            ids = threads[prog.backward[i]]
            if kind in (LOAD, SYNC):
                if gpu_in[i]:
                    (self.load_row if kind == LOAD else self.sync_rows)(i, threads[0], start[i], end[i])
            elif kind == COMPUTE:
                self.compute_rows(i, ids, launch[i], issued[i], start[i], end[i], cpu_in[i], gpu_in[i])
            elif kind in (SEND, RECV) and self.form.silent and not self.form.batched:
                self.silent_rows(i, threads[0], launch[i], issued[i], start[i], end[i], cpu_in[i], gpu_in[i])
            elif kind in (SEND, RECV) and self.form.batched:
                if cpu_in[i] and self.form.silent:
                    self.launch_row(i, threads[0], launch[i], issued[i])
                elif cpu_in[i]:
                    until = self.clock.stamp(np.array([stop])).tolist()[0]
                    self.member_rows(i, threads[0], launch[i], issued[i], until)
                carried = [j for j in (prog.batch[i], i) if gpu_in[j]]
                if i not in first and prog.batch[i] in carried and gpu_in[i]:
                    begin_end = max(start[j] for j in carried), max(end[j] for j in carried)
                    self.batched_kernel(i, *begin_end)
            else:
                self.comm_rows(i, ids, launch[i], issued[i], start[i], end[i], cpu_in[i], gpu_in[i])

    def load_row(self, i: int, ids: str, start: int, end: int) -> None:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self.add(0, start, end - start, "user_annotation", name, ids, f'"External id": {10_000 + i}')

    def sync_rows(self, i: int, ids: str, start: int, end: int) -> None:
        args = f'"External id": {10_000 + i}'
        self.add(0, start, end - start, "cpu_op", "aten::_local_scalar_dense", ids, args)
        args += f', "cbid": 131, "correlation": {10_000 + i}'
        wait = max(end - start - 900, 0)
        self.add(0, start + 600, wait, "cuda_runtime", "cudaStreamSynchronize", ids, args)

    def compute_rows(self, i, ids, launch, issued, start, end, cpu_in, gpu_in) -> None:
        kernel, operator = LABELS[self.prog.label[i]]
        link = 10_000 + i
        if cpu_in:
            busy = host_busy(issued - launch)
            self.add(0, issued - busy, busy, "cpu_op", operator, ids, f'"External id": {link}')
            args = f'"External id": {link}, "cbid": 211, "correlation": {link}'
            self.add(0, issued - busy // 2, busy // 2, "cuda_runtime", "cudaLaunchKernel", ids, args)
        if gpu_in:
            args = (
                f'"External id": {link}, "queued": 0, "device": {self.device}, "context": 1, "stream": 7, '
                f'"correlation": {link}, "grid": [132, 1, 1], "block": [256, 1, 1]'
            )
            self.add(1, start, end - start, "kernel", kernel, f'"pid": {self.device}, "tid": 7', args)

    def comm_rows(self, i, ids, launch, issued, start, end, cpu_in, gpu_in) -> None:
        """The host's operator with its communication records and launch, and the kernel."""
        prog = self.prog
        op, link, stream = prog.label[i], 10_000 + i, prog.stream[i]
        kernel, operator = COLLECTIVES[op]
        kernel = kernel.replace("ncclDevKernel", "ncclKernel") if self.form.old_kernels else kernel
        cpu_args, kernel_args = self.arguments(i)
        seq = f', "Seq": {self.seq[i]}' if self.capture.seq and self.form.keys is None else ""
        if cpu_in:
            busy = host_busy(issued - launch)
            at = issued - busy
            self.add(0, at, busy, "cpu_op", operator, ids, f'"External id": {link}{self.inputs(i)}')
            title = self.title(i) if prog.peer[i] >= 0 else TITLES[op] if self.form.keys is not None else ""
            if self.form.titles and title:
                self.add(0, at + 1_200, max(busy - 2_200, 400), "user_annotation", title, ids, "")
            for depth in range(1 + self.capture.nested_comms):
                args = f'"External id": {link}, {cpu_args}{seq}'.rstrip(", ")
                inset = 1_000 * (depth + 1)
                self.add(0, at + inset, max(busy - 2 * inset, 500), "cpu_op", "record_param_comms", ids, args)
            args = f'"External id": {link}, "cbid": 430, "correlation": {link}'
            self.add(0, issued - busy // 3, busy // 4, "cuda_runtime", "cudaLaunchKernelExC", ids, args)
        if gpu_in:
            args = (
                f'"External id": {link}, "queued": 0, "device": {self.device}, "stream": {stream}, '
                f'"correlation": {link}, "grid": [24, 1, 1], "block": [544, 1, 1], {kernel_args}{seq}'
            ).rstrip(", ")
            self.add(1, start, end - start, "kernel", kernel, f'"pid": {self.device}, "tid": {stream}', args)

    def title(self, i: int) -> str:
        """The title of a message: its direction, and the ranks of both ends in the group."""
        ranks = self.members(self.case.groups.all[self.prog.group[i]])
        own, peer = ranks.index(self.shown), ranks.index(self.label_of[self.prog.peer[i]])
        return f"nccl:send {own}->{peer}" if self.prog.kind[i] == SEND else f"nccl:recv {own}<-{peer}"

    def inputs(self, i: int) -> str:
        """What `record_shapes` adds to a message's call: tensors, group, peer and tag."""
        if not self.form.inputs or self.prog.peer[i] < 0:
            return ""
        ranks = self.members(self.case.groups.all[self.prog.group[i]])
        return f', "Concrete Inputs": ["", "", "{ranks.index(self.label_of[self.prog.peer[i]])}", "0"]'

    def one_counter(self) -> list[int]:
        """Seq of every operation where messages and collectives of a group count together, a batch once."""
        calls: dict[int, int] = {}
        seq: list[int] = []
        for i, group in enumerate(self.prog.group):
            first = self.prog.batch[i] if self.form.batched else i
            if first == i:
                calls[group] = calls.get(group, 0) + 1
            seq.append(calls[group] if first == i else seq[first])
        return seq

    def member_rows(self, i: int, ids: str, launch: int, issued: int, until: int) -> None:
        """The host's record of one message of a batch; the last one launches the kernel of all, inside a title."""
        prog, link = self.prog, 10_000 + i
        operator, busy = COLLECTIVES[prog.label[i]][1], host_busy(issued - launch)
        at = issued - busy
        self.add(0, at, busy // 2, "cpu_op", operator, ids, f'"External id": {link}{self.inputs(i)}')
        seq = f', "Seq": {self.seq[prog.batch[i]]}' if self.capture.seq else ""
        if self.form.nccl2:
            if i not in self.leading:
                args = f'"External id": {link}, {self.arguments(i, batch=True)[0]}{seq}'
                self.add(0, at + busy // 2 + 100, busy // 3, "cpu_op", "record_param_comms", ids, args)
                args = f'"cbid": 430, "correlation": {link}'
                self.add(0, issued - busy // 3, busy // 8, "cuda_runtime", "cudaLaunchKernelExC", ids, args)
            return
        args = f'"External id": {link}, {self.arguments(i)[0]}{seq}'
        self.add(0, at + busy // 8, busy // 4, "cpu_op", "record_param_comms", ids, args)
        if i in self.leading:
            return
        began = at + busy // 2 + 100
        lasts = busy // 3 if self.form.ended else max(until - began, busy)
        self.add(0, began, lasts, "user_annotation", "nccl:coalesced", ids, "")
        args = f'"cbid": 430, "correlation": {link}'
        self.add(0, issued - busy // 3, busy // 8, "cuda_runtime", "cudaLaunchKernelExC", ids, args)

    def launch_row(self, i: int, ids: str, launch: int, issued: int) -> None:
        """The launch of a message's kernel, where it is all that the host tells."""
        if i in self.leading:
            return
        busy, args = host_busy(issued - launch), f'"cbid": 211, "correlation": {10_000 + i}'
        self.add(0, issued - busy // 3, busy // 4, "cuda_runtime", "cudaLaunchKernel", ids, args)

    def silent_rows(self, i, ids, launch, issued, start, end, cpu_in, gpu_in) -> None:
        """A message of which the trace shows its launch, and its kernel without arguments."""
        if cpu_in:
            self.launch_row(i, ids, launch, issued)
        if gpu_in:
            self.batched_kernel(i, start, end)

    def batched_kernel(self, i: int, start: int, end: int) -> None:
        """The kernel of a batch: it says nothing of its messages."""
        link, stream = 10_000 + i, self.prog.stream[i]
        bogus = f'"External id": {link}, ' if self.form.bogus_id else ""
        args = (
            f'{bogus}"queued": 0, "device": {self.device}, "stream": {stream}, "correlation": {link}, '
            '"grid": [24, 1, 1], "block": [544, 1, 1]'
        )
        if self.form.nccl2:
            args += f', "External id": {link}, {self.arguments(i, batch=True)[1]}'
        kernel = SILENT if self.form.silent else COLLECTIVES["send"][0]
        self.add(1, start, end - start, "kernel", kernel, f'"pid": {self.device}, "tid": {stream}', args)

    def arguments(self, i: int, *, batch: bool = False) -> tuple[str, str]:
        """Communication arguments on the host's row and on the kernel's, as torch and Kineto split them."""
        prog = self.prog
        op, peer = "batch_op_issue" if batch else prog.label[i], prog.peer[i]
        group = self.case.groups.all[prog.group[i]]
        transfer = self.case.program.keys.transfer[prog.key[i]]
        cached = self.comm_args.get((group.index, op, peer), {}).get(transfer)  # type: ignore[attr-defined]
        if cached is not None:
            return cached
        ranks = self.members(group)
        size = len(ranks)
        elements = int(transfer / 100) * 1024
        parts = {"_allgather_base": (1, size), "_reduce_scatter_base": (size, 1)}.get(op, (1, 1))
        listed = ", ".join(map(str, ranks[:LIST_LIMIT])) + (", ..." if size > LIST_LIMIT else "")
        args = {
            "Collective name": NCCL2.get(op, op) if self.form.nccl2 else op,
            "In msg nelems": elements * parts[0],
            "Out msg nelems": elements * parts[1],
            "Group size": size,
            "dtype": "Float" if op == "allreduce" else "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.desc,
            "Process Group Ranks": f"[{listed}]",
        }
        if not group.desc:
            del args["Process Group Description"]
        if peer >= 0 and self.form.ends:
            args["Dst Rank" if op == "send" else "Src Rank"] = self.label_of[peer]
        strides = {b - a for a, b in pairwise(ranks)}
        start = {"Global rank start": ranks[0]}
        if len(strides) == 1:
            start["Global rank stride"] = strides.pop()
        own = {"Rank": ranks.index(self.label_of[peer] if peer >= 0 else self.shown)}
        own = own if self.form.rank else {}
        if self.form.nccl2:
            args, start = {k: v for k, v in args.items() if k not in LISTS}, {}
        if self.form.keys is not None:
            args, start = {spelt: args[k] for k, spelt in self.form.keys}, {}
        both = json.dumps(args)[1:-1], json.dumps(args | start | own)[1:-1]
        self.comm_args.setdefault((group.index, op, peer), {})[transfer] = (both[1], both[0])  # type: ignore[index]
        return both[1], both[0]

"""What the events of a file show of its writer: work, communication, marks of steps, other profilers."""

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.arrays import from_numpy, null_as, to_numpy
from tracekit.thresholds.ingest import MAX_MARKED_STEPS

STEP = re.compile(r"^ProfilerStep#(\d{1,10})$")
OWN_CATEGORIES = frozenset({"trace", "overhead"})
OWN_EVENT = re.compile(
    r"^(ProfilerStep#\d+|ProfilerStep\*|PyTorch Profiler.*|Activity Buffer Request|(cuda|hip)DeviceSynchronize)$"
)
"""What a profiler writes that recorded nothing: itself, its waiting for the device as it stops, marks of steps."""
TALK = re.compile(r"nccl|rccl|gloo:|c10d|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
OF_TORCH = re.compile(
    r"(?:cpu|gpu|cuda|hip|xpu|mtia|privateuse1)_|kernel|operator|user_annotation|python_function|memcpy|memset"
)
"""How categories of PyTorch's profiler begin, in lower case; earlier versions wrote `Operator` and `Memcpy`."""
OF_ASCEND = re.compile(r"hcom_[a-zA-Z]+_|AscendCL@|Node@launch")
"""How torch_npu names what its runtime did; it gives its device's events no category."""

EMPTY = (
    "it is empty: the profiler recorded nothing, which is usual where a cycle of its schedule had begun again, or none "
    "had ended, when the trace was exported; export in on_trace_ready, or give schedule(repeat=1)"
)
MARKS_ONLY = (
    "it is empty but for marks of steps: no work of CPU or GPU was recorded; give the profiler activities=[CPU, CUDA], "
    "and export in on_trace_ready"
)
OTHER_PROGRAM = (
    "no event in it is an operator, a kernel or a mark of PyTorch's profiler, and it names no rank: it is of another "
    "program; give the traces that torch.profiler wrote, of all ranks of the job"
)
ASCEND = (
    "it is a trace of torch_npu, which gives the work of its devices no category: such traces are not read"
)
MERGED = (
    "it holds the events of several processes, which mark step {} at the same time, so that the events of each rank "
    "cannot be separated: it was merged; give the traces of the ranks themselves"
)


@dataclass
class Contents:
    """What a file holds, as far as its batches were looked at."""

    steps: set[int] = field(default_factory=set)  # numbers of the steps marked on the host
    works: bool = False  # whether any event is more than the profiler's own, or a mark of a step
    talks: bool = False  # whether any event is communication, by its name or arguments
    torch: bool = False  # whether any event is of a category that PyTorch's profiler writes
    ascend: bool = False  # whether any event is one of torch_npu's
    devices: set[int] = field(default_factory=set)  # numbers of the devices that ran kernels
    merged: int | None = None  # a step that several processes mark at the same time
    first: dict[tuple[int, str], tuple[int, int]] = field(
        default_factory=dict
    )  # begin and end of its first mark, ns

    @property
    def talks_to_others(self) -> bool:
        """Whether communication is with other processes; one that drives several devices may talk among these."""
        return self.talks and len(self.devices) < 2

    def look(self, batch: pa.RecordBatch) -> None:
        """Note what `batch` holds; an event of unknown category is work."""
        self._look_for_marks(batch)
        self._look_for_devices(batch)
        names = batch.column("name")
        known = names.dictionary.to_pylist() if pa.types.is_dictionary(names.type) else []
        if not self.talks:
            self.talks = batch.column("collective").null_count < len(batch) or any(
                TALK.search(name) for name in known if name
            )
        if not self.torch:
            cats = batch.column("cat").unique().to_pylist()
            self.torch = any(OF_TORCH.match(cat.lower()) for cat in cats if cat)
        if not self.ascend and batch.column("cat").null_count:
            self.ascend = any(OF_ASCEND.match(name) for name in known if name)
        self.works = self.works or any(
            (cat.as_py() or "").lower() not in OWN_CATEGORIES and not OWN_EVENT.match(name.as_py() or "")
            for name, cat in zip(names, batch.column("cat"), strict=True)
        )

    def _look_for_devices(self, batch: pa.RecordBatch) -> None:
        """Note the devices of the kernels in `batch`."""
        named, cats = batch.column("device"), batch.column("cat")
        codes = [i for i, cat in enumerate(cats.dictionary.to_pylist()) if cat == "kernel"]
        kernels = np.isin(null_as(cats.indices, -1), codes)
        self.devices.update(np.unique(null_as(named, 0)[kernels & to_numpy(named.is_valid())]).tolist())

    def _look_for_marks(self, batch: pa.RecordBatch) -> None:
        """Note the profiler steps that the host's marks in `batch` name."""
        names, cats = batch.column("name"), batch.column("cat")
        known = names.dictionary.to_pylist() if pa.types.is_dictionary(names.type) else []
        marks = {i: int(m[1]) for i, v in enumerate(known) if v and (m := STEP.match(v))}
        if not marks:
            return
        rows = np.flatnonzero(np.isin(null_as(names.indices, -1), list(marks)))
        taken = from_numpy(rows)
        begin, lasted = (to_numpy(batch.column(name).take(taken)) for name in ("ts", "dur"))
        shown = cats.take(taken).to_pylist()
        for row, cat, ts, dur in zip(rows.tolist(), shown, begin.tolist(), lasted.tolist(), strict=True):
            number = marks[names.indices[row].as_py()]
            if cat == "gpu_user_annotation":
                continue
            self.steps.add(number)
            first = self.first.get((number, cat or ""))
            if first is not None and first[0] < ts + dur and ts < first[1]:
                self.merged = number
            elif first is None and len(self.first) < MAX_MARKED_STEPS:
                self.first[number, cat or ""] = (ts, ts + dur)

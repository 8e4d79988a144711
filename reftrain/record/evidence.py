"""Hooks that write a run's folder: run.json, metrics and profiler traces.

The trace names every communication call with NCCL's arguments: a collective from its call to its return, a
send when it is issued, a receive while the trainer waits for it. On CUDA, NCCL's own spans say it already.
"""

import contextlib
import dataclasses
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from reftrain.config.trace_forms import FORMS, NEWEST
from reftrain.rank.events import CollectiveCall, Evaluation, HostCopy, StepMetrics
from reftrain.rank.hooks import Hooks, RunContext
from reftrain.record.groups import Groups
from reftrain.record.kineto import StepProfiler
from reftrain.record.manifest import Planted, describe, fingerprint, write_manifest
from reftrain.record.memory import MemoryByKind
from reftrain.record.spans import Span, arguments, message_arguments
from reftrain.schedule.actions import COMPUTE, Action

NCCL_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}


class Manifest(Hooks):
    """Writes run.json from rank 0 when the process groups exist."""

    def __init__(self, faults: Sequence[Planted]) -> None:
        self.faults = faults

    def setup(self, context: RunContext) -> None:
        """Gather the hosts and write what runs."""
        hosts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(hosts, socket.gethostname())
        if context.rank == 0:
            write_manifest(
                Path(context.config.out), describe(context.config, hosts, self.faults, fingerprint())
            )


class MetricsLog(Hooks):
    """Writes run/metrics/rankN.jsonl, one line a step, complete after every step.

    `memory` gives the bytes by kind (see `MemoryByKind`).
    """

    def __init__(self, memory: MemoryByKind) -> None:
        self._memory = memory
        self._file: IO[str] | None = None
        self._evaluations: Path | None = None

    def setup(self, context: RunContext) -> None:
        """Open the file; a resumed run goes on in it."""
        folder = Path(context.config.out) / "metrics"
        folder.mkdir(parents=True, exist_ok=True)
        mode = "a" if context.config.checkpoint.resume else "w"
        self._file = (folder / f"rank{context.rank}.jsonl").open(mode, encoding="utf-8")
        if context.rank == 0 and context.config.evaluation.every:
            self._evaluations = folder / "evaluation.jsonl"
            self._evaluations.open(mode, encoding="utf-8").close()

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """Append an evaluation to metrics/evaluation.jsonl, on rank 0."""
        if self._evaluations is not None:
            with self._evaluations.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(evaluation)) + "\n")

    def step_end(self, metrics: StepMetrics) -> None:
        """Append one step."""
        if self._file is not None:
            row = {
                **dataclasses.asdict(metrics),
                "tokens_per_s": metrics.tokens_per_s,
                "memory": self._memory.figures(),
            }
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class StepTrace(Hooks):
    """Records the chosen steps (and those between them) with the profiler: run/trace/rankN.json.gz."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.first, self.last = min(steps), max(steps)
        self._profiler: StepProfiler | None = None
        self._path = Path()
        self._nested = True
        self._form = FORMS[NEWEST]
        self._annotates = True
        self._groups = Groups()
        self._spans: dict[int, Span] = {}
        self._copy: Span | None = None
        self._waiting: dict[int, dict[str, Any]] = {}
        self._scopes = contextlib.ExitStack()
        self._inner = contextlib.ExitStack()

    def setup(self, context: RunContext) -> None:
        """Remember where the trace goes."""
        folder = Path(context.config.out) / "trace"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"rank{context.rank}.json.gz"
        self._nested = context.config.evidence.trace_nested
        self._form = FORMS[context.config.evidence.trace_form]
        self._annotates = context.device.type != "cuda"  # else each call would stand in the trace twice

    def step_begin(self, step: int) -> None:
        """Start the profiler at the first chosen step, or where the run resumes among these steps."""
        if self._profiler is None and self.first <= step <= self.last:
            self._profiler = StepProfiler()
            self._profiler.start()
        if self._profiler is not None:
            self._scopes.enter_context(self._profiler.step(step))

    def step_end(self, metrics: StepMetrics) -> None:
        """Stop after the last one and write the file."""
        self._scopes.close()
        if self._profiler is not None and metrics.step == self.last:
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            profiler.export(self._path, nested=self._nested, form=self._form)

    def evaluation_begin(self, step: int) -> None:
        """Open the span of an evaluation, a step of its own kind: no `ProfilerStep` holds it."""
        self._enter(f"Evaluation#{step}")

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """Close it."""
        del evaluation
        self._inner.close()

    def data_begin(self, step: int) -> None:
        """Open the loader's span, named as DataLoader's is."""
        del step
        self._enter("enumerate(DataLoader)#Loader.__next__")

    def data_end(self, step: int) -> None:
        """Close the loader's span."""
        del step
        self._inner.close()

    def action_begin(self, action: Action) -> None:
        """Open the span of a forward or backward."""
        if action.kind in COMPUTE:
            self._enter(f"PP:{action}")

    def action_end(self, action: Action) -> None:
        """Close it."""
        if action.kind in COMPUTE:
            self._inner.close()

    def copy_begin(self, copy: HostCopy) -> None:
        """Open the span of a copy between device and host, with its bytes; on CUDA the profiler records copies."""
        if self._profiler is not None and self._annotates:
            self._copy = Span({"bytes": copy.nbytes}, f"reftrain::copy_{copy.way}")

    def copy_end(self, copy: HostCopy) -> None:
        """Close it."""
        del copy
        if self._copy is not None:
            self._copy.end()
            self._copy = None

    def _enter(self, name: str) -> None:
        if self._profiler is not None:
            self._inner.enter_context(torch.profiler.record_function(name))

    def collective_begin(self, call: CollectiveCall) -> None:
        """Open the call's span; of a receive only note which message it is."""
        info = self._groups.info(call.group)
        seq = self._groups.next_collective(info) if call.peer is None else self._groups.next_message(info)
        if self._profiler is None or not self._annotates:
            return
        name, tensor = NCCL_NAMES[call.op], call.tensor
        if call.peer is None:
            values = arguments(name, info, tensor.dtype, tensor.numel(), call.elements_out, seq, call.splits)
        else:
            values = message_arguments(name, info, tensor, call.peer, seq)
        if call.op == "recv":
            self._waiting[id(call)] = values
        else:
            self._spans[id(call)] = Span(values)

    def collective_end(self, call: CollectiveCall) -> None:
        """Close the call's span."""
        span = self._spans.pop(id(call), None)
        if span is not None:
            span.end()

    def wait_begin(self, call: CollectiveCall) -> None:
        """Open the span of a receive."""
        values = self._waiting.pop(id(call), None)
        if values is not None and self._profiler is not None:
            self._spans[id(call)] = Span(values)

    def wait_end(self, call: CollectiveCall) -> None:
        """Close the span of a receive."""
        self.collective_end(call)

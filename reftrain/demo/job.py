"""The training of one rank: 1F1B pipeline steps, gradient all-reduce, AdamW; recorded from the inside.

All communication blocks, so that a rank's own time is what lies between its communication spans.
"""

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from reftrain.config.fault_spec import FaultSpec
from reftrain.demo.mesh import SIZES, WORLD_SIZE, Place, make_place
from reftrain.demo.model import WIDTH, Stage
from reftrain.faults.compute import ExtraWork
from reftrain.record.kineto import StepProfiler
from reftrain.record.spans import CommSpans, Span

WARM_UP = 2  # steps before the recorded ones: allocations, connections, caches
BATCH = 192  # rows a micro-batch
MICRO_BATCHES = 4


@dataclass(frozen=True)
class JobSpec:
    """What all ranks of one job share. `steps` are recorded, after `WARM_UP` others."""

    folder: Path
    steps: int
    seed: int
    fault: FaultSpec | None


def run_rank(spec: JobSpec, rank: int, store: str) -> None:
    """Train and record as `rank`; writes its trace and its report into `spec.folder`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=60)
    )
    job = Job(spec, make_place(rank))
    for step in range(WARM_UP):
        job.step(step)
    profiler = StepProfiler()
    dist.barrier()
    profiler.start()
    times = []
    for step in range(WARM_UP, WARM_UP + spec.steps):
        start = time.perf_counter()
        with profiler.step(step):
            job.step(step)
        times.append((time.perf_counter() - start) * 1e3)
    profiler.stop()
    profiler.export(spec.folder / "trace" / f"rank{rank}.json.gz", nested=False)
    report = {"step_ms": times, "loss": job.losses, "extra_ms": job.extra_ms[WARM_UP:]}
    (spec.folder / f"report{rank}.json").write_text(json.dumps(report))
    dist.barrier()  # nobody closes connections while another still works
    dist.destroy_process_group()


class Job:
    """Model, data and communication of one rank."""

    def __init__(self, spec: JobSpec, place: Place) -> None:
        self.spec, self.place = spec, place
        self.spans = CommSpans()
        coords = place.coords
        self.first, self.last = coords["pp"] == 0, coords["pp"] == SIZES["pp"] - 1
        self.stage = Stage(
            SIZES["tp"], self._tp_reduce, 10 * (spec.seed + coords["pp"]) + coords["tp"], first=self.first
        )
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=3e-4, foreach=True)
        generator = torch.Generator().manual_seed(spec.seed)
        self.targets = [torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5 for _ in range(2)]
        self.losses: list[float] = []
        self.extra_ms: list[float] = []
        fault = spec.fault if spec.fault is not None and spec.fault.rank == place.rank else None
        self.fault = fault
        self.extra = ExtraWork(fault.values["factor"]) if fault else None

    def step(self, step: int) -> None:
        """One training step: 1F1B over the micro-batches, gradients averaged, weights updated."""
        slow = self.extra if self.fault and self.fault.active(step) else None
        self._slow = slow
        self._loss = 0.0
        self._begin()
        inputs, targets = self._data(step)
        if self.first:
            self._first_stage(inputs)
        else:
            self._last_stage(targets)
        self._average_gradients()
        self._begin()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._end()
        self.losses.append(self._loss / MICRO_BATCHES)
        self.extra_ms.append(slow.take_wall_ms() if slow else 0.0)

    def _data(self, step: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Inputs and targets of this data-parallel replica: a fixed linear map to learn."""
        generator = torch.Generator().manual_seed(
            ((self.spec.seed * 1009 + step) << 4) + self.place.coords["dp"]
        )
        inputs = [torch.randn(BATCH, WIDTH, generator=generator) for _ in range(MICRO_BATCHES)]
        return inputs, [x @ self.targets[0] @ self.targets[1] for x in inputs] if self.last else []

    def _first_stage(self, inputs: list[torch.Tensor]) -> None:
        outputs = [self.stage(inputs[0])]
        self._exchange(outputs[0].detach(), None)
        for i in range(MICRO_BATCHES):
            grad = torch.empty(BATCH, WIDTH)
            if i + 1 < MICRO_BATCHES:
                outputs.append(self.stage(inputs[i + 1]))
                self._exchange(outputs[i + 1].detach(), grad)
            else:
                self._exchange(None, grad)
            torch.autograd.backward(outputs[i], grad)

    def _last_stage(self, targets: list[torch.Tensor]) -> None:
        received = torch.empty(BATCH, WIDTH)
        self._exchange(None, received)
        for i in range(MICRO_BATCHES):
            x = received.requires_grad_()
            loss = torch.nn.functional.mse_loss(self.stage(x), targets[i])
            torch.autograd.backward(loss)
            self._loss += loss.item()
            if x.grad is None:
                raise AssertionError("no gradient for the pipeline's input")
            received = torch.empty(BATCH, WIDTH)
            self._exchange(x.grad, received if i + 1 < MICRO_BATCHES else None)

    def _exchange(self, send: torch.Tensor | None, receive: torch.Tensor | None) -> None:
        """Send to the other stage and receive from it; complete on return."""
        group = self.place.groups["pp"]
        peer = self.place.peer("pp", 1 if self.first else 0)
        self._end()
        open_calls: list[tuple[dist.Work | None, Span]] = []
        if send is not None:
            span = self.spans.p2p("send", group, send, peer)
            open_calls.append((dist.isend(send, peer, group=group), span))
        if receive is not None:
            span = self.spans.p2p("recv", group, receive, peer)
            open_calls.append((dist.irecv(receive, peer, group=group), span))
        for work, span in open_calls:  # in this order the spans overlap; nested ones would look like one call
            if work is not None:
                work.wait()
            span.end()
        self._begin()

    def _tp_reduce(self, tensor: torch.Tensor) -> None:
        self._all_reduce("tp", tensor)

    def _average_gradients(self) -> None:
        """One all-reduce over the data-parallel ranks a layer, last layer first."""
        for layer in (*reversed(self.stage.layers), self.stage.embed):
            grads = [p.grad for p in layer.parameters() if p.grad is not None]
            if not grads:
                continue
            flat = torch.cat([g.view(-1) for g in grads])
            self._all_reduce("dp", flat)
            flat /= SIZES["dp"]
            for grad, part in zip(grads, torch.split(flat, [g.numel() for g in grads]), strict=True):
                grad.copy_(part.view_as(grad))

    def _all_reduce(self, axis: str, tensor: torch.Tensor) -> None:
        self._end()
        group = self.place.groups[axis]
        with self.spans.blocking("allreduce", group, tensor, tensor.numel()):
            dist.all_reduce(tensor, group=group)
        self._begin()

    def _begin(self) -> None:
        """Own computation begins: from here the planted fault counts it."""
        if self._slow:
            self._slow.begin()

    def _end(self) -> None:
        """Own computation ends: a slow rank takes longer to come here."""
        if self._slow:
            self._slow.end()

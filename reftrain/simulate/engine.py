"""Discrete-event simulation of programs: when every operation of every rank is issued, starts and ends.

All ranks of a pipeline rank execute one program, so each operation is computed for all of them at once, as an array
over (dp, cp, tp); jitter and faults are arrays too. Differences between ranks therefore cost nothing extra, and a step
of 16 384 ranks takes seconds.

The rules are those of CUDA streams under torch. The host issues operations in order and runs ahead of its device. A
kernel starts when it was issued, the kernel before it on its stream has ended, and the operations it waits for have
ended. `communication` has the rules of collectives and messages. An operation that never happens has infinite times: a
hang is simulated like any other run.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from reftrain.errors import ScheduleError
from reftrain.simulate.communication import Communication
from reftrain.simulate.conditions import Conditions, HostCosts, Noise
from reftrain.simulate.grid import F64, Grid
from reftrain.simulate.pipeline_rank import PipelineRank, StageTimes
from reftrain.simulate.program import COMMUNICATION, Kind, Op, Program
from reftrain.thresholds import LAUNCH_QUEUE


class Engine:
    """Runs programs. `width` is the number of ranks of a pipeline rank."""

    def __init__(
        self,
        programs: Sequence[Program],
        grid: Grid,
        steps: int,
        *,
        host: HostCosts,
        noise: Noise | None = None,
        conditions: dict[tuple[int, int], Conditions] | None = None,
    ) -> None:
        self.grid, self.steps, self.host, self.noise = grid, steps, host, noise
        self.conditions = conditions or {}
        self.ranks = [PipelineRank(i, p, grid.width, steps) for i, p in enumerate(programs)]
        self._ready: deque[PipelineRank] = deque()
        communication = Communication(grid, host, self._ready)
        self._run: dict[Kind, Callable[[PipelineRank, Op], None]] = {
            Kind.COMPUTE: self._compute,
            Kind.COLLECTIVE: communication.collective,
            Kind.SEND: communication.send,
            Kind.RECV: communication.receive,
            Kind.LOAD: self._load,
            Kind.SYNC: self._sync,
            Kind.HOST: self._host,
        }

    def run(self) -> list[StageTimes]:
        """Return the times of all pipeline ranks; raises ScheduleError where ranks wait in a circle."""
        for rank in self.ranks:
            self._begin_step(rank)
        self._ready.extend(self.ranks)
        with np.errstate(invalid="ignore"):
            while self._ready:
                rank = self._ready.popleft()
                rank.parked = False
                self._advance(rank)
        stuck = [rank for rank in self.ranks if rank.step < self.steps]
        if stuck:
            op = stuck[0].program.ops[stuck[0].at]
            raise ScheduleError(
                "schedule", f"pipeline rank {stuck[0].number} never gets past {op.label} of stage {op.stage}",
                "correct the table",
            )  # fmt: skip
        return [rank.times for rank in self.ranks]

    def _begin_step(self, rank: PipelineRank) -> None:
        key = (rank.number, rank.step)
        rank.begin_step(self.conditions.get(key, Conditions()))
        rank.times.bounds[rank.step] = rank.host
        if self.noise is None:
            return
        kinds = [op.kind for op in rank.program.ops]
        kernels = kinds.count(Kind.COMPUTE)
        messages = sum(k in COMMUNICATION for k in kinds)
        rank.kernel_noise = self.noise.compute(*key, kernels)
        rank.transfer_noise = self.noise.transfer(*key, messages)
        rank.leaving_ns = self.noise.tail(*key)
        rank.load_noise = self.noise.load(*key)

    def _advance(self, rank: PipelineRank) -> None:
        run = self._run
        while rank.step < self.steps:
            while rank.at < rank.count:
                op = rank.program.ops[rank.at]
                if self._must_wait(rank, op):
                    rank.parked = True
                    return
                self._stops(rank)
                run[op.kind](rank, op)
                rank.at += 1
            self._end_step(rank)
            rank.step, rank.at = rank.step + 1, 0
            rank.times.bounds[rank.step] = rank.host
            rank.ends = [None] * rank.count
            if rank.step < self.steps:
                self._begin_step(rank)

    def _end_step(self, rank: PipelineRank) -> None:
        """Save and evaluate where planted: the host waits for both."""
        conditions = rank.conditions
        if conditions.evaluations is not None:
            noise = 1.0 if rank.kernel_noise is None else rank.kernel_noise.mean(axis=0).astype(np.float64)
            begin = np.maximum(rank.host, rank.free)
            rank.host = rank.beside("evaluation", begin, conditions.evaluations * noise)
            rank.free = np.maximum(rank.free, rank.host)
        if conditions.saves is not None:
            rank.host = rank.beside("checkpoint", rank.host, conditions.saves)

    @staticmethod
    def _must_wait(rank: PipelineRank, op: Op) -> bool:
        """Return whether the start of the operation is still unknown: it waits for an end that has no time yet."""
        if op.kind is Kind.COLLECTIVE and rank.streams.get(op.stream, rank.free) is None:
            return True
        return any(rank.ends[i] is None for i in op.after)

    def _stops(self, rank: PipelineRank) -> None:
        for place, index in rank.conditions.stops:
            if index == rank.at:
                rank.host = rank.host.copy()
                rank.host[place] = np.inf

    # -- operations of the host
    def _load(self, rank: PipelineRank, op: Op) -> None:
        cost: F64 | float = op.ns if rank.load_noise is None else op.ns * rank.load_noise
        if rank.conditions.late is not None:
            cost = cost + rank.conditions.late
        row = rank.row
        rank.times.issued[row] = rank.times.start[row] = rank.host
        rank.host = rank.host + cost
        rank.finish(rank.at, row, rank.host)

    def _host(self, rank: PipelineRank, op: Op) -> None:
        """Let the host compute."""
        row = rank.row
        rank.times.issued[row] = rank.times.start[row] = rank.host
        rank.host = rank.host + op.ns
        rank.finish(rank.at, row, rank.host)

    def _sync(self, rank: PipelineRank, op: Op) -> None:
        row = rank.row
        rank.times.issued[row] = rank.times.start[row] = rank.host
        done = rank.host if op.label == "wait" else np.maximum(rank.host, rank.free)
        for index in op.after:
            end = rank.ends[index]
            if end is not None:
                done = np.maximum(done, end)
        rank.host = done
        rank.finish(rank.at, row, done)

    # -- kernels
    def _compute(self, rank: PipelineRank, op: Op) -> None:
        """Launch the kernels of an operation and run them after the ends that it waits for."""
        conditions, row = rank.conditions, rank.row
        if op.segment and conditions.pauses:
            rank.segments += 1
            for pause, every in conditions.pauses:
                if rank.segments % every == 0:
                    rank.host = rank.host + pause
        if op.segment and conditions.retries:
            rank.allocations += 1
            for retry, every in conditions.retries:
                if rank.allocations % every == 0:
                    freed = np.where(retry > 0, np.maximum(rank.host, rank.free), rank.host)
                    rank.host = rank.beside("allocator_retries", rank.host, freed - rank.host + retry)
        self._queue(rank, op.launches)
        each: F64 | float = (
            self.host.launch if conditions.launch is None else self.host.launch + conditions.launch
        )
        if conditions.turns:
            rank.wait_for_turn(each * op.launches)
        first = rank.host + each
        rank.host = rank.host + each * op.launches
        took = self._kernel_ns(rank, op)
        begin = np.maximum(first + self.host.latency, rank.free)
        for index in op.after:
            begin = np.maximum(begin, rank.ended(index))
        finish = begin + took
        if op.launches > 1:  # the last kernel cannot start before its own launch
            finish = np.maximum(finish, rank.host + self.host.latency + took / op.launches)
        rank.times.issued[row] = rank.host
        start = rank.times.start[row]
        np.subtract(finish, took, out=start)
        self._account(rank, op, start)
        rank.queued.append((rank.launched, start))
        rank.free = finish
        rank.finish(rank.at, row, finish)

    @staticmethod
    def _queue(rank: PipelineRank, launches: int) -> None:
        """Let the host wait while the launch queue is full: until the kernel that many launches ago has started."""
        rank.launched += launches
        while rank.queued and rank.launched - rank.queued[0][0] >= LAUNCH_QUEUE:
            rank.host = np.maximum(rank.host, rank.queued.popleft()[1])

    def _kernel_ns(self, rank: PipelineRank, op: Op) -> F64 | float:
        took: F64 | float = op.ns
        noise = rank.kernel_noise
        if noise is not None:
            took = took * noise[rank.order[rank.at]].astype(np.float64)
        if op.copied:
            return took if rank.conditions.copies is None else took + rank.conditions.copies
        if rank.conditions.factor is not None:
            took = took * rank.conditions.factor
        if op.attention and op.micro_batch in rank.conditions.attention:
            took = took * rank.conditions.attention[op.micro_batch]
        if not rank.paced:
            return took
        usual = took
        for longer, ramp_ns in rank.paced:
            took = took + longer * np.clip(ramp_ns - rank.worked, 0.0, usual)
        rank.worked = rank.worked + usual
        return took

    def _account(self, rank: PipelineRank, op: Op, start: F64) -> None:
        """Charge the gap before a kernel to the operations that it waited for, and the rest to the host."""
        gap = np.maximum(start - rank.free, 0.0)
        waits, step = rank.times.waits, rank.step
        left = gap
        for index in sorted(op.after):
            end, other = rank.ends[index], rank.program.ops[index]
            if end is None:
                continue
            share = np.minimum(left, np.maximum(end - rank.free, 0.0))
            left = left - share
            name = other.group if other.group in waits else "dp"
            if other.kind is Kind.RECV:
                moved = np.minimum(share, rank.transfers.get(index, 0.0))
                waits["pp"][step] += moved
                waits["bubble"][step] += share - moved
            else:
                waits[name][step] += share
        waits["host"][step] += left

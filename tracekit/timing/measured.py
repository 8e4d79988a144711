"""The measurements of one run: operations, waits, steps, clocks and the mesh, before any analysis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.arrays import compact
from tracekit.axes import PARTS
from tracekit.errors import InputError
from tracekit.findings import Coverage
from tracekit.inference.mesh.group_uses import world_of
from tracekit.matching.channels import Channel
from tracekit.matching.clock import Clocks, align
from tracekit.matching.match import Operations, no_communication
from tracekit.mesh import Mesh
from tracekit.mesh.parts import ALL_TO_ALL
from tracekit.rank_events.coded_words import Column, numbered
from tracekit.steps.features import Features, read_features
from tracekit.steps.recorded_windows import with_late_begins, with_late_start
from tracekit.steps.step_ends import with_tails
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps
from tracekit.steps.steps import Steps, compute_in_steps, measure
from tracekit.store import Run
from tracekit.thresholds.slowrank import CANDIDATE_SHARE, MIN_LOST_SHARE
from tracekit.timing.buffered_sends import Buffered, buffered_sends
from tracekit.timing.waits import Waits, measure_waits
from tracekit.units import F64, I64, Mask


class NoWholeStepError(InputError):
    """No step was recorded whole on enough ranks."""


StepRange = tuple[int | None, int | None]
"""A half-open range of step numbers; None is an open end."""

Rows = list[I64]
"""Rows of `Steps`, in groups."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one run; times in ns."""

    run: Run
    ops: Operations
    waits: Waits
    steps: Steps
    clocks: Clocks
    mesh: Mesh
    buffered: Buffered  # which sends return without waiting for their receiver

    @cached_property
    def step_ns(self) -> float:
        """The mean time of a whole step, ns: of the program with the longest ones; others may run ahead."""
        return max(
            float(np.nanmean(self.steps.whole[self.program == one])) for one in np.unique(self.program)
        )

    @property
    def threshold_ns(self) -> float:
        """Return the cost from which a hypothesis is reported, ns a step."""
        return MIN_LOST_SHARE * self.step_ns

    @property
    def suspect_ns(self) -> float:
        """Return the excess from which a rank is suspected, ns a step."""
        return CANDIDATE_SHARE * self.step_ns

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks of the job without a usable trace."""
        return tuple(sorted(set(world_of(self.run, self.ops)) - set(self.ops.ranks)))

    @property
    def on_gpus(self) -> bool:
        """Return whether every rank read computes on a GPU."""
        return all(rank.on_gpu for rank in self.ops.per_rank.values())

    def ranks_of(self, rows: Iterable[int] | I64) -> list[int]:
        """Return the ranks in `rows`."""
        return [self.steps.ranks[row] for row in rows]

    def on_gpu(self, row: int) -> bool:
        """Return whether the rank in `row` computes on a GPU."""
        return self.ops.per_rank[self.steps.ranks[row]].on_gpu

    def kernels(self, row: int) -> StepKernels:
        """Return the compute kernels of the rank in `row`, in its steps."""
        return kernels_in_steps(self.run, self.ops, self.steps, row)

    def features(self, row: int) -> Features | None:
        """Return what the rank in `row` spends its time on; None where it has no step whole."""
        return read_features(self.run, self.ops, self.steps, self.steps.ranks[row])

    @cached_property
    def stages(self) -> Rows:
        """Rows of `steps` by pipeline stage, in stage order: the ranks that do the same work."""
        stage = np.array([self.mesh.stage(r) for r in self.steps.ranks], np.int64)
        return [np.flatnonzero(stage == s) for s in range(self.mesh.stages)]

    @cached_property
    def computed(self) -> F64:
        """The own time in which each rank computes, ranks × steps, ns; NaN where unknown."""
        return compute_in_steps(self.ops, self.steps)

    @cached_property
    def program(self) -> I64:
        """The number of the program of each rank, by row of `steps`."""
        return np.array([self.mesh.program(rank) for rank in self.steps.ranks], np.int64)

    def of_program(self, row: int) -> I64:
        """Return the rows of the ranks that run the program of the rank in `row`, which is among them."""
        return np.flatnonzero(self.program == self.program[row])

    @cached_property
    def alone_in_program(self) -> I64:
        """The rows of ranks that alone run their program: nothing shows how long it takes on a sound device."""
        _, at, many = np.unique(self.program, return_inverse=True, return_counts=True)
        return np.flatnonzero((many[at] == 1) & bool(self.mesh.programs))

    @cached_property
    def compared_stages(self) -> Rows:
        """The recorded stages with layers of one model: those of the program that has most of them."""
        recorded = [rows for rows in self.stages if len(rows)]
        programs = [self.program[rows[0]] for rows in recorded]
        most = max(programs, key=programs.count, default=0)
        return [rows for rows in recorded if self.program[rows[0]] == most]

    def stage_of(self, row: int) -> I64:
        """Return the rows of the ranks that do the same work as the rank in `row`, which is among them."""
        return next(rows for rows in self.stages if row in rows)

    @property
    def expert_groups(self) -> Rows:
        """Rows of `steps` by group that deals tokens to experts; by stage where no axis of experts is known."""
        dealing = [part for axis, part in self.mesh.parts.items() if PARTS[axis].deals_tokens]
        groups, known = [group for part in dealing for group in part.groups], set(self.steps.ranks)
        rows = [[self.steps.row(rank) for rank in group if rank in known] for group in groups]
        return [np.array(sorted(some), np.int64) for some in rows if len(some) > 1] if groups else self.stages

    @cached_property
    def analysed(self) -> Mask:
        """Whether each operation belongs to an analysed step."""
        if not self.steps.labelled:
            return np.ones(len(self.ops.step), bool)
        return np.isin(self.ops.step, self.steps.numbers)

    @cached_property
    def place(self) -> tuple[I64, I64]:
        """Row and column of `steps` by operation; the column means nothing outside the analysed steps."""
        steps, ops = self.steps, self.ops
        column = np.searchsorted(steps.numbers, ops.step) if steps.labelled else np.zeros_like(ops.rank)
        return np.searchsorted(steps.ranks, ops.rank), np.asarray(column, np.int64)

    def by_step(self, chosen: I64, spent: F64 | I64) -> F64:
        """Return the total of `spent`, one for each `chosen` analysed operation, by row and column of `steps`."""
        found = np.zeros(self.steps.own.shape)
        np.add.at(found, tuple(at[chosen] for at in self.place), spent)
        return found

    @cached_property
    def in_message(self) -> Mask:
        """Whether each operation is on a channel between two ranks; one without a channel takes the first channel's."""
        return self.ops.p2p[np.maximum(self.ops.channel, 0)]

    @property
    def unmeasured(self) -> tuple[int, ...]:
        """The ranks that recorded no analysed step whole: neither slowness nor health is known of them."""
        nothing = np.flatnonzero(np.isnan(self.steps.own).all(axis=1))
        return tuple(self.steps.ranks[row] for row in nothing.tolist())

    @cached_property
    def matched(self) -> Mask:
        """Whether each operation was matched with all members of its group."""
        if not len(self.waits.complete):
            return np.zeros(len(self.ops.start), bool)
        found = (self.ops.instance >= 0) & self.waits.complete[np.maximum(self.ops.instance, 0)]
        return np.asarray(found, bool)

    @cached_property
    def longest_waits(self) -> I64:
        """The longest wait of a member of each instance, ns."""
        longest, rows = np.zeros(len(self.waits.members), np.int64), self.ops.instance >= 0
        np.maximum.at(longest, self.ops.instance[rows], self.waits.wait[rows])
        return longest

    def most_in_kernel(self, late: F64) -> F64:
        """Return by operation the most that any message of its kernel is `late` (by instance), ns."""
        kernel, rows = self.ops.kernel, self.ops.instance >= 0
        most = np.zeros(int(kernel.max(initial=-1)) + 1)
        np.maximum.at(most, kernel[rows], late[self.ops.instance[rows]])
        return np.asarray(most[kernel], np.float64)

    @cached_property
    def coverage(self) -> Coverage:
        """The share of exposed communication time, over the analysed steps, that was matched with all members."""
        exposed = np.where(self.analysed, self.ops.exposed, 0).astype(np.float64)

        def share(chosen: Mask | slice) -> float | None:
            total = float(exposed[chosen].sum())
            return round(float(exposed[chosen][self.matched[chosen]].sum()) / total, 4) if total > 0 else None

        along = {name: share(self.axis == name) for name in self.axis.kinds()}
        return Coverage(share(slice(None)), {n: s for n, s in along.items() if s is not None})

    def _programs(self, channel: Channel) -> set[int]:
        """The programs of the members of a channel, as far as known; none where the job has one program."""
        programs = self.mesh.programs
        return {self.mesh.program(m) for m in channel.members if programs and m in self.mesh.coordinates}

    def axes_of(self, channel: Channel) -> tuple[str, ...]:
        """Return the axes along which the members of a channel differ; () unless a line, plane or block of one."""
        if len(self._programs(channel)) > 1:
            return ()  # no axis of a program extends into another
        if not channel.p2p:
            return self.mesh.dims_of(channel.members) or ()
        a, b = (self.mesh.coordinates.get(m) for m in channel.members)
        return tuple(d for d, x, y in zip(self.mesh.order, a, b, strict=True) if x != y) if a and b else ()

    @cached_property
    def axis(self) -> Column:
        """Return by operation the axes of its channel, as `cp_dp`; `other` fits no axes, `unknown` has no channel."""
        names = ["_".join(self.axes_of(c)) or "other" for c in self.ops.channels]
        words, number = numbered([*names, "unknown"])  # channel −1 takes the last name
        inside = self.inside
        codes = np.where(inside.codes == 0, number[self.ops.channel], inside.codes + np.int32(len(words)))
        return Column([*words, *inside.words], codes)

    @cached_property
    def inside(self) -> Column:
        """By operation the axis inside another along which it communicates; empty for all others.

        A group of experts may have the members of another group, as that of all replicas; then all-to-alls are theirs.
        """
        found = np.zeros(len(self.ops.start), np.int32)
        for number, (axis, part) in enumerate(self.mesh.parts.items(), 1):
            groups = set(map(frozenset, part.groups))
            channels = self.ops.channels
            mine = np.array([*(not c.p2p and frozenset(c.members) in groups for c in channels), False])
            alone = np.array([*(self.axes_of(c) == (axis,) for c in channels), False])
            found[mine[self.ops.channel] & (alone[self.ops.channel] | self.ops.among((ALL_TO_ALL,)))] = number
        return Column(["", *self.mesh.parts], compact(found))

    def shape_of(self, channel: Channel) -> tuple[object, ...]:
        """Return the axes of a channel; for part of an axis, as shards and replicas are, with the members' offsets.

        Channels of one shape connect ranks with the same relation on the mesh. Empty if ranks are unknown.
        """
        axes = self.axes_of(channel)
        at = [self.mesh.coordinates.get(m) for m in channel.members]
        known = [c for c in at if c is not None]
        if axes or len(known) < len(at):
            return (*axes, *self._programs(channel))
        columns = list(zip(*known, strict=True))
        along = [(d, c) for d, c in zip(self.mesh.order, columns, strict=True) if len(set(c)) > 1]
        return tuple((d, tuple(i - c[0] for i in c)) for d, c in along)


def measure_run(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> Measured:
    """Return the steps, clocks and waits of `run`; only the `wanted` steps, or all of them.

    Raises InputError where nothing can be compared: no communication, or no step recorded whole.
    """
    if not len(ops.start):
        raise no_communication(ops, InputError)
    steps = measure(ops, wanted)
    one_window = all(len(o.begins) == 1 for o in ops.per_rank.values())  # time between two is of no step
    if not steps.numbers or not (steps.labelled or one_window):
        known = sorted({int(n) for n in np.unique(ops.step) if n >= 0})
        which = f"steps {known[0]} to {known[-1]} were found" if known else "no step was found"
        if not steps.labelled:
            raise NoWholeStepError(
                "the traces mark no steps, and neither one window nor operations that repeat are common to all ranks; "
                "call step() of the profiler after every step"
            )
        raise NoWholeStepError(
            f"no step was recorded whole on enough ranks ({which}); record more steps or widen --steps"
        )
    clocks = align(ops)
    buffered = buffered_sends(ops, clocks)
    waits = measure_waits(ops, clocks, eager=buffered.eager)
    if len(steps.numbers) == 1:
        steps = with_late_start(ops, steps, clocks)
    found = Measured(run, ops, waits, with_tails(ops, steps), clocks, mesh, buffered)
    return replace(found, steps=with_late_begins(found.steps, found.stages))

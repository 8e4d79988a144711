"""One of two compared runs: its steps cut into parts, by rank, and its kernels."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.analysis.breakdown.parts import named, steps_of, waits_known
from tracekit.case.case import Case, without_steps
from tracekit.case.opened import opened, quality_of, ranks_of
from tracekit.findings import Quality, StepsFinding
from tracekit.findings.diff import ComparedRun
from tracekit.steps.step_kernels import kernels_in_steps
from tracekit.store import Run
from tracekit.timing.measured import StepRange
from tracekit.units import F64, ms

Place = tuple[int, ...]
"""The index on each axis, in the mesh's order."""

Kernels = dict[str, dict[int, float]]
"""The time of a kernel by its name and the column of the step, ns; a step without it is absent."""


@dataclass(frozen=True)
class Side:
    """The compared quantities of one run; `parts` by (rank, column of the step) → part → ns."""

    case: Case
    compared: ComparedRun
    parts: dict[tuple[int, int], dict[str, int]]

    @cached_property
    def places(self) -> dict[Place, int]:
        """The recorded ranks by place."""
        return {self.case.mesh.coordinates[rank]: rank for rank in self.case.ops.ranks}

    def step(self) -> F64:
        """The length of each step, mean over ranks, shape (steps,), ns."""
        return np.asarray(np.nanmean(self.case.steps.wall, axis=0), np.float64)

    def part(self, name: str, ranks: Sequence[int]) -> F64:
        """The time of the part in each step, mean over the `ranks` that recorded it, shape (steps,), ns."""
        return self._by_step(lambda parts: parts.get(name, 0), ranks)

    def own(self, rank: int) -> F64:
        """Return how long the rank worked in each step or idled by itself, shape (steps,), ns."""
        return self._by_step(lambda parts: sum(parts[p] for p in ("compute", "host", "idle")), [rank])

    def _by_step(self, value: Callable[[dict[str, int]], int], ranks: Sequence[int]) -> F64:
        columns = range(len(self.case.steps.numbers))
        held = [[value(self.parts[r, c]) for r in ranks if (r, c) in self.parts] for c in columns]
        return np.array([np.mean(h) if h else np.nan for h in held], np.float64)

    def kernels(self, ranks: Sequence[int]) -> Kernels:
        """The time of each compute kernel and kind of copy in each step, mean over the `ranks` on a GPU; ns."""
        case = self.case
        spent: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        asked = [r for r in ranks if case.ops.per_rank[r].on_gpu]
        whole = np.isfinite(case.steps.own[[case.steps.row(r) for r in asked]]).sum(axis=0)
        for rank in asked:
            asked_of = case.run, case.ops, case.steps, case.steps.row(rank)
            for found in (kernels_in_steps(*asked_of), kernels_in_steps(*asked_of, of="gpu_memcpy")):
                names, code = np.unique(found.name.astype(str), return_inverse=True)
                cell, of = np.unique(code * len(whole) + found.column, return_inverse=True)
                for at, ns in zip(cell.tolist(), np.bincount(of, found.lasted).tolist(), strict=True):
                    spent[str(names[at // len(whole)])][at % len(whole)] += ns
        return {name: {c: ns / int(whole[c]) for c, ns in held.items()} for name, held in spent.items()}


def side_of(
    run: Run,
    mesh: dict[str, int] | None,
    order: Sequence[str] | None,
    steps: Sequence[StepRange] | None,
    progress: Callable[[int, int], None] | None,
) -> Side:
    """Return the run as a side of a comparison. Arguments and errors as of `tracekit.breakdown`."""
    case, choice = opened(run, mesh, order, steps, progress)
    case = _of_whole_steps(case)
    known = waits_known(case)
    column = {number: i for i, number in enumerate(case.steps.numbers)}
    parts = {
        (rank, column[cell.step]): named(cell.parts)
        for rank in case.ops.ranks
        for cell in steps_of(case, rank, known).cells
    }
    measured = StepsFinding(case.steps.numbers, ms(float(np.nanmedian(case.steps.whole))))
    return Side(case, ComparedRun(ranks_of(case), choice.finding, measured, quality_of(case, choice)), parts)


def _of_whole_steps(case: Case) -> Case:
    """Return `case` without the step that windows cut, which is no sample of a step, if another one is left."""
    cut = case.steps.cut
    if cut is None or len(case.steps.numbers) < 2:
        return case
    kept = tuple(row for row in case.run.quality if row.kind != "cut_step")
    note = Quality("cut_step", None, 1, f"step {cut.number} is left out: windows cut it")
    return without_steps(replace(case, run=replace(case.run, quality=kept)), [cut.number], note)

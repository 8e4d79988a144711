"""One run, prepared for a verdict: operations, waits, steps, mesh, and a replayer that prices explanations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.excess import rank_excess, with_late_start
from tracekit.analysis.slowrank.mesh_choice import world_of
from tracekit.analysis.slowrank.statistics import Excess
from tracekit.analysis.slowrank.what_if import Replayer, prepare
from tracekit.errors import InputError
from tracekit.mesh import Mesh
from tracekit.store import Run
from tracekit.tables.clock import Clocks, align
from tracekit.tables.match import Operations
from tracekit.tables.steps import Steps, measure
from tracekit.tables.waits import Waits, eager_sends, measure_waits

StepRange = tuple[int | None, int | None]


@dataclass(frozen=True)
class Case:
    """Everything a verdict rests on."""

    run: Run
    ops: Operations
    waits: Waits
    steps: Steps
    clocks: Clocks
    mesh: Mesh
    replayer: Replayer
    found: Excess

    @property
    def step_ns(self) -> float:
        """Mean step time over ranks and analysed steps."""
        return float(np.nanmean(self.steps.wall))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job without a usable trace."""
        return tuple(sorted(set(world_of(self.run, self.ops)) - set(self.ops.ranks)))


def build(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> Case:
    """Measure steps, clocks and waits; InputError where there is nothing to compare."""
    if not len(ops.start):
        raise InputError(
            "no communication operation in any trace, so ranks cannot be compared; record communication as well"
        )
    steps = measure(ops, wanted)
    if not steps.numbers:
        known = sorted({int(n) for n in np.unique(ops.step) if n >= 0})
        told = f"steps {known[0]} to {known[-1]} were found" if known else "no step was found"
        raise InputError(
            f"no step was recorded whole on enough ranks ({told}); record more steps or widen --steps"
        )
    clocks = align(ops)
    eager = eager_sends(ops, clocks)
    waits = measure_waits(ops, clocks, eager=eager)
    if len(steps.numbers) == 1:
        steps = with_late_start(ops, steps, clocks)
    replayer = prepare(ops, waits, steps, clocks, eager=eager)
    return Case(run, ops, waits, steps, clocks, mesh, replayer, rank_excess(ops, waits, steps, mesh))

"""A run as every verdict reads it: what was measured, each rank's excess over its peers, and a model of the step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.analysis.slowrank.excess import rank_excess
from tracekit.analysis.slowrank.measured import Measured, StepRange, measure_run
from tracekit.analysis.slowrank.statistics import Excess
from tracekit.analysis.slowrank.table_model import TableModel, tabulated
from tracekit.analysis.slowrank.what_if import StepModel, model_of
from tracekit.mesh import Mesh
from tracekit.store import Run
from tracekit.tables.match import Operations


@dataclass(frozen=True)
class Case(Measured):
    """Everything a verdict rests on; times in ns."""

    model: StepModel | TableModel  # prices an explanation: what the step would take without it
    found: Excess  # own time of each rank beyond its peers

    @cached_property
    def residual_ns(self) -> float:
        """By how much the model with nothing changed misses the recorded mean step, ns: no smaller effect is proven."""
        return abs(self.model.recorded_ns - self.step_ns)

    @cached_property
    def free_model(self) -> StepModel | TableModel:
        """The step model in which every wait that is not matched may vanish: what a cure could save at the most."""
        return model_of(self, free=True) if isinstance(self.model, StepModel) else self.model

    @cached_property
    def pinned_model(self) -> StepModel | TableModel:
        """The step model in which every operation that was not matched with all members keeps its recorded length."""
        model = self.model
        if not isinstance(model, StepModel):
            return model
        lonely = self.ops.instance < 0
        fixed = np.where(lonely, self.ops.end - self.ops.start, np.array(model.fixed, np.float64))
        transfer = np.where(self.waits.complete, np.array(model.transfer, np.float64), self.waits.transfer)
        return replace(model, fixed=fixed.tolist(), transfer=transfer.tolist())


def build(run: Run, ops: Operations, mesh: Mesh, wanted: Sequence[StepRange] | None) -> Case:
    """The case of `run`; only the `wanted` steps, or all of them. Raises InputError where nothing can be compared."""
    measured = measure_run(run, ops, mesh, wanted)
    m, model = tabulated(measured) or (measured, model_of(measured))
    return Case(
        m.run, m.ops, m.waits, m.steps, m.clocks, m.mesh, m.buffered, model=model, found=rank_excess(m)
    )

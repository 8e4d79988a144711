"""What the step saves at most without one of its parts: the case's model of the step, replayed with that part removed.

The replay keeps the waits between ranks, so that a part hidden behind another rank brings nothing. Savings of several
parts do not add up: what one removes, another may hide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracekit.analysis.breakdown.parts import between_stages
from tracekit.case.case import Case
from tracekit.steps.medians import median_by_column
from tracekit.thresholds.slowrank import MOST_GAIN
from tracekit.units import F64, Mask


@dataclass(frozen=True)
class Removed:
    """The savings of one case, ns a step: never negative, and less than `step_ns`, the mean step cut into parts."""

    case: Case
    step_ns: float

    def work(self, less: Mapping[int, npt.NDArray[np.int64]]) -> float:
        """Return what is saved if each rank works `less` in each step: ns by rank, one entry a column of Steps."""
        own = self.case.steps.own.copy()
        for rank, ns in less.items():
            own[self.case.steps.row(rank)] -= ns
        return self._saved(self._worked(np.maximum(own, 0.0)))

    @cached_property
    def even(self) -> F64:
        """Own times, ranks × steps, ns, if ranks of a stage work no longer than their median, and stages equally long.

        What a long stage works less, the others work more, so that a stage is not merely made shorter.
        """
        own = self.case.steps.own.copy()
        stages = [rows for rows in self.case.stages if len(rows)]
        usual = np.full((len(stages), own.shape[1]), np.nan)
        for n, rows in enumerate(stages):
            usual[n] = median_by_column(own[rows])
        missing = np.isnan(usual).any(axis=0)  # a stage that was not recorded could work more or less
        shift = np.where(missing, 0.0, np.mean(usual, axis=0) - usual)
        for n, rows in enumerate(stages):
            own[rows] = np.maximum(np.fmin(own[rows], usual[n]) + shift[n], 0.0)
        return own

    def imbalance(self) -> float:
        """Return what is saved if ranks share the work evenly: over all stages, or part by part over each stage."""
        model = self.case.model
        parts = model.levelled_ns([rows for rows in self.case.stages if len(rows)])
        return self._saved(min(self._worked(self.even), parts))

    def bubble_left(self) -> float:
        """Return the share of the waits for messages of other stages that is left if ranks share the work evenly."""
        model = self.case.timeline
        if model is None:
            return 1.0
        recorded, left = (self._stood_between(*model.replay(own)) for own in (None, self.even))
        return min(left / recorded, 1.0) if recorded > 0 else 1.0

    def _stood_between(self, event: npt.NDArray[np.int64], held: F64) -> float:
        """Return how long messages of other stages hold up all ranks, ns."""
        known = event < len(self._between)
        return float(held[known][self._between[event[known]]].sum())

    @cached_property
    def _between(self) -> Mask:
        """Whether each operation is a message between stages."""
        return between_stages(self.case)

    def transfers(self, axis: str | None = None) -> float:
        """Return what is saved if transfers along `axis`, or all, take no time; ranks still wait for late members."""
        case, model = self.case, self.case.timeline
        mine = np.ones(len(case.axis), bool) if axis is None else case.axis == axis
        met = case.waits.first_row
        transfer = np.where(mine[met], 0.0, case.model.transfer[: len(met)])
        if model is None:
            return self._saved(case.model.step_ns(case.steps.own, transfer))
        alone = _padded(mine, len(model.fixed)) & (model.fixed >= 0)
        changed = model.retimed(fixed=np.where(alone, 0.0, model.fixed))
        return self._saved(changed.step_ns(case.steps.own, transfer))

    def pipeline_waits(self) -> float | None:
        """Return what is saved if no rank waits for a message of another stage; None of an operation table."""
        case, model = self.case, self.case.timeline
        if model is None:
            return None
        mine = _padded(self._between, len(model.instance))
        apart = replace(
            model, instance=np.where(mine, -1, model.instance), fixed=np.where(mine, 0.0, model.fixed)
        )
        return self._saved(apart.step_ns(case.steps.own))

    def longest_transfers_ns(self) -> float:
        """Return how long the busiest rank transfers along one axis in a step, ns: at least."""
        case = self.case
        joined = (case.ops.instance >= 0) & case.analysed
        rows = np.flatnonzero(joined)
        spent: dict[tuple[int, str], int] = {}
        took = case.waits.transfer[case.ops.instance[rows]].tolist()
        for rank, axis, ns in zip(case.ops.rank[rows].tolist(), case.axis[rows].tolist(), took, strict=True):
            spent[rank, axis] = spent.get((rank, axis), 0) + ns
        return max(spent.values(), default=0) / case.steps.count

    def _worked(self, own: F64) -> float:
        """Return the model's step with other own times, each rank's changed equally in all its parts, ns."""
        table = self.case.table
        return self.case.model.step_ns(own) if table is None else table.scaled_ns(own)

    def _saved(self, step_ns: float) -> float:
        """Return the saving of the recorded step, where the changed model's takes `step_ns`; not all of it."""
        base = self.case.base_ns
        share = (self.case.model.recorded_ns - step_ns) / base if base > 0 else 0.0
        return min(self.case.step_ns * max(share, 0.0), MOST_GAIN * min(self.case.step_ns, self.step_ns))


def _padded(mine: Mask, length: int) -> Mask:
    """Return the mask for operations of ranks without a trace too, which follow the recorded ones."""
    return np.concatenate([mine, np.zeros(length - len(mine), bool)])

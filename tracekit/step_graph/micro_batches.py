"""What micro-batches of unequal work cost the steps of an operation table: no rank is slow, the data are uneven.

A long micro-batch is long on every stage that it passes, forward and backward; noise and slow devices differ from stage
to stage. With only one stage, forward and backward are compared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.step_graph.table_model import TableModel
from tracekit.thresholds.slowrank import MAJORITY, USUAL_VARIATION
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64


def uneven_batches_ns(run: Measured, model: TableModel) -> float:
    """The saving of a step if every micro-batch needs the same work, ns; 0 where stages do not agree on the long ones.

    Each rank keeps its lasting excess over its peers, and each step its excess over other steps.
    """
    dealt = _Dealt(run, model)
    shared, correlation = dealt.shared
    if shared < USUAL_VARIATION or correlation < MAJORITY:
        return 0.0
    return model.recorded_ns - float(model.timeline.step_ns(dealt.evenly).mean())


def lasting_ns(run: Measured, model: TableModel, rows: Sequence[int]) -> float:
    """The saving of a step without the lasting slowness of `rows`, with all micro-batches alike, ns."""
    dealt = _Dealt(run, model)
    work = dealt.evenly.copy()
    for kind in dealt.kinds.values():
        level = {
            row: work[kind[model.row[kind] == row]].mean() for row in np.unique(model.row[kind]).tolist()
        }
        others = [v for row, v in level.items() if row not in rows] or list(level.values())
        for row in set(level).intersection(rows):
            work[kind[model.row[kind] == row]] *= min(float(np.median(others)) / max(level[row], 1.0), 1.0)
    return float((model.timeline.step_ns(dealt.evenly) - model.timeline.step_ns(work)).mean())


def unexplained_ns(run: Measured, model: TableModel) -> float:
    """The saving of a step if every operation takes the typical time of its type, compute by stage and type; ns."""
    work = model.typical.copy()
    for rows in _Dealt(run, model).kinds.values():
        work[rows] = model.timeline.work[rows].mean()
    return model.recorded_ns - float(model.timeline.step_ns(work).mean())


@dataclass(frozen=True)
class _Dealt:
    """The compute of micro-batches, by kind and stage."""

    run: Measured
    model: TableModel

    @cached_property
    def stage(self) -> dict[int, int]:
        """The pipeline stage of each row of Steps."""
        return {int(row): n for n, rows in enumerate(self.run.stages) for row in rows}

    @cached_property
    def kinds(self) -> dict[tuple[int, str, int], I64]:
        """(stage, name, chunk) → the operations that compute a micro-batch, or run once a step."""
        found: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        seen: dict[tuple[int, str, int], int] = defaultdict(int)
        for i in np.flatnonzero(~self.model.timeline.communication).tolist():
            operation = self.model.timeline.recording.operations[i]
            row = int(self.model.row[i])
            chunk = 0
            if operation.micro_batch >= 0:  # it passes each chunk of the stage once
                passed = (row, operation.name, operation.micro_batch)
                chunk, seen[passed] = seen[passed], seen[passed] + 1
            found[self.stage[row], operation.name, chunk].append(i)
        return {key: np.array(rows, np.int64) for key, rows in found.items()}

    @cached_property
    def evenly(self) -> F64:
        """The work if all micro-batches are alike, operations × steps, ns."""
        work = self.model.timeline.work.copy()
        for rows in self.kinds.values():
            mine = self.model.timeline.work[rows]
            usual = float(mine.mean())
            for row in np.unique(self.model.row[rows]).tolist():
                at = self.model.row[rows] == row
                work[rows[at]] = mine.mean(axis=0) * (float(mine[at].mean()) / max(usual, 1.0))
        return work

    @cached_property
    def shared(self) -> tuple[float, float]:
        """(coefficient of variation that all places of a micro-batch share, correlation between these places).

        An excess of a rank in all micro-batches of a step is left out, because intermittently slow hosts cause it too.
        """
        work = self.model.timeline.work / np.maximum(self.evenly, 1.0)
        places: dict[tuple[int, int], dict[tuple[int, str], list[F64]]] = defaultdict(
            lambda: defaultdict(list)
        )
        several = sum(len(rows) > 0 for rows in self.run.stages) > 1
        for (stage, name, _), rows in self.kinds.items():
            for row in np.unique(self.model.row[rows]).tolist():
                mine = rows[self.model.row[rows] == row]
                if len(mine) < 2:
                    continue
                off = work[mine] - work[mine].mean(axis=0)
                replica = min(self.run.mesh.pipeline(self.run.steps.ranks[row]))
                for order, values in enumerate(off):
                    places[replica, order][stage, "" if several else name].append(values)
        pairs = [
            (np.mean(values[a], axis=0), np.mean(values[b], axis=0))
            for values in places.values()
            for n, a in enumerate(values)
            for b in list(values)[n + 1 :]
        ]
        if not pairs:
            return 0.0, 0.0
        one, two = (np.concatenate(side) for side in zip(*pairs, strict=True))
        spread = float(np.sqrt(np.mean(one**2) * np.mean(two**2)))
        together = float(np.mean(one * two))
        return float(np.sqrt(max(together, 0.0))), together / spread if spread > 0 else 0.0

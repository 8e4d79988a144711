"""Fixes priced by the step model of matched traces.

A rank is typical if it works no longer than the median of its stage, a stage if its ranks work no longer than the ranks
of other stages, a transfer if it takes no longer than the median of the same message. Faster work keeps its time, so
that no fix can cost anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analysis.questions.fixes import Fix, Saved
from tracekit.axes import LEVELS
from tracekit.case.case import Case
from tracekit.case.cures import typical_without
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.step_graph.replay import StepModel, Usual
from tracekit.thresholds.slowrank import WORST_WORKERS
from tracekit.units import F64, I64, Mask

_MEANINGS: Final = {
    "rank": "rank {} works no longer than the median of its stage",
    "stage": "the ranks of stage {} work no longer than the ranks of the other stages",
    "axis": "no transfer along {} takes longer than the median of the same message",
    "op": "no {} takes longer than the median of the same message",
}


@dataclass(frozen=True)
class Transfers:
    """The matched operations of a case as transfers; all arrays have one entry an instance.

    late: excess of the transfer over the median of the same message, ns; 0 if it is not longer, or unknown.
    """

    late: F64
    axes: tuple[frozenset[str], ...]  # by channel: the axes that its members differ along
    channel: I64
    op: npt.NDArray[np.object_]
    inside: npt.NDArray[np.object_]  # the axis inside another along which it runs, or empty

    def along(self, axis: str) -> Mask:
        """Whether each instance runs along `axis`; groups that extend along several axes count with each of them."""
        within = np.array([axis in axes for axes in self.axes] or [False])
        return np.asarray(np.where(self.inside == "", within[self.channel], self.inside == axis), bool)

    def of_type(self, op: str) -> Mask:
        """Whether each instance is the operation `op`; a send and its receive are one message."""
        names = MESSAGES if op in MESSAGES else (op,)
        return among(self.op, names)

    def typical(self, recorded: F64, fixed: Mask) -> F64:
        """The `recorded` transfers (ns), made typical for `fixed` instances."""
        return np.where(fixed, np.maximum(recorded - self.late, 0.0), recorded)


class StepEngine:
    """Prices fixes on matched traces."""

    def __init__(self, case: Case, model: StepModel) -> None:
        self.case, self.model = case, model

    @property
    def base_ns(self) -> float:
        """Return the recorded step as the model computes it, ns."""
        return self.model.recorded_ns

    def known(self, key: str) -> tuple[str, ...]:
        """The values that `key` can have in this run."""
        case = self.case
        if key == "rank":
            return tuple(map(str, case.ops.ranks))
        if key == "stage":
            return tuple(str(i) for i, rows in enumerate(case.stages) if len(rows))
        if key == "axis":
            seen = {axis for c in case.ops.channels for axis in case.axes_of(c)} | {*case.inside.kinds()} - {
                ""
            }
            return (*(a for a in LEVELS if a in seen), *sorted(seen - set(LEVELS)))
        return tuple(sorted({str(op) for op in case.ops.op[case.analysed].tolist()}))

    def refusal(self, fix: Fix) -> str | None:
        """The reason that a known value cannot be made typical here, with any remedy; None where it can."""
        stages = [rows for rows in self.case.stages if len(rows)]
        if fix.key == "stage" and len(stages) < 2:
            return "there is no other stage to compare it with"
        if fix.key == "rank":
            row = self.case.steps.row(int(fix.value))
            if all(len(rows) < 2 for rows in stages if row in rows):
                alone = (
                    "only this rank was read"
                    if len(self.case.steps.ranks) == 1
                    else "no other rank of its stage was read"
                )
                return f"{alone}: there is no peer to compare it with; add its peers' traces"
        return None

    def meaning(self, fix: Fix) -> str:
        """The change by `fix`, as a clause."""
        return _MEANINGS[fix.key].format(fix.value)

    def ranks_of(self, fixes: Sequence[Fix]) -> tuple[int, ...]:
        """Return the ranks with own work that `fixes` change."""
        rows = {
            *self._ranks(fixes).tolist(),
            *(r for s in self._stages(fixes) for r in self.case.stages[s].tolist()),
        }
        return tuple(sorted(self.case.steps.ranks[r] for r in rows))

    def saved(self, fixes: Sequence[Fix]) -> Saved:
        """The saving of all `fixes` together."""
        rows = self._ranks(fixes)
        own = typical_without(self.case, rows) if len(rows) else self.case.steps.own.copy()
        for stage in self._stages(fixes):
            mine = self.case.stages[stage]
            own[mine] = np.fmin(own[mine], self._level_beside(self._stages(fixes))[None, :])
        fixed = np.zeros(len(self._transfers.late), bool)
        for fix in fixes:
            if fix.key == "axis":
                fixed |= self._transfers.along(fix.value)
            elif fix.key == "op":
                fixed |= self._transfers.of_type(fix.value)
        only_work = all(fix.key in ("rank", "stage") for fix in fixes)
        return self._priced(own, fixed, self.model.usual(self._peers(rows)), capped=only_work)

    def saved_by_all(self) -> Saved:
        """The saving if no rank works longer than the mean of the stages' medians, no transfer than its median."""
        own = np.minimum(self.case.steps.own, _over_known(np.nanmean, self._levels)[None, :])
        return self._priced(own, np.ones(len(self._transfers.late), bool), None, capped=False)

    def worst(self) -> tuple[int, ...]:
        """The ranks with the largest excess over their stage, as many as M_W takes."""
        mean = self.case.found.mean
        rows = [
            r
            for r in np.argsort(-np.nan_to_num(mean, nan=-np.inf), kind="stable").tolist()
            if np.isfinite(mean[r])
        ]
        return tuple(self.case.steps.ranks[r] for r in rows[: ceil(WORST_WORKERS * len(mean))])

    # -- pricing
    def _priced(self, own: F64, fixed: Mask, usual: Usual | None, *, capped: bool) -> Saved:
        """The saving of own times `own` and typical transfers of `fixed` instances; `capped` at the removed work."""
        likely = self.base_ns - self._step_ns(self.model, own, fixed, usual)
        models = None if self.case.coverage.matched == 1 else self.case.timelines
        if models is None:
            return Saved(likely, likely, likely)
        low = models.pinned.recorded_ns - self._step_ns(models.pinned, own, fixed, usual)
        high = self.base_ns - self._step_ns(models.free, own, fixed, usual)
        if capped:
            less = np.maximum(self.case.steps.own - own, 0.0)
            high = min(high, float(np.nansum(less)) / self.case.steps.count)
        return Saved(likely, min(low, likely), max(high, likely))

    def _step_ns(self, model: StepModel, own: F64, fixed: Mask, usual: Usual | None) -> float:
        recorded = model.transfer[: len(fixed)].copy()
        return model.step_ns(own, self._transfers.typical(recorded, fixed), usual)

    # -- what is fixed
    def _ranks(self, fixes: Sequence[Fix]) -> I64:
        """The rows of the fixed ranks."""
        return np.array(sorted(self.case.steps.row(int(f.value)) for f in fixes if f.key == "rank"), np.int64)

    @staticmethod
    def _stages(fixes: Sequence[Fix]) -> tuple[int, ...]:
        return tuple(int(f.value) for f in fixes if f.key == "stage")

    def _peers(self, rows: I64) -> dict[int, I64]:
        """The ranks of the stage of each fixed row that are not fixed; all others where every rank is fixed."""
        peers = {}
        for stage in self.case.stages:
            others = np.setdiff1d(stage, rows)
            for row in np.intersect1d(stage, rows):
                peers[int(row)] = others if len(others) else np.setdiff1d(stage, row)
        return peers

    def _level_beside(self, stages: Sequence[int]) -> F64:
        """The usual own time (by step, ns) of the stages outside `stages`; of all stages where none is outside."""
        with_ranks = [i for i, rows in enumerate(self.case.stages) if len(rows)]
        beside = [n for n, i in enumerate(with_ranks) if i not in stages] or list(range(len(with_ranks)))
        return _over_known(np.nanmedian, self._levels[beside])

    @cached_property
    def _levels(self) -> F64:
        """The lower median of own time over each recorded stage: stages × steps, ns."""
        return np.array([_lower_median(self.case.steps.own[rows]) for rows in self.case.stages if len(rows)])

    @cached_property
    def _transfers(self) -> Transfers:
        return transfers_of(self.case)


def _lower_median(values: F64) -> F64:
    """The lower median of each column's known rows, the faster one of two; NaN where no row is known."""
    ordered = np.sort(values, axis=0)  # NaN last
    known = np.maximum(np.isfinite(values).sum(axis=0), 1)
    return np.asarray(ordered[(known - 1) // 2, np.arange(values.shape[1])])


def _over_known(middle: Callable[..., F64], levels: F64) -> F64:
    """The `middle` (a mean or median) of each column's known rows; NaN where no row is known."""
    known = np.isfinite(levels).any(axis=0)
    result = np.full(levels.shape[1], np.nan)
    result[known] = middle(levels[:, known], axis=0)
    return result


def transfers_of(case: Case) -> Transfers:
    """Return the transfers of `case`; a message that travels before its receive is posted counts by its delivery."""
    ops, waits = case.ops, case.waits
    channel = ops.channel[waits.first_row]
    named = [case.axes_of(c) for c in ops.channels]
    _, kind = np.unique([f"{'p2p' if c.p2p else ''}{n}" for c, n in zip(ops.channels, named, strict=True)] or [""],
                        return_inverse=True)  # fmt: skip
    token, code = ops.messages[0], ops.messages[1][waits.first_row]
    message = kind[channel] * max(len(token), 1) + code
    delivery = waits.delivery.astype(np.float64)
    known = waits.complete & waits.timed & case.analysed[waits.first_row]
    late = np.zeros(len(delivery))
    order = np.flatnonzero(known)
    order = order[np.argsort(message[order], kind="stable")]
    for same in np.split(order, np.flatnonzero(np.diff(message[order])) + 1):
        if len(same):
            late[same] = np.maximum(delivery[same] - np.median(delivery[same]), 0.0)
    axes = tuple(frozenset(n) for n in named)
    return Transfers(late, axes, channel, ops.op[waits.first_row], case.inside[waits.first_row])

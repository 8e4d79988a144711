"""`numerics compare`: opens the captures, joins them, finds the first divergence, decides.

The matched replay comes from `--replay`, else from RUN/replay, else `make_replay` makes it; with none of them the
verdict rests on the baseline, the order plans and the run's invariants alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from numerics.columns import Frame, Names, frame, keys_of
from numerics.comparison.blind_spots import blind_spots
from numerics.comparison.explain import by_collective, by_copies, explain, format_of_plan
from numerics.comparison.first_divergence import Found, at_row, first_divergence, first_of, plain_axis
from numerics.comparison.invariants import Broken, broken_invariants
from numerics.comparison.largest_differences import picture, worst_tensors
from numerics.comparison.matched_replay import (
    MakeReplay,
    NoReplay,
    find_replay,
    narrower_format,
    plan_differences,
)
from numerics.comparison.missing_addends import Explanation
from numerics.comparison.preconditions import difference, other_model, thread_note
from numerics.comparison.row_pairs import Evidence
from numerics.comparison.row_table import RowTable, by_row
from numerics.comparison.tensor_table import Status, TensorTable, by_tensor
from numerics.comparison.verdict import Case, Decision, baseline_kinds, decide, growth_sentence
from numerics.errors import CaptureError
from numerics.findings import Cell, CompareFinding, Counts, Divergence, Worst
from numerics.order.affected_tensors import reach
from numerics.order.order_plan import read_plan
from numerics.store import open_capture
from tracekit.errors import InputError

WORST: Final = 10
ROUNDING: Final = 2.0**-5
"""Relative size up to which a difference may be that of another number format."""


@dataclass(frozen=True)
class Options:
    """What to compare with. `replay` None: RUN/replay where it is, else what `make_replay` makes (None: nothing)."""

    replay: Path | None = None
    make_replay: MakeReplay | None = None


def compare(parallel: Path, baseline: Path | None, options: Options | None = None) -> CompareFinding:
    """Compare a run with a baseline (or, without one, with its own matched replay).

    InputError where a capture is damaged, cut short or foreign; incomparable runs are a verdict.
    """
    return _Comparison(parallel, baseline, options or Options()).finding()


class _Comparison:
    """The steps of one comparison, with what they share."""

    def __init__(self, parallel: Path, baseline: Path | None, options: Options) -> None:
        self.parallel, self.base, self.options = parallel, baseline, options
        self.names = Names()
        self.run = frame(open_capture(parallel), self.names)
        self.baseline = None if baseline is None else frame(open_capture(baseline), self.names)
        self.notes: list[str] = []

    def finding(self) -> CompareFinding:
        """Run the comparison."""
        tensors = None
        if self.baseline is not None:
            reason = difference(self.run.capture, self.baseline.capture)
            if reason is not None:
                return self._incomparable(reason)
            tensors = by_tensor(self.run, self.baseline)
            reason = self._other_model(tensors)
            if reason is not None:
                return self._incomparable(reason)
            note = thread_note(self.run.capture, self.baseline.capture)
            self.notes += [note] if note else []
        return self._compared(tensors)

    def _incomparable(self, reason: str) -> CompareFinding:
        return CompareFinding(
            verdict="incomparable",
            proof="none",
            reason=reason,
            parallel=str(self.parallel),
            baseline=None if self.base is None else str(self.base),
            replay=None,
            notes=tuple(self.notes),
        )

    def _other_model(self, tensors: TensorTable) -> str | None:
        if self.baseline is None:
            return None
        own = np.isin(
            tensors.kind, [self.names.number(kind) for kind in ("param", "param_grad", "optimizer")]
        )
        wrong = np.flatnonzero(tensors.shapes_differ & own)
        text = None
        if len(wrong):
            left, right = int(tensors.left[wrong[0]]), int(tensors.right[wrong[0]])
            text = (
                f"{self.run.name('tensor', left)} is {self.run.name('global_shape', left) or 'a scalar'} in "
                f"{self.parallel} and {self.baseline.name('global_shape', right) or 'a scalar'} in {self.base}"
            )
        shared = int((tensors.status != Status.UNMATCHED).sum())
        return other_model(self.run.capture, self.baseline.capture, shared, text)

    def _compared(self, tensors: TensorTable | None) -> CompareFinding:
        case = Case(self.run, self.baseline, tensors, broken_invariants(self.run), decide=self._next_replay())
        kinds = baseline_kinds(case)
        found = None
        if kinds is None or kinds.real or kinds.reporting or case.broken:
            case = self._with_replay(case, needed=kinds is None or kinds.real)
        if case.replay is None:
            case = replace(case, beyond_plan=self._beyond_plan(case))
        if case.rows is not None and case.replay is not None:
            found = first_divergence(self.run, case.replay, case.rows)
            if found is not None:
                case = replace(case, explanation=self._explained(case, case.replay, case.rows, found))
        return self._report(case, decide(case), found)

    def _next_replay(self) -> str:
        return f"numerics replay {self.parallel} --out {self.parallel / 'replay'}"

    def _with_replay(self, case: Case, *, needed: bool) -> Case:
        """Find or make the replay and join it; the case keeps the reason where there is none to use."""
        try:
            replay = find_replay(self.run, self.options.replay, self.options.make_replay if needed else None)
        except NoReplay as reason:
            return replace(case, no_replay=str(reason))
        rows = by_row(self.run, replay)
        plan = plan_differences(self.parallel, replay.capture.folder)
        return replace(
            case, replay=replay, rows=rows, plan=plan, broken=self._really_broken(case.broken, rows)
        )

    def _explained(self, case: Case, replay: Frame, rows: RowTable, found: Found) -> Explanation | None:
        """Relation of the first divergence to the right value; small ones may be another format's rounding."""
        evidence = Evidence(self.run, replay, rows)
        answer = explain(evidence, found, self._sizes())
        if answer is not None and answer.dtype is not None:
            return answer
        by_plan = format_of_plan(case.plan)
        if by_plan is not None and evidence.relative(found.rows) < ROUNDING:
            return by_plan
        rounding = answer is None or answer.rounding
        if rounding and self.options.make_replay is not None and evidence.relative(found.rows) < ROUNDING:
            narrower = narrower_format(self.run, found, self.options.make_replay, self.names)
            answer = narrower or answer
        if answer is None or answer.rounding:
            owner = replay if found.missing else self.run
            answer = by_collective(found, owner) or by_copies(self.run, found, case.broken) or answer
        return answer

    def _beyond_plan(self, case: Case) -> tuple[int, ...]:
        """Rows of the first tensor that differs though no difference between the two order plans reaches it."""
        if case.tensors is None or self.base is None:
            return ()
        try:
            mine, other = read_plan(self.parallel), read_plan(self.base)
        except CaptureError as error:
            raise InputError(str(error)) from error
        if mine is None or other is None:
            return ()
        reached = reach(mine, other)
        table = case.tensors
        wrong = np.zeros(len(table.status), bool)
        for entry in np.flatnonzero(table.status == Status.DIFFERENT):
            phase, kind, tensor = (
                self.names.text(int(column[entry])) for column in (table.phase, table.kind, table.tensor)
            )
            wrong[entry] = not reached.may_differ(int(table.step[entry]), phase, kind, tensor)
        return first_of(self.run, self._rows_of(table, wrong))

    def _really_broken(self, broken: Sequence[Broken], rows: RowTable) -> list[Broken]:
        """Leave out what the replay says must be so: rows that contradict each other there as well."""
        kept = []
        for one in broken:
            matches = [int(rows.match[r]) for r in one.rows]
            equal = all(
                m >= 0 and rows.status[r] == Status.EQUAL for r, m in zip(one.rows, matches, strict=True)
            )
            if not equal:
                kept.append(one)
        return kept

    def _sizes(self) -> dict[str, int]:
        """Numbers of the run that a wrong factor may equal."""
        micro_batches = int(self.run["micro_batch"].max()) + 1
        sizes = {"micro-batches": micro_batches} if micro_batches > 1 else {}
        for row in np.flatnonzero(self.run.named("tensor", "valid_tokens") & (self.run["numel"] == 1))[:1]:
            sizes["valid tokens"] = int(self.run.reals["sum"][row])
        data: Any = (self.run.capture.config or {}).get("data")
        if isinstance(data, dict):
            for field, words in (("batch_size", "the batch"), ("seq_len", "the sequence length")):
                if isinstance(data.get(field), int):
                    sizes[words] = data[field]
        return sizes

    def _report(self, case: Case, decision: Decision, found: Found | None) -> CompareFinding:
        unexplained = self._unexplained(case)
        cells: tuple[Cell, ...] = ()
        worst: tuple[Worst, ...] = ()
        if case.tensors is not None and self.baseline is not None:
            cells = picture(self.run, self.baseline, case.tensors, unexplained)
            worst = worst_tensors(self.run, self.baseline, case.tensors, WORST)
        explanation = case.explanation.text if case.explanation else None
        if decision.verdict == "drift" and case.tensors is not None:
            explanation = growth_sentence(case.tensors)
        return CompareFinding(
            verdict=decision.verdict,
            proof=decision.proof,
            reason=decision.reason,
            parallel=str(self.parallel),
            baseline=None if self.base is None else str(self.base),
            replay=None if case.replay is None else str(case.replay.capture.folder),
            first_divergence=self._divergence(case, decision, found),
            explanation=explanation,
            tensors=self._counts(case, unexplained),
            worst=worst,
            invariants=tuple(one.sentence for one in case.broken[:20]),
            plan=tuple(one.sentence for one in case.plan[:50]),
            could_not_have_seen=blind_spots(self.run),
            next=decision.next,
            notes=tuple(self.notes),
            cells=cells,
        )

    def _divergence(self, case: Case, decision: Decision, found: Found | None) -> Divergence | None:
        if found is not None and decision.verdict in {"bug", "precision_policy"}:
            return self._with_axis(found.divergence, case.explanation)
        if decision.proof == "invariant" and case.broken:
            broken = case.broken[0]
            return at_row(self.run, (broken.row,), broken.sentence)
        if decision.proof == "infeasible_by_plan":
            return at_row(self.run, case.beyond_plan, "no difference between the two order plans reaches it")
        if decision.verdict == "reporting_only" and case.rows is not None:
            rows = first_of(self.run, case.rows.different)
            return (
                at_row(self.run, rows, "differs from the matched replay, and is only reported")
                if rows
                else None
            )
        if case.tensors is None:
            return None
        status = Status.SIGNED_ZERO if decision.verdict == "signed_zero" else Status.DIFFERENT
        rows = first_of(self.run, self._rows_of(case.tensors, case.tensors.status == status))
        return at_row(self.run, rows, "first difference from the baseline") if rows else None

    def _with_axis(self, divergence: Divergence, explanation: Explanation | None) -> Divergence:
        """Take the axis from the relation where the place alone does not tell it."""
        if explanation is None or explanation.axis is None or divergence.axis is not None:
            return divergence
        return replace(divergence, axis=plain_axis(self.run, explanation.axis))

    def _rows_of(self, tensors: TensorTable, entries: np.ndarray) -> np.ndarray:
        """Rows of the run that hold parts of some of the tensors compared; reported values only where alone."""
        metric = tensors.kind == self.names.number("metric")
        entries = entries & ~metric if (entries & ~metric).any() else entries
        columns = ("step", "phase", "kind", "tensor")
        wanted = keys_of(*(getattr(tensors, c)[entries] for c in columns))
        mine = np.isin(keys_of(*(self.run[c] for c in columns)), wanted)
        return np.flatnonzero(mine & (self.run["replica"] == 0) & (self.run["partial"] < 0))

    def _unexplained(self, case: Case) -> np.ndarray:
        """Entries of the tensor table whose rows differ from the replay, or that nothing explains."""
        if case.tensors is None:
            return np.zeros(0, bool)
        different = np.asarray(case.tensors.status == Status.DIFFERENT)
        if case.rows is None:
            return different
        columns = ("step", "phase", "kind", "tensor")
        wrong = case.rows.different
        bad = np.unique(keys_of(*(self.run[c][wrong] for c in columns)))
        entries = keys_of(case.tensors.step, case.tensors.phase, case.tensors.kind, case.tensors.tensor)
        return np.asarray(different & np.isin(entries, bad))

    def _counts(self, case: Case, unexplained: np.ndarray) -> Counts:
        replayed = 0 if case.rows is None else case.rows.compared
        wrong = 0 if case.rows is None else len(case.rows.different)
        if case.tensors is None:
            return Counts(rows_replayed=replayed, rows_different=wrong)
        status = case.tensors.status
        compared = int((status != Status.UNMATCHED).sum())
        different = int((status == Status.DIFFERENT).sum())
        return Counts(
            compared=compared,
            identical=compared - different,
            explained=different - int(unexplained.sum()),
            unexplained=int(unexplained.sum()),
            only_one=int((status == Status.UNMATCHED).sum()),
            rows_replayed=replayed,
            rows_different=wrong,
        )

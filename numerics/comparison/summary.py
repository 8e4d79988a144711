"""Sums the evidence and the decision up in the finding: counts, place, largest differences and picture."""

from dataclasses import replace

import numpy as np

from numerics.columns import Columns
from numerics.comparison.blind_spots import blind_spots
from numerics.comparison.explanations.explanation import Explanation
from numerics.comparison.first_divergence import Found, at_row, first_of
from numerics.comparison.joins.largest_differences import largest_differences
from numerics.comparison.joins.mesh_axes import plain_axis
from numerics.comparison.joins.module_map import module_map
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.comparison.next_step import what_explains
from numerics.comparison.verdict import Case, Decision, growth_sentence
from numerics.findings import Cell, CompareFinding, Counts, Divergence, TensorDifference
from numerics.keys import Ints, keys_of
from numerics.thresholds.report import INVARIANTS_LISTED, PLAN_LISTED, WORST_TENSORS


def incomparable(run: Columns, baseline: Columns, reason: str) -> CompareFinding:
    """Return the finding that two runs cannot be compared."""
    return CompareFinding(
        verdict="incomparable",
        proof="none",
        reason=reason,
        parallel=str(run.capture.folder),
        baseline=str(baseline.capture.folder),
        replay=None,
    )


def other_way_round(run: Columns, baseline: Columns, after: int) -> CompareFinding:
    """Return the finding that the baseline goes on from a step of the run, and not from all of its state."""
    folders = run.capture.folder, baseline.capture.folder
    reason = (
        f"the baseline goes on after step {after} of the run, and not from all of its state; compared the other way "
        "round, the answer names what it lost"
    )
    return replace(
        incomparable(run, baseline, reason),
        verdict="undecided",
        next=f"numerics compare --parallel {folders[1]} --baseline {folders[0]}",
    )


def finding_of(case: Case, decision: Decision, found: Found | None, notes: tuple[str, ...]) -> CompareFinding:
    """Return the finding of a decided case; `found` is the first divergence from the replay, if there is one."""
    unexplained = _unexplained(case, decision)
    cells: tuple[Cell, ...] = ()
    largest: tuple[TensorDifference, ...] = ()
    explanation = case.explanation.text if case.explanation else None
    if case.tensors is not None and case.baseline is not None:
        cells = module_map(case.run, case.baseline, case.tensors, unexplained)
        largest = largest_differences(case.run, case.baseline, case.tensors, WORST_TENSORS)
        if decision.verdict == "drift" and case.apart is None:
            explanation = growth_sentence(case.tensors)
    place = _divergence(case, decision, found)
    unexplained_next = None
    if decision.verdict == "bug" and explanation is None and place is not None:
        unexplained_next = what_explains(case.run.capture, place.tensor)
    return CompareFinding(
        verdict=decision.verdict,
        proof=decision.proof,
        reason=decision.reason,
        parallel=str(case.run.capture.folder),
        baseline=_folder(case.baseline),
        replay=_folder(case.replay),
        first_divergence=place,
        explanation=explanation,
        tensors=_counts(case, unexplained),
        largest_differences=largest,
        invariants=tuple(one.sentence for one in case.broken[:INVARIANTS_LISTED]),
        plan=tuple(one.sentence for one in case.plan[:PLAN_LISTED]),
        could_not_have_seen=blind_spots(case.run),
        next=decision.next or unexplained_next,
        notes=notes,
        cells=cells,
    )


def _folder(side: Columns | None) -> str | None:
    return None if side is None else str(side.capture.folder)


def _divergence(case: Case, decision: Decision, found: Found | None) -> Divergence | None:
    """Return the place to name: the decision's, the first divergence, broken invariant, or the first difference."""
    if decision.where is not None:
        return decision.where
    if found is not None and decision.verdict in {"bug", "precision_policy", "rounding"}:
        return _with_axis(case.run, found.divergence, case.explanation)
    if decision.proof == "invariant" and case.broken:
        broken = case.broken[0]
        return at_row(case.run, (broken.row,), broken.sentence)
    if decision.proof == "infeasible_by_plan":
        return at_row(case.run, case.beyond_plan, "no difference between the two order plans reaches it")
    if decision.verdict == "reporting_only" and case.rows is not None:
        rows = first_of(case.run, case.rows.different)
        seen = "differs from the matched replay, and is only reported"
        return at_row(case.run, rows, seen) if rows else None
    if case.tensors is None:
        return None
    status = Status.SIGNED_ZERO if decision.verdict == "signed_zero" else Status.DIFFERENT
    rows = first_of(case.run, rows_of(case.run, case.tensors, case.tensors.status == status))
    return at_row(case.run, rows, "first difference from the baseline") if rows else None


def _with_axis(run: Columns, divergence: Divergence, explanation: Explanation | None) -> Divergence:
    """Return the divergence with the axis from the relation, if the place alone does not give it.

    A gradient is reduced over data and context ranks at once: an axis of another size than the factor is not named.
    """
    if explanation is None:
        return divergence
    other = bool(explanation.sizes) and divergence.axis not in explanation.sizes
    if divergence.axis is not None and not (
        other and divergence.phase == "reduce" and not divergence.collective
    ):
        return divergence
    axis = explanation.axis
    return replace(divergence, axis=None if axis is None else plain_axis(run, axis))


def rows_of(run: Columns, tensors: TensorTable, entries: np.ndarray) -> Ints:
    """Return the run's rows that hold parts of the marked entries; reported values only if there is nothing else."""
    metric = tensors.kind == run.names.number("metric")
    entries = entries & ~metric if (entries & ~metric).any() else entries
    columns = ("step", "phase", "kind", "tensor")
    wanted = keys_of(*(getattr(tensors, c)[entries] for c in columns))
    mine = np.isin(keys_of(*(run[c] for c in columns)), wanted)
    return np.flatnonzero(mine & (run["replica"] == 0) & (run["partial"] < 0))


def _unexplained(case: Case, decision: Decision) -> np.ndarray:
    """Mark the entries of the tensor table with rows that differ from the replay or, without one, are unexplained."""
    if case.tensors is None:
        return np.zeros(0, bool)
    different = np.asarray(case.tensors.status == Status.DIFFERENT)
    if case.rows is None:
        return different & (decision.verdict not in {"drift", "rounding"})
    columns = ("step", "phase", "kind", "tensor")
    wrong = case.rows.different
    bad = np.unique(keys_of(*(case.run[c][wrong] for c in columns)))
    return np.asarray(different & np.isin(keys_of(*(getattr(case.tensors, c) for c in columns)), bad))


def _counts(case: Case, unexplained: np.ndarray) -> Counts:
    """Count the tensors compared with the baseline and the rows compared with the replay."""
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

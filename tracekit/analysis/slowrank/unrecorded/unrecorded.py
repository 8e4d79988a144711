"""Ranks without a trace: what the step would be if no recorded rank waited for them.

Copies of recorded ranks take their places in the model, where these reproduce the recording, else relays those of whole
stages. A replay in which transfers with unrecorded members take no longer than sound ones shows what the recorded ranks
lose by waiting for them; one in which they take no time, unless complete operations show theirs, bounds what they may.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from tracekit.case.case import Case
from tracekit.case.wording import of_step, ranks_in_words
from tracekit.expected.nodes import nodes_with_unseen
from tracekit.expected.sound_transfers import longest_ns
from tracekit.step_graph.relays import least_transfers, usual_work_ns
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.table_model import TableModel
from tracekit.step_graph.unseen_delays import explained_ns, left_ns, missed_ns
from tracekit.step_graph.unseen_ranks import StandIns, with_unseen
from tracekit.thresholds.slowrank import LITTLE_SHARE, MINOR, MOST_STRETCHED
from tracekit.units import F64, I64, ms


@dataclass(frozen=True)
class Unseen:
    """What a step saves without waits for ranks without a trace, ns.

    most: if operations with them take no time, unless the recording shows their transfer. awaited: if they take as long
    as a sound transfer. ranks: those for whom the others wait longest, worst first.
    """

    most: float
    awaited: float
    ranks: tuple[int, ...]


def with_typical_unseen(case: Case) -> Case | None:
    """`case` with unrecorded ranks in its model; None where they do not matter, or the model misses clearly more.

    The waits in complete operations show which model holds: waits for unrecorded ranks keep their lengths in the other.
    """
    rows = _rows(case)
    if case.timeline is None or _worst(case, rows, case.ops.exposed[rows]) < case.threshold_ns:
        return None
    found = _stand_ins(case)
    if found is None or left_ns(case, found.model) >= case.threshold_ns:
        return None
    much = max(missed_ns(case, case.timeline), LITTLE_SHARE * case.step_ns)
    if not found.relayed and missed_ns(case, found.model) > much:
        return None
    slowest = _with_unseen(case, case.pinned_model, copied=found.copied) if found.relayed else None
    return replace(case, model=found.model, seen=case.model, slowest=slowest.model if slowest else None)


def waited_for_unseen(case: Case, own: F64) -> Unseen:
    """Return what waits for ranks without a trace cost, at most what a rank spends in operations with them.

    The bound takes the times `own` (ranks × steps, ns), those without slow recorded ranks, which may hide such a wait,
    and adds the model's error. An operation table has no replay of its waits: all time beyond transfers may be waiting.
    """
    rows = _rows(case)
    if not len(rows):
        return Unseen(0.0, 0.0, ())
    exposed = case.ops.exposed[rows].astype(np.float64)
    held, lasted = _worst(case, rows, exposed), _lasted(case, rows)
    least, shown = (of[rows] for of in least_transfers(case))
    sound, sent = np.minimum(least, longest_ns(case, rows, lasted)), np.where(shown, least, 0.0)
    ranks = _behind(case, rows, np.minimum(lasted - sound, exposed))
    copied = case.timeline if case.seen is not None and case.slowest is None else None
    model = copied or case.early_model.pinned(case).of_traces
    if model is None:
        return Unseen(_worst(case, rows, exposed - sent), 0.0, ranks)
    missed = case.pinned_residual_ns if copied is None else case.residual_ns
    most = min(_saved_ns(case, model, rows, sent, own) + missed, held)
    usual = usual_work_ns(case, case.found)
    chosen = _stand_ins(case) if case.slowest else None
    typical = _with_unseen(case, model, usual, usual, copied=chosen.copied) if chosen else None
    replayed = typical.model if typical else model
    longer = max(model.recorded_ns - replayed.recorded_ns, 0.0)
    awaited = min(_saved_ns(case, replayed, rows, sound, case.steps.own) + longer, most)
    late = late_alone(case, ranks) if awaited >= case.threshold_ns else {}
    clear = max(late.values(), default=0.0) >= case.threshold_ns
    return Unseen(most, awaited, tuple(late) if clear else ranks)


def late_alone(case: Case, likely: Collection[int]) -> dict[int, float]:
    """Return by rank without a trace how long one recorded rank waits that its delay explains, ns a step.

    The worst comes first. Empty beside relays. Behind the first few only ranks that are `likely`.
    """
    copies = _stand_ins(case)
    return explained_ns(case, copies, likely) if copies and not copies.relayed else {}


def reason_of(case: Case, unseen: Unseen) -> str:
    """Return the sentence on how long the recorded ranks wait, or may wait, and for which ranks."""
    found, most = unseen.awaited >= case.threshold_ns, of_step(case, unseen.most)
    spent = f"wait {ms(unseen.awaited):.1f} to {most}" if found else f"spend {most}"
    doubt = "" if found else ", and no recorded operation shows whether they wait there"
    ranks = unseen.ranks if found else sorted(unseen.ranks)  # worst first, where some are worse
    traces = "its trace" if len(ranks) == 1 else "their traces"
    return f"the ranks read {spent} in groups with {ranks_in_words(ranks)}, which left no trace{doubt}; add {traces}"


def _stand_ins(case: Case) -> StandIns | None:
    """The model of recorded ranks with likely ones for those without a trace, if there is any; the case keeps it.

    Where copies beside relays leave waits of the threshold, all of the unrecorded ranks are relays.
    """
    kept: dict[str, StandIns | None] = vars(case)
    if "stand_ins" not in kept:
        model, usual = case.seen or case.model, usual_work_ns(case, case.found)
        found = _with_unseen(case, model, usual, copied=True)
        if found and found.relayed and left_ns(case, found.model) >= case.threshold_ns:
            found = _with_unseen(case, model, usual, copied=False) or found
        kept["stand_ins"] = found
    return kept["stand_ins"]


def _with_unseen(case: Case, model: StepModel | TableModel, *paces: float, copied: bool) -> StandIns | None:
    """`model` with ranks without a trace and `paces` of relays; None for an operation table, or without such ranks."""
    traced, nodes = model.of_traces, nodes_with_unseen(case)
    return with_unseen(case, traced, case.found, nodes, *paces, copied=copied) if traced else None


def _rows(case: Case) -> I64:
    """The analysed operations that ranks without a trace take part in, or may.

    Operations without a known peer or group, of whatever kind, may have such members.
    """
    ops, missing = case.ops, frozenset(case.missing)
    absent = np.array([*(not missing.isdisjoint(c.members) for c in ops.channels), bool(missing)])[
        ops.channel
    ]
    return np.flatnonzero(absent & case.analysed)


def _lasted(case: Case, rows: I64) -> F64:
    """The duration of each of `rows`, of a collective that of its last recorded member, ns."""
    ops, number = case.ops, case.ops.instance[rows]
    together = (number >= 0) & ~case.in_message[rows]
    shortest = case.waits.transfer[np.where(together, number, 0)] if together.any() else 0
    return np.where(together, shortest, ops.end[rows] - ops.start[rows]).astype(np.float64)


def _saved_ns(case: Case, model: StepModel, rows: I64, longest: F64, own: F64) -> float:
    """What a step of `model` saves if the operations in `rows` take no longer than `longest`, ns.

    Ranks take the times `own`, without the most that operations which take no time add to kernels beside them. Nor do
    copies of ranks then hold others up in operations of unknown members.
    """
    number, none = model.instance[rows], rows[longest == 0]
    fixed, transfer = model.fixed.copy(), model.transfer.copy()
    fixed[rows] = np.minimum(fixed[rows], longest)  # -1 where it does not complete by itself
    np.minimum.at(transfer, number[number >= 0], longest[number >= 0])
    if len(none):
        copies = slice(len(case.ops.start), None)
        fixed[copies] = np.minimum(fixed[copies], 0.0)
        beside = (case.ops.end - case.ops.start - case.ops.exposed)[none].astype(np.float64)
        own = np.maximum(own - MOST_STRETCHED * case.by_step(none, beside), 0.0)
    return max(model.recorded_ns - model.retimed(fixed=fixed, transfer=transfer).step_ns(own), 0.0)


def _worst(case: Case, rows: I64, spent: F64 | I64) -> float:
    """The largest total of what the operations `rows` have `spent` on one rank, ns a step, at most the step."""
    lost = np.bincount(case.ops.rank[rows], spent, 1)
    return min(max(float(lost.max()), 0.0) / case.steps.count, case.step_ns)


def _behind(case: Case, rows: I64, longer: F64) -> tuple[int, ...]:
    """The ranks without a trace, by the time that operations with them take `longer`, ns; all if none takes longer.

    Unrecorded members of the group in which others wait longest cannot be separated: all are named or none.
    """
    missing = frozenset(case.missing)
    blame, groups = defaultdict[int, float](float), defaultdict[tuple[int, ...], float](float)
    for number, value in zip(case.ops.channel[rows].tolist(), longer.tolist(), strict=True):
        members = case.ops.channels[number].members if number >= 0 else ()
        groups[members] += value
        for rank in missing.intersection(members):
            blame[rank] += value
    worst = max(blame.values(), default=0.0)
    kept = {r for r, v in blame.items() if v > 0 and v >= MINOR * worst}
    first = max(groups, key=lambda g: (groups[g], g), default=())
    if kept.intersection(first):
        kept |= missing.intersection(first)
    return tuple(sorted(kept, key=lambda r: (-blame[r], r))) or tuple(sorted(missing))

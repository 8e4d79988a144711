"""`tracekit hang` as text and as JSON (contract `tracekit.hang/1`), from one finding.

The verdict is the first line; then come the culprits, each with the call and its stack, and then the doubts.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from tracekit.findings.hang import Culprit, CulpritKind, GroupRef, HangFinding, Side
from tracekit.report.documents import CulpritDocument, GroupDocument, HangDocument, SideDocument
from tracekit.report.hang_words import (
    call_text,
    calls_shown,
    clean,
    folded,
    groups_text,
    hosts_text,
    kind_text,
    least_most,
    ranks_text,
    side_ranks,
    some_ranks,
    span,
    stacks_of,
)
from tracekit.report.shared_text import mesh_line
from tracekit.report.slowrank_json import mesh_document, quality_document, ranks_document
from tracekit.thresholds.report import CULPRITS_SHOWN, FRAMES_SHOWN, REJECTED_SHOWN

TITLES = {
    "hang": "hang",
    "mismatch": "mismatch",
    "none": "no hang",
    "inconclusive": "inconclusive",
}

NEXT: Final[dict[CulpritKind, str]] = {
    "host_stalled": "take a py-spy dump of it; look for a data loader, a lock, or a branch that no peer takes",
    "device_stalled": "look in dmesg for Xid errors and ECC, and for a kernel before the call that does not end",
    "mismatched_call": "find the code that decides which call it makes, with what shape and type",
    "missing_dump": "check whether its node crashed, is unreachable, or killed it for lack of memory",
    "died": "look at what ended it; the time-outs of the other ranks follow from that",
    "never_joined": "check whether its process started, and whether its host reaches the address of the store",
}
"""The next step for each kind of culprit."""


NEXT_ORDER: Final = (
    "look in the program for a branch, a loop or an order that only this rank takes (a condition on the rank or on "
    "data, a loop over a set)"
)
"""The next step for a rank that made other calls than its peers, or in another order."""


def hang_document(finding: HangFinding) -> HangDocument:
    """Return the finding as a JSON-ready dict of the contract `tracekit.hang/1`."""
    mesh = finding.mesh
    return {
        "schema": "tracekit.hang/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": None if mesh is None else mesh_document(mesh),
        "verdict": finding.verdict,
        "reason": finding.reason,
        "quality": [quality_document(q) for q in finding.quality],
        "culprits": [_culprit(c) for c in finding.culprits],
        "first_group": finding.first_group,
        "victims": list(finding.victims),
        "candidates": list(finding.candidates),
        "to_decide": finding.to_decide,
        "open_calls": [
            {"group": _group(o.group), "seq": o.seq, "sides": [_side(s) for s in o.sides]}
            for o in finding.open_calls
        ],
        "waits": [_side(s) for s in finding.waits],
    }


def _group(group: GroupRef) -> GroupDocument:
    return {"name": group.name, "desc": group.desc, "dim": group.dim, "ranks": list(group.ranks)}


def _side(side: Side) -> SideDocument:
    return {"ranks": list(side.ranks), "call": side.text, "stack": list(side.stack)}


def _culprit(culprit: Culprit) -> CulpritDocument:
    """Return one culprit as a dict; empty `sides` and `how` are left out."""
    call = culprit.collective
    document: CulpritDocument = {
        "rank": culprit.rank,
        "host": culprit.host,
        "kind": culprit.kind,
        "group": _group(culprit.group),
        "collective": {
            "op": call.op,
            "seq": call.seq,
            "input_sizes": None if call.input_sizes is None else [list(s) for s in call.input_sizes],
            "dtype": call.dtype,
        },
        "last_enqueued": culprit.last_enqueued,
        "group_enqueued": culprit.group_enqueued,
        "last_completed": culprit.last_completed,
        "stack": list(culprit.stack),
    }
    if culprit.sides:
        document["sides"] = [_side(s) for s in culprit.sides]
    if culprit.how:
        document["how"] = culprit.how
    return document


def hang_text(finding: HangFinding, *, verbose: bool = False) -> str:
    """Return the answer for a terminal or a log, with a newline at the end.

    verbose: also every culprit and rejected file, groups with their frontiers, and the last completed calls.
    """
    most_culprits, most_rejected = (None, None) if verbose else (CULPRITS_SHOWN, REJECTED_SHOWN)
    lines = [f"{TITLES[finding.verdict]}: {clean(finding.reason)}"]
    together = folded(finding.culprits)
    lines.extend(_culprits_line(same) for same in together[:most_culprits])
    if len(together) > (most_culprits or len(together)):
        more = sum(len(same) for same in together[CULPRITS_SHOWN:])
        lines.append(f"  … {more} more culprits (--verbose)")
    lines.extend(_open(finding))
    lines.extend(_sides(finding))
    lines.extend(_stacks(finding.culprits))
    ranks = finding.ranks
    lines.append("")
    lines.append(
        f"read {ranks.read} of {ranks.expected} ranks" + some_ranks("; without a dump: ", ranks.missing)
    )
    if finding.mesh is not None:
        lines.append(f"mesh {mesh_line(finding.mesh)}")
    if finding.victims:
        wait = "1 rank waits" if len(finding.victims) == 1 else f"{len(finding.victims)} ranks wait"
        lines.append(wait + some_ranks(": ", finding.victims))
    lines.extend(f"rejected {clean(r.path)}: {clean(r.reason)}" for r in ranks.rejected[:most_rejected])
    if not verbose and len(ranks.rejected) > REJECTED_SHOWN:
        lines.append(f"rejected {len(ranks.rejected) - REJECTED_SHOWN} more files (--verbose)")
    for row in finding.quality:
        path = f" {clean(row.path)}" if row.path else ""
        count = f" {row.count}" if row.count > 1 else ""
        lines.append(f"note: {row.kind.replace('_', ' ')}{path}:{count} {clean(row.detail)}".rstrip())
    lines.extend(f"next: {step}" for step in next_steps(finding.culprits))
    if verbose:
        lines.extend(_verbose(finding))
    return "\n".join(lines) + "\n"


def _open(finding: HangFinding) -> list[str]:
    """Return the candidates of an open answer, and what would decide between them if the reason does not say so."""
    lines = [some_ranks("  candidates: ranks ", finding.candidates)] if finding.candidates else []
    if finding.to_decide and finding.to_decide not in finding.reason:
        lines.append(f"  to decide: {finding.to_decide}")
    return lines


def next_steps(culprits: Sequence[Culprit]) -> list[str]:
    """Return what to look at, a sentence for each way in which ranks failed, with these ranks."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for culprit in culprits:
        by_order = culprit.how and culprit.sides  # it made other calls than its peers
        ranks[NEXT_ORDER if by_order else NEXT[culprit.kind]].append(culprit.rank)
    return [f"{ranks_text(sorted({*who}))}: {what}" for what, who in ranks.items()]


def _culprits_line(same: Sequence[Culprit]) -> str:
    """Return one line: ranks and hosts, kind, call with sizes and dtype, group, and the frontier in it."""
    culprit = same[0]
    at = f" on {hosts_text(same)}" if hosts_text(same) else ""
    frontier = (
        "no frontier known"
        if culprit.last_enqueued is None
        else f"enqueued {least_most(c.last_enqueued for c in same)} of {max(c.group_enqueued for c in same)}, "
        f"completed {least_most(c.last_completed for c in same)}"
    )
    named = f"  {ranks_text([c.rank for c in same])}{at}: {kind_text(culprit)}"
    if not culprit.group.ranks:
        return named
    return f"{named} at {call_text(culprit.collective)}, {groups_text(same)}: {frontier}"


def _sides(finding: HangFinding) -> list[str]:
    """Return the calls in dispute: the ranks of each version, the call, and the frame that differs."""
    lines: list[str] = []
    for title, sides in calls_shown(finding):
        lines.append(f"  {title}:")
        for side in sides:
            place = f", at {clean(side.place)}" if side.place else ""
            lines.append(f"    {side_ranks(side)}: {clean(side.text)}{place}")
    return lines


def _stacks(culprits: Iterable[Culprit]) -> list[str]:
    """Return the culprits' stacks, one block for all ranks that share a stack."""
    lines = []
    for title, stack in stacks_of(culprits):
        lines.append(f"  {title}:")
        lines.extend(f"    {clean(frame)}" for frame in stack[:FRAMES_SHOWN])
    return lines


def _verbose(finding: HangFinding) -> list[str]:
    """Return the groups with outstanding calls, the last completed call of every rank, and the assumptions."""
    lines = [""]
    if finding.groups:
        lines.append("groups with outstanding calls (least-greatest over members):")
        lines.append(f"  {'group':<48} {'enqueued':>17} {'completed':>17} {'waiting':>8}  behind")
    for row in finding.groups:
        name = f"{row.group.name} {row.group.desc}" + (f" [{row.group.dim}]" if row.group.dim else "")
        behind = some_ranks("", row.behind) + some_ranks(" no dump: ", row.missing)
        lines.append(
            f"  {clean(name)[:48]:<48} {span(row.enqueued):>17} {span(row.completed):>17} "
            f"{row.waiting:>8}  {behind}".rstrip()
        )
    if finding.last_done:
        lines.append("last completed collective:")
        lines.extend(
            f"  rank {d.rank}: {clean(d.op or 'call')} {d.seq} of group {clean(d.group)}"
            for d in finding.last_done
        )
    lines.extend(f"assumed: {clean(n)}" for n in finding.notes)
    return lines

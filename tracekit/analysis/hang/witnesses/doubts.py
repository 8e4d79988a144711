"""Answers of the rules that rest on logs or on RAS alone: kept, or left open where such evidence cannot carry them.

A line tells of a group only where it timed out, or of the job's group. A rank that is behind there may wait elsewhere.
RAS counts launches, at a moment of its own on each rank. Part of `judge`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tracekit.analysis.hang.wait_chains import all_explained, unseen_waits
from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open, note
from tracekit.evidence.ras_counts import moves
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names
from tracekit.thresholds.evidence import MIN_STACKS

MORE_LOGS: Final = "add the logs of all ranks, py-spy dumps of the candidates, or flight-recorder dumps"
RAS_AGAIN: Final = "ask ncclras a second time and give both answers: counts that do not grow show a hang"
_INSIDE: Final = (
    "from a log alone, a rank that waits inside the call looks like one that never made it (torch counts a call "
    "once it has returned); a py-spy dump shows the difference"
)
_STACKS_OF_LATE: Final = "take py-spy dumps of all ranks twice, some seconds apart, or flight-recorder dumps"
_SIZE: Final = "give --mesh, or the logs of all ranks"


def doubt_scene(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer of the rules, as far as its evidence carries it."""
    if finding.verdict == "none" and case.composed.still:
        reason = (
            "a call timed out in a group with members that the lines do not name, and no other is outstanding"
        )
        return leave_open(finding, reason, (), _SIZE)
    if (placed := _by_place(case, finding)) is not None:
        return placed
    if (launched := _may_move(case, finding)) is not None:
        return launched
    weak = _may_wait_elsewhere(case, finding) if finding.culprits else None
    if (finding.verdict == "inconclusive" or weak) and (gone := _unresponsive(case, finding)) is not None:
        return gone
    if weak is not None:
        return weak
    if (moved := _ras_moves(case, finding)) is not None:
        return moved
    if (lone := _lone_idle(case, finding)) is not None:
        return lone
    if (partial := _unknown_size(case, finding)) is not None:
        return partial
    if (
        finding.verdict == "inconclusive"
        and case.scene.graph.busy
        and finding.candidates
        and not finding.open_calls
    ):
        idle = case.world - case.scene.graph.stuck
        return replace(finding, candidates=tuple(sorted({*finding.candidates, *idle})))
    stalled = [
        c.rank for c in finding.culprits if c.kind == "host_stalled" and _sources(case, c.rank) == {"log"}
    ]
    return note(finding, _INSIDE) if stalled else finding


def _sources(case: Case, rank: int) -> set[str]:
    return case.composed.sources.get(rank, set())


def _kinds(case: Case) -> set[str]:
    return set().union(*case.composed.sources.values())


def _by_place(case: Case, finding: HangFinding) -> HangFinding | None:
    """Leave open which global rank it is, where lines tell the rank within a group alone."""
    if not finding.culprits or not any(log.by_place for log in case.bundle.logs):
        return None
    if case.bundle.world is not None and case.bundle.world == len(case.world):
        return None
    ranks = {c.rank for c in finding.culprits}
    reason = (
        f"{finding.reason}; but these lines number ranks within a group that they do not name, and no evidence "
        "shows that this group holds all ranks of the job"
    )
    return leave_open(finding, reason, ranks, _SIZE)


def _may_wait_elsewhere(case: Case, finding: HangFinding) -> HangFinding | None:
    """Leave open which of several ranks did not come, where logs or RAS show no more than that they are behind."""
    named = {
        c.rank for c in finding.culprits if c.kind == "host_stalled" and "dump" not in _sources(case, c.rank)
    }
    if not named:
        return None
    unsure = set(named)
    for call in case.scene.graph.pending:
        behind = {r for r in call.behind if not case.waits(r)}
        if named & behind:
            unsure |= behind | {r for r in (*call.missing, *call.unknown) if not case.waits(r)}
    if len(unsure) == 1:
        return None
    if (
        len(unsure) == len(named)
        and _all_groups_known(case, named)
        and not _share_an_agreed_group(case, named)
    ):
        return None
    reason = (
        f"{rank_names(unsure)} did not come to a call in which the others wait; one of them may wait for "
        "another, which this evidence would not show"
    )
    return leave_open(finding, reason, unsure, MORE_LOGS)


def _may_move(case: Case, finding: HangFinding) -> HangFinding | None:
    """Leave open what rests on NCCL's lines of calls alone: without a time-out, the log may end while the job moves."""
    if finding.verdict == "none" and _kinds(case) == {"calls"}:
        reason = "all ranks have launched the same calls by NCCL's lines, which do not show whether these end"
        return leave_open(finding, reason, (), _STACKS_OF_LATE)
    late = {c.rank for c in finding.culprits if c.kind != "mismatched_call" and not c.sides}
    if case.composed.still or not late or any(_sources(case, rank) != {"calls"} for rank in late):
        return None
    reason = (
        f"{rank_names(late)} launched fewer calls than the others by NCCL's lines, and no line shows a time-out: the "
        "log may end while the job moves"
    )
    return leave_open(finding, reason, late, _STACKS_OF_LATE)


def _lone_idle(case: Case, finding: HangFinding) -> HangFinding | None:
    """Name the one rank that waits for nothing while all others do, where lines do not tell for whom they wait.

    A send or receive in a log names no peer. Open where calls are in dispute, or some waiting starts elsewhere.
    """
    idle = case.world - case.scene.graph.stuck
    doubted = finding.verdict != "inconclusive" or finding.open_calls or len(case.world) < MIN_STACKS
    if doubted or len(idle) != 1:
        return None
    (rank,) = idle
    logged = {kind for r in case.scene.graph.stuck for kind in _sources(case, r)} <= {"log", "calls"}
    if not logged or not all_explained(case.scene, {rank, *unseen_waits(case.scene)}):
        return None
    if rank in case.ranks:
        how = "timed out in no call, while all other ranks wait"
        return note(accuse(case, finding, Named("host_stalled", {rank: how})), _INSIDE)
    if case.bundle.world is None:
        return None
    return accuse(case, finding, Named("missing_dump", {rank: "left no line, while all other ranks wait"}))


def _unresponsive(case: Case, finding: HangFinding) -> HangFinding | None:
    """Name the one rank whose process gives RAS no answer while ranks wait; several are left open."""
    silent = set().union(*(report.silent for report in case.bundle.ras[-1:])) - case.scene.graph.stuck
    if not silent or not case.scene.graph.stuck or finding.open_calls:
        return None
    if len(silent) == 1:
        return accuse(
            case, finding, Named("missing_dump", dict.fromkeys(silent, "gave NCCL's RAS no answer"))
        )
    reason = f"{rank_names(silent)} gave NCCL's RAS no answer; no evidence shows which of them stopped first"
    return leave_open(
        finding, reason, silent, "look whether their hosts answer, and in their logs for the first error"
    )


def _all_groups_known(case: Case, ranks: Iterable[int]) -> bool:
    """Return whether RAS, or NCCL's lines of calls, show every communicator of these ranks."""
    return all({"ras", "calls"} & _sources(case, rank) for rank in ranks)


def _may_wait_in_message(case: Case, ranks: Iterable[int]) -> bool:
    """Return whether RAS, the only evidence of a rank, lists more than one communicator of it.

    RAS counts no messages: a rank that is behind in a collective may wait in a send or receive of another communicator.
    """
    asked = {rank for rank in ranks if _sources(case, rank) == {"ras"}}
    own = Counter(
        rank
        for report in case.bundle.ras[-1:]
        for communicator in report.communicators
        for rank in asked.intersection(report.global_ranks(communicator).values())
    )
    return any(count > 1 for count in own.values())


def _share_an_agreed_group(case: Case, ranks: Iterable[int]) -> bool:
    """Return whether two of these ranks have launched the same calls of one group: one of these may be unfinished."""
    asked = set(ranks)
    for group in case.scene.groups:
        counts = [group.frontiers[rank].enqueued for rank in asked & group.frontiers.keys()]
        if len(set(counts)) < len(counts):
            return True
    return False


def _ras_moves(case: Case, finding: HangFinding) -> HangFinding | None:
    """Leave open, or call it no hang, where RAS is the only evidence and one answer of it shows no standstill."""
    if _kinds(case) != {"ras"}:
        return None
    moved = moves(case.bundle.ras)
    if moved:
        return leave_open(finding, "counts grew between two answers of ncclras: the job moves", (), None)
    if moved is None and finding.culprits:
        ranks = {c.rank for c in finding.culprits}
        reason = f"{rank_names(ranks)} launched fewer calls than the others, in one answer of ncclras"
        return leave_open(finding, reason, ranks, RAS_AGAIN)
    late = {c.rank for c in finding.culprits if c.kind == "host_stalled"}
    if late and _may_wait_in_message(case, late):
        reason = (
            f"{rank_names(late)} launched fewer calls than the others, and the counts do not grow; RAS counts no "
            "messages, and a send or receive may be where the waiting starts"
        )
        return leave_open(finding, reason, late, _STACKS_OF_LATE)
    if not finding.culprits and finding.verdict == "none":
        reason = "all ranks that answered have launched the same calls; RAS does not show whether these end"
        return leave_open(finding, reason, (), "take py-spy dumps of all ranks, or flight-recorder dumps")
    return None


def _unknown_size(case: Case, finding: HangFinding) -> HangFinding | None:
    """Leave open what rests on all members of a group, where the lines do not tell how many there are."""
    names = case.composed.partial
    missing = [c for c in finding.culprits if c.kind == "missing_dump" and c.group.name in names]
    if missing:
        ranks = {c.rank for c in missing}
        reason = (
            f"{rank_names(ranks)} left no line while their peers timed out, but no evidence shows how many "
            "ranks the job has: others may be silent, too"
        )
        return leave_open(finding, reason, ranks, _SIZE)
    waiting = {case.scene.groups[c.group].name for c in case.scene.graph.pending if c.in_flight}
    if finding.verdict == "inconclusive" and waiting & names and not finding.open_calls:
        reason = (
            "all ranks that left lines wait in the same call; no evidence shows how many ranks its group has, and a "
            "rank that left no line may not have come"
        )
        return leave_open(finding, reason, case.world - case.scene.graph.stuck, _SIZE)
    return None

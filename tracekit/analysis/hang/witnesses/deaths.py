"""Ranks with a process that ended by itself before the others waited: out of memory, an exception, a signal, no word.

The first that died is at fault; what died after the first time-out died of it. A rank that waited in a call of its own
until the time-out was alive. Ranks that lost the connection to a peer died of the peer's end. Part of `judge`.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open
from tracekit.evidence.log_deaths import Death
from tracekit.evidence.log_file import LogFile
from tracekit.evidence.log_lines import When
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names
from tracekit.thresholds.evidence import DIED_TOGETHER_S, FEWEST_WITNESSES
from tracekit.thresholds.hang import NAMED_IN_DOUBT

_PEER_ENDED: Final = re.compile(r"[Cc]losed by (?:remote )?peer|reset by peer|remote process exited")
"""What a rank's exception says where a peer's process ended in the middle of a call."""
_UNLIKE: Final = re.compile(r"mismatch between collectives")
"""What a rank's exception says where a peer's call is unlike its own."""
_FOR_A_PEER: Final = re.compile(r"CheckpointException|Throwing across all ranks")
"""Exceptions that all members of a group raise for what one of them did."""
_EXIT: Final = re.compile(r"exit code \d{1,2}")
"""An exit code that no signal gives."""
_EXITS: Final = (
    "give the end of the launcher's log: the rank with an exit code of its own ended before the others"
)
_OF_STORE: Final = re.compile(r"Store|DistNetworkError")
"""Exceptions about the connection to the store, which also ends when rank 0 is done."""


class _Report(NamedTuple):
    """A death and the log that reports it."""

    death: Death
    log: LogFile

    @property
    def cause(self) -> str:
        """Return the kind of the death and the type of its exception."""
        return f"{self.death.kind} {self.death.text.partition(':')[0]}"


def name_dead(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer that deaths give; None where none came first."""
    by_rank: dict[int, list[_Report]] = defaultdict(list)
    unplaced: list[_Report] = []
    for report in _own_deaths(case):
        (unplaced if report.death.rank is None else by_rank[report.death.rank]).append(report)
    first = {rank: min(reports, key=_order) for rank, reports in by_rank.items() if not _lived_on(case, rank)}
    first |= {rank: report for rank, report in _dead_by_ras(case).items() if rank not in first}
    if first:
        if (all_at_once := _ended_from_outside(case, finding, first)) is not None:
            return all_at_once
        return (
            _name_first(case, finding, first) if _shows_an_end(case, first) else _only_raised(finding, first)
        )
    if not unplaced and (alone := _without_an_error(case)) is not None:
        return _name_silent(case, finding, alone)
    if unplaced and all(culprit.kind == "missing_dump" for culprit in finding.culprits):
        return _of_unknown_rank(case, finding, unplaced)
    return None


def exits_alone(case: Case) -> dict[int, str]:
    """Return the ranks that a launcher saw end with an exit code of their own, and the code."""
    deaths = (death for log in case.bundle.logs for death in log.deaths)
    codes = ((d.rank, d.text) for d in deaths if d.ended and d.kind == "exception" and d.rank is not None)
    return {rank: text for rank, text in codes if _EXIT.fullmatch(text)}


def _name_silent(case: Case, finding: HangFinding, rank: int) -> HangFinding:
    """Return the answer about the one rank that lost no peer: named, or open where its lines are missing."""
    if any(log.waits.ended for log in case.bundle.logs):
        reason = f"each rank but rank {rank} lost a peer; this one ended first, or its launcher ended it"
        return leave_open(finding, reason, (rank,), _EXITS)
    if rank in case.ranks:
        how = "ended without an error, while each other rank lost its connection to a peer"
        return accuse(case, finding, Named("died", {rank: how}))
    reason = f"each rank but rank {rank} lost its connection to a peer, and rank {rank} left no line: it may have ended"
    return leave_open(
        finding, reason, (rank,), f"give the log of rank {rank}, which shows whether it lost a peer too"
    )


def _own_deaths(case: Case) -> list[_Report]:
    """Return the deaths that no other failure explains and that came before the first time-out.

    Of two reports of one process only the one that tells its rank counts.
    """
    placed = {
        d.pid for log in case.bundle.logs for d in log.deaths if d.rank is not None and d.pid is not None
    }
    timed_out = [log for log in case.bundle.logs if log.timed_out is not None]
    return [
        _Report(death, log)
        for log in case.bundle.logs
        for death in log.deaths
        if not death.consequence and not _after_time_out(death, log, timed_out)
        if death.rank is not None or death.pid not in placed
    ]


def _after_time_out(death: Death, log: LogFile, timed_out: Sequence[LogFile]) -> bool:
    """Return whether a death came after the first time-out: by its place in one file, else by time."""
    if log.timed_out is not None:
        return death.order > log.timed_out[1]
    whens = [other.timed_out[0] for other in timed_out if other.timed_out is not None]
    known = [when for when in whens if when is not None]
    earlier = [when.before(death.when) for when in known]
    return any(before is True for before in earlier)


def _lived_on(case: Case, rank: int) -> bool:
    """Return whether a rank was alive while others waited: it waited itself, it lost a peer, or no call lacks it.

    A traceback may be one that the program caught, or one of an earlier attempt.
    """
    waited = any(
        mark.work is not None for log in case.bundle.logs for mark in log.marks.get(rank, {}).values()
    )
    graph = case.scene.graph
    lacked = any(rank in {*call.behind, *call.missing, *call.unknown} for call in graph.pending)
    waited |= rank in graph.stuck or rank in _lost_a_peer(case)
    return waited or (rank in case.scene.dumps and bool(graph.pending) and not lacked)


def _shows_an_end(case: Case, first: dict[int, _Report]) -> bool:
    """Return whether something beside an exception shows that a process ended: a signal, an exit, ranks that wait."""
    logs = case.bundle.logs
    waits = any(
        log.timed_out is not None or log.waits.in_gloo or log.waits.unreached or log.stuck for log in logs
    )
    ended = any(death.ended or death.pid is not None for log in logs for death in log.deaths)
    signalled = any(report.death.kind == "signal" for report in first.values())
    raised_for = any(_FOR_A_PEER.search(death.text) for log in logs for death in log.deaths)
    ended = ended or raised_for
    return waits or ended or signalled or bool(case.scene.graph.stuck or _lost_a_peer(case) - first.keys())


def _lost_a_peer(case: Case) -> set[int]:
    """Return the ranks that ended because a peer's process did, by the exception in their own log."""
    return {
        death.rank
        for log in case.bundle.logs
        for death in log.deaths
        if death.rank is not None and death.consequence
        if _PEER_ENDED.search(death.text) and not _OF_STORE.search(death.text)
    }


def _without_an_error(case: Case) -> int | None:
    """Return the rank that ended without an error while every other one lost a peer; None where others may have.

    A launcher ends ranks without an error as well: of two such ranks, either may have been first. A rank that ended for
    a peer's call unlike its own reports that as an error.
    """
    lost = _lost_a_peer(case)
    silent = set(range(case.bundle.world or 0)) - lost
    if len(lost) < FEWEST_WITNESSES or len(silent) != 1:
        return None
    (rank,) = silent
    return None if _lived_on(case, rank) or _met_another_call(case) & {rank, None} else rank


def _met_another_call(case: Case) -> set[int | None]:
    """Return the ranks that report that a peer's call is unlike their own; None for a report of an unknown rank."""
    return {
        rank
        for log in case.bundle.logs
        for rank in (*log.waits.longer, *(death.rank for death in log.deaths if _UNLIKE.search(death.text)))
    }


def _only_raised(finding: HangFinding, first: dict[int, _Report]) -> HangFinding:
    """Return the answer where ranks raised exceptions, and nothing shows that a process ended or a rank waits."""
    rank = min(first, key=lambda r: _order(first[r]))
    reason = (
        f"rank {rank} raised an exception ({first[rank].death.text}); nothing shows that its process ended for it, or "
        "that other ranks wait"
    )
    return leave_open(
        finding, reason, first, "give the whole log with its end, and the logs of the other ranks"
    )


def _ended_from_outside(case: Case, finding: HangFinding, first: dict[int, _Report]) -> HangFinding | None:
    """Return the answer where a signal ended all ranks together, as a scheduler or a user does; None elsewhere."""
    signalled = {rank for rank, report in first.items() if report.death.kind == "signal"}
    others = (case.world | case.ranks) - signalled
    if len(signalled) < 2 or others or not _within(list(first.values())):
        return None
    reason = f"a signal ended all {len(signalled)} ranks together, as a scheduler or a user does: no rank is to blame"
    return leave_open(
        finding, reason, (), "look what ended the job: a time limit, scancel, the host's memory"
    )


def _dead_by_ras(case: Case) -> dict[int, _Report]:
    """Return the ranks whose processes RAS gave up."""
    found: dict[int, _Report] = {}
    for report in case.bundle.ras:
        for communicator in report.communicators:
            ranks = report.global_ranks(communicator)
            for place in communicator.dead:
                if place in ranks:
                    text = "RAS no longer reaches its process and takes it for dead"
                    death = Death("signal", text, ranks[place], None, None, None, None, 0)
                    found[ranks[place]] = _Report(death, LogFile(report.path))
    return found


def _order(report: _Report) -> tuple[float, str, int]:
    when = report.death.when
    return (when.seconds if when is not None else float("inf"), report.log.path, report.death.order)


def _name_first(case: Case, finding: HangFinding, first: dict[int, _Report]) -> HangFinding:
    """Return the answer that names the rank that died first, or all that died together of one cause."""
    together = _together(first)
    if together is None:
        listed = "; ".join(
            f"rank {rank}: {first[rank].death.text}" for rank in sorted(first)[:NAMED_IN_DOUBT]
        )
        reason = f"{rank_names(first)} died, and their logs do not show which of them died first ({listed})"
        decide = "compare the times of these logs, or give one log with time stamps of all ranks"
        return leave_open(finding, reason, first, decide)
    how = {rank: f"died ({first[rank].death.text})" for rank in together}
    stacks = {rank: (frame,) for rank in together if (frame := first[rank].death.frame) is not None}
    hosts = {rank: host for rank in together if (host := first[rank].death.host) is not None}
    return accuse(case, finding, Named("died", how, stacks, hosts))


def _together(first: dict[int, _Report]) -> list[int] | None:
    """Return the ranks that died first: one, or several of one cause; None where nothing tells which were first."""
    if len({report.cause for report in first.values()}) == 1 and _within(list(first.values())):
        return sorted(first)
    earliest = [rank for rank, one in first.items() if all(_precedes(one, other) for other in first.values())]
    if not earliest:
        return None
    head = first[earliest[0]]
    return sorted(r for r, report in first.items() if report.cause == head.cause and _within([head, report]))


def _within(reports: Sequence[_Report]) -> bool:
    """Return whether these deaths lie within seconds of each other, as far as their times tell."""
    whens = [report.death.when for report in reports]
    known = [when for when in whens if when is not None]
    if len({when.clock for when in known}) > 1:
        return False
    seconds = [when.seconds for when in known]
    return not seconds or max(seconds) - min(seconds) <= DIED_TOGETHER_S


def _precedes(one: _Report, other: _Report) -> bool:
    """Return whether one death is known to be no later than another."""
    if one is other or one.log.path == other.log.path:
        return one.death.order <= other.death.order
    when: When | None = one.death.when
    return when is not None and other.death.when is not None and when.before(other.death.when) is True


def _of_unknown_rank(case: Case, finding: HangFinding, unplaced: Sequence[_Report]) -> HangFinding:
    """Return the answer where a process of unknown rank died."""
    death = min(unplaced, key=_order).death
    named = (("on", death.host), ("process", death.pid), ("local rank", death.local))
    where = "".join(f" ({word} {value})" for word, value in named if value is not None)
    silent = case.world - case.ranks
    if len(silent) == 1:
        how = f"died ({death.text}): its process is the one that ended, since all other ranks left lines"
        return accuse(case, finding, Named("died", dict.fromkeys(silent, how)))
    reason = f"the log gives no rank for the process that died first{where}: {death.text}"
    decide = (
        "give a log in which each line begins with its rank (torchrun --tee 3 or --log-dir, srun --label, "
        "deepspeed --enable_each_rank_log)"
    )
    return leave_open(finding, reason, silent, decide)

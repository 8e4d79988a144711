"""What stacks decide, and processes that stood all at once. Part of `judge`.

The odd one out of the ranks' stacks is the suspect: outside a collective while the others wait in one. A rank in
`synchronize` waits for its own device, which waits for others: it is not the odd one.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open, note
from tracekit.evidence.stacks import RankStack
from tracekit.findings.hang import HangFinding
from tracekit.text import rank_names
from tracekit.thresholds.evidence import MAX_ODD_STACKS, MIN_STACKS, WAITING_SHARE

_INSIDE = "its stack is inside a collective: it did not return from the call, or waits in another one"


def decide_by_stacks(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer with what the stacks of the ranks add to it."""
    if finding.verdict == "none" or not case.bundle.stacks:
        return finding
    stacks = {rank: samples for rank, samples in _by_rank(case.bundle.stacks).items() if samples}
    finding = _with_stacks(finding, stacks)
    odd = odd_ranks(stacks)
    if finding.culprits:
        inside = {
            c.rank for c in finding.culprits if c.kind == "host_stalled" and _waits(stacks.get(c.rank, []))
        }
        apart = odd - {c.rank for c in finding.culprits}
        notes = [f"rank {rank}: {_INSIDE}" for rank in sorted(inside)]
        if apart and inside:
            names = {c.rank for c in finding.culprits} | apart
            reason = (
                f"calls speak for {rank_names(c.rank for c in finding.culprits)}, stacks for "
                f"{rank_names(apart)}, outside any collective while the others wait in one"
            )
            return leave_open(finding, reason, names, "take stacks of all ranks twice, some seconds apart")
        return note(finding, *notes) if notes else finding
    allowed = odd & set(finding.candidates) if finding.candidates else odd
    sure = case.scene.graph.stuck or all(
        len(stacks[rank]) > 1 for rank in allowed
    )  # one sample may be of a live job
    if len(allowed) == 1 and allowed == odd and sure and not _undecidable(case, finding):
        (rank,) = allowed
        place = stacks[rank][-1].frames
        how = "is outside any collective, by its stack, while the others wait in one"
        return accuse(case, finding, Named("host_stalled", {rank: how}, {rank: place}))
    if odd and not finding.candidates:
        who = rank_names(odd)
        reason = f"{who}: outside a collective, by the stacks, while the others wait in one"
        return leave_open(finding, reason, odd, "take stacks of all ranks twice, some seconds apart")
    return finding


def _undecidable(case: Case, finding: HangFinding) -> bool:
    """Return whether the calls show something that no stack decides: versions of one call, or ranks without stacks."""
    seen = {stack.rank for stack in case.bundle.stacks}
    silent = case.world - seen - case.ranks
    return bool(finding.open_calls) or bool(silent)


def odd_ranks(stacks: dict[int, list[RankStack]]) -> set[int]:
    """Return the ranks outside a collective where most others wait in one; none where too few or too many are."""
    waiting = {rank for rank, samples in stacks.items() if _waits(samples)}
    still = {rank for rank, samples in stacks.items() if rank not in waiting and _stands(samples)}
    odd = {rank for rank in still if all(s.activity == "elsewhere" for s in stacks[rank])}
    enough = len(stacks) >= MIN_STACKS and len(waiting) > WAITING_SHARE * len(stacks)
    few = len(stacks) - len(waiting) <= max(1, int(MAX_ODD_STACKS * len(stacks)))
    return odd if enough and few else set()


def _waits(samples: Iterable[RankStack]) -> bool:
    return any(s.activity == "collective" for s in samples)


def _stands(samples: list[RankStack]) -> bool:
    """Return whether several samples of a rank show one place; true of a single one."""
    return len({s.frames for s in samples}) <= 1


def _by_rank(stacks: Iterable[RankStack]) -> dict[int, list[RankStack]]:
    found: dict[int, list[RankStack]] = defaultdict(list)
    for stack in stacks:
        if stack.rank is not None:
            found[stack.rank].append(stack)
    return found


def _with_stacks(finding: HangFinding, stacks: dict[int, list[RankStack]]) -> HangFinding:
    """Return the finding whose culprits bear the stacks of their processes where the dumps hold none."""
    culprits = tuple(
        replace(c, stack=stacks[c.rank][-1].frames) if c.rank in stacks and not c.stack else c
        for c in finding.culprits
    )
    return replace(finding, culprits=culprits)


def all_stood(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer where the watchdogs of all ranks stood still at once and no call timed out."""
    stuck = set().union(*(log.stuck for log in case.bundle.logs))
    timed_out = any(log.timed_out is not None for log in case.bundle.logs)
    others = {rank for log in case.bundle.logs for rank in log.marks} - stuck
    if len(stuck) <= 1 or timed_out or others or finding.culprits:
        return None
    reason = (
        f"the watchdogs of all {len(stuck)} ranks that left lines stopped at once, and no call had timed out: the "
        "processes were frozen, as by a file system, swap or a container; no rank is to blame"
    )
    return leave_open(finding, reason, (), "look at the hosts' kernel logs, storage and memory at that time")

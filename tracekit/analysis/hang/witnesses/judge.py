"""The verdict on a stuck job from all evidence that is left: dumps, logs, RAS reports and stacks.

All of it becomes one scene, which the rules judge as they judge dumps. Then the witnesses are asked, in one visible
order: a rank that died, ranks that never joined, doubts about what rests on logs and RAS, paused processes, stacks.

The odd one out of the ranks' stacks is the suspect: outside a collective while the others wait in one. A rank in
`synchronize` waits for its own device, which waits for others: it is not the odd one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tracekit.analysis.hang.analyse import illustrated, judged, picture_of
from tracekit.analysis.hang.witnesses.arrivals import name_absent
from tracekit.analysis.hang.witnesses.case import Case, Named, accuse, leave_open, note
from tracekit.analysis.hang.witnesses.deaths import exits_alone, name_dead
from tracekit.analysis.hang.witnesses.doubts import doubt_scene
from tracekit.analysis.hang.witnesses.unlike_models import unlike_models
from tracekit.axes import AXES
from tracekit.evidence.as_dumps import compose
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.ras_counts import without_early_ras
from tracekit.evidence.stacks import RankStack
from tracekit.findings import Quality, RankCoverage
from tracekit.findings.hang import HangFinding
from tracekit.findings.picture import HangPicture
from tracekit.mesh import from_sizes
from tracekit.text import rank_names
from tracekit.thresholds.evidence import MAX_ODD_STACKS, MAX_SIGNS, MIN_STACKS, WAITING_SHARE

_SIGNS_SHOWN: Final = 4
"""Warnings of one kind and file that are told: the first say the kind."""


def judge_evidence(
    bundle: Bundle, mesh: dict[str, int] | None = None, order: Sequence[str] | None = None
) -> tuple[HangFinding, HangPicture]:
    """Return the verdict on all evidence of a job, and what a page draws of it.

    mesh, order: as for `analyse`. Raises MeshError where they do not fit the evidence.
    """
    bundle = without_early_ras(bundle)
    if bundle.only_dumps and bundle.dumps is not None:
        return illustrated(bundle.dumps, mesh, order)
    given = None if mesh is None else from_sizes(mesh, order or tuple(axis for axis in mesh if axis in AXES))
    composed = compose(bundle, given)
    known = mesh if composed.dumps.world else None
    finding, _, scene = judged(composed.dumps, known, order, still=composed.still)
    case = Case(bundle, composed, scene)
    if not composed.dumps.dumps:
        finding = _without_calls(case, finding)
    answer = next((found for ask in _WITNESSES if (found := ask(case, finding)) is not None), None)
    if answer is None:
        answer = decide_by_stacks(case, doubt_scene(case, finding))
    finding = _told(case, answer)
    return finding, picture_of(scene, finding)


def _without_calls(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer of a job without evidence of any call."""
    told = "the evidence shows no call that a rank waits in"
    waiting = set().union(*(log.waits.in_gloo for log in case.bundle.logs))
    if waiting:
        told = f"{len(waiting)} ranks waited in vain in a Gloo call; their lines do not name the rank they waited for"
    elif (unlike := _unlike_calls(case) or _unnumbered_calls(case)) is not None:
        told = unlike
    elif case.bundle.ras:
        told = "no communicator that RAS lists shows ranks that differ; RAS does not show whether calls end"
    elif exits := exits_alone(case):
        ended = "; ".join(f"rank {rank}: {code}" for rank, code in sorted(exits.items())[:_SIGNS_SHOWN])
        told = f"a launcher saw ranks end and ended the others ({ended}), and no line shows why"
        return leave_open(finding, told, exits, "give the logs of the candidates: the first error in them")
    silent = tuple(sorted(case.world - case.ranks))
    decide = "add the logs of all ranks, py-spy dumps, or flight-recorder dumps"
    return replace(finding, verdict="inconclusive", reason=told, candidates=silent, to_decide=decide)


def _unlike_calls(case: Case) -> str | None:
    """Return the sentence about two unlike calls of an unnamed group in an exception; None without one."""
    for log in case.bundle.logs:
        for _, _, report in log.reports:
            calls = {place: told.call for place, told in sorted(report.members.items()) if told.call.op}
            if len(set(calls.values())) > 1:
                listed = " and ".join(f"{p} {call.op} {call.input_sizes[1:-1]}" for p, call in calls.items())
                return f"members of a group that no line names made unlike calls, by their places in it: {listed}"
    return None


def _unnumbered_calls(case: Case) -> str | None:
    """Return the sentence about calls that timed out in lines without their numbers; None without one."""
    places: dict[str, set[int]] = defaultdict(set)
    for log in case.bundle.logs:
        for place, op in log.waits.unnumbered.items():
            places[op].add(place)
    listed = "; ".join(f"{op} on {rank_names(own)}" for op, own in sorted(places.items()))
    return (
        f"calls timed out, and these lines of torch before 1.13 do not number them ({listed})"
        if listed
        else None
    )


def _told(case: Case, finding: HangFinding) -> HangFinding:
    """Return the finding with the ranks in any evidence, and with the warnings about it."""
    ranks = case.ranks
    missing = tuple(sorted(case.world - ranks))
    expected = max(len(case.world), len(ranks))
    coverage = RankCoverage(expected, len(ranks), missing, finding.ranks.rejected)
    return replace(finding, ranks=coverage, quality=(*finding.quality, *_signs(case.bundle)))


def _signs(bundle: Bundle) -> list[Quality]:
    """Return the warnings of NCCL and of kernels: they support or exclude a cause and name no rank."""
    rows: dict[tuple[str, str], list[str]] = {}
    for log in bundle.logs:
        for sign in log.waits.signs[:MAX_SIGNS]:
            who = f"rank {sign.rank}: " if sign.rank is not None else f"{sign.host}: " if sign.host else ""
            rows.setdefault((sign.kind, log.path), []).append(f"{who}{sign.text}")
    return [
        Quality(kind, path, len(texts), "; ".join(dict.fromkeys(texts[:_SIGNS_SHOWN])))
        for (kind, path), texts in rows.items()
    ]


# Messages that Gloo found longer than the buffer for them: two ranks made unlike calls.
#
# Gloo numbers no calls and names no sender, so that this shows a mismatch and the rank that noticed it, and
# no culprit.

_DETAIL = (
    "run again with TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank then compares its call with its peers' calls"
)


def unlike_sizes(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer of a job in which a message was longer than its buffer; None where calls show more.

    The rank that noticed it ended for it: that others wait for this rank then is a peer's fault. Candidates are those
    that the calls leave, with this rank among them; else all ranks.
    """
    noticed = {rank: sizes for log in case.bundle.logs for rank, sizes in log.waits.longer.items()}
    named = {culprit.rank for culprit in finding.culprits}
    mismatched = any(culprit.kind == "mismatched_call" for culprit in finding.culprits)
    if not noticed or mismatched or finding.open_calls or not named <= noticed.keys():
        return None
    rank, (came, expected) = min(noticed.items(), key=lambda item: (item[0] is None, item[0] or 0))
    where = "a rank" if rank is None else f"rank {rank}"
    reason = (
        f"{where} received a message of {came} bytes where its call expected {expected}: it and a peer made unlike "
        "calls of one group, and Gloo's line does not name the peer"
    )
    ended, left = {r for r in noticed if r is not None}, set(finding.candidates)
    return leave_open(finding, reason, left if ended <= left else ended | case.world | case.ranks, _DETAIL)


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


_WITNESSES: Final = (name_dead, name_absent, unlike_models, unlike_sizes, all_stood)
"""Asked one after another; the first that answers is believed."""

"""The verdict on a stuck job from all evidence that is left: dumps, logs, RAS reports and stacks.

All of it becomes one scene, which the rules judge as they judge dumps. Then the witnesses are asked, in one visible
order: a rank that died, ranks that never joined, doubts about what rests on logs and RAS, paused processes, stacks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tracekit.analysis.hang.analyse import illustrated, judged, picture_of
from tracekit.analysis.hang.witnesses.arrivals import name_absent
from tracekit.analysis.hang.witnesses.case import Case, leave_open
from tracekit.analysis.hang.witnesses.deaths import exits_alone, name_dead
from tracekit.analysis.hang.witnesses.doubts import doubt_scene
from tracekit.analysis.hang.witnesses.ranks_apart import decide_by_stacks, unlike_models
from tracekit.axes import AXES
from tracekit.dumps.calls import Signature
from tracekit.evidence.as_dumps import compose
from tracekit.evidence.bundle import Bundle, without_earlier_attempts
from tracekit.evidence.log_exceptions import backend_of
from tracekit.evidence.ras_counts import without_early_ras
from tracekit.findings import Quality, RankCoverage
from tracekit.findings.hang import HangFinding
from tracekit.findings.picture import HangPicture
from tracekit.mesh import from_sizes
from tracekit.text import rank_names
from tracekit.thresholds.evidence import MAX_SIGNS

_SIZE_OR_DUMPS: Final = "give --mesh where the group is that of all ranks, or flight-recorder dumps"
_WORDS: Final = 120
"""Characters of an exception in a sentence."""
_SIGNS_SHOWN: Final = 4
"""Warnings of one kind and file that are reported: the first say the kind."""


def judge_evidence(
    bundle: Bundle, mesh: dict[str, int] | None = None, order: Sequence[str] | None = None
) -> tuple[HangFinding, HangPicture]:
    """Return the verdict on all evidence of a job, and what a page draws of it.

    mesh, order: as for `analyse`. Raises MeshError where they do not fit the evidence.
    """
    bundle = without_early_ras(without_earlier_attempts(bundle))
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
    finding = _with_coverage(case, answer)
    return finding, picture_of(scene, finding)


def _without_calls(case: Case, finding: HangFinding) -> HangFinding:
    """Return the answer of a job without evidence of any call."""
    reason = "the evidence shows no call that a rank waits in"
    waiting = set().union(*(log.waits.in_gloo for log in case.bundle.logs))
    if waiting:
        reason = f"{len(waiting)} ranks waited in vain in a Gloo call; their lines do not name the rank they waited for"
    elif (unlike := _unlike_calls(case)) is not None:
        return leave_open(finding, unlike[0], unlike[1], _SIZE_OR_DUMPS)
    elif (unnumbered := _unnumbered_calls(case)) is not None:
        reason = unnumbered
    elif case.bundle.ras:
        reason = "no communicator that RAS lists shows ranks that differ; RAS does not show whether calls end"
    elif exits := exits_alone(case):
        ended = "; ".join(f"rank {rank}: {code}" for rank, code in sorted(exits.items())[:_SIGNS_SHOWN])
        reason = f"a launcher saw ranks end and ended the others ({ended}), and no line shows why"
        return leave_open(finding, reason, exits, "give the logs of the candidates: the first error in them")
    elif others := _raised_for_others(case):
        reason = f"{others}; these lines do not show that rank"
    silent = tuple(sorted(case.world - case.ranks))
    decide = "add the logs of all ranks, py-spy dumps, or flight-recorder dumps"
    return replace(finding, verdict="inconclusive", reason=reason, candidates=silent, to_decide=decide)


def _raised_for_others(case: Case) -> str:
    """Return the sentence about ranks with an exception that another rank's failure explains; empty without one."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for log in case.bundle.logs:
        for death in log.deaths:
            if death.consequence and not death.ended:
                where = backend_of(death.text)
                words = (
                    f"timed out in {where}"
                    if where
                    else f"raised what another rank explains ({death.text[:_WORDS]})"
                )
                ranks[words].update([] if death.rank is None else [death.rank])
    shown = list(ranks.items())[:_SIGNS_SHOWN]
    return "; ".join(
        f"{rank_names(own) if own else 'ranks without a number'} {words}" for words, own in shown
    )


def _unlike_calls(case: Case) -> tuple[str, set[int]] | None:
    """Return the sentence about unlike calls of an unnamed group in exceptions, and the ranks that are apart.

    A place in the group is a rank where each writer's place is its rank; ranks are apart from a majority alone.
    """
    reports = [row for log in case.bundle.logs for row in log.reports]
    calls: dict[int, Signature] = {}
    for _, _, report in reports:
        calls |= {place: state.call for place, state in report.members.items() if state.call.op}
    if reports and len(set(calls.values())) == 1:
        apart = max(report.apart for _, _, report in reports)
        sentence = (
            f"members of a group made the same call under numbers that differ by {apart}: one made fewer calls, or the "
            "numbers mean nothing (Gloo up to torch 2.0)"
        )
        return (sentence, set()) if apart else None
    if len(set(calls.values())) < 2:
        return None
    places: dict[Signature, list[int]] = defaultdict(list)
    for place, call in sorted(calls.items()):
        places[call].append(place)
    listed = " and ".join(
        f"{rank_names(own).partition(' ')[2]} {call.op} {call.input_sizes[1:-1]}"
        for call, own in places.items()
    )
    most = max(places.values(), key=len)
    placed = all(rank == report.own for rank, _, report in reports)
    apart_from = set(calls) - set(most) if placed and 2 * len(most) > len(calls) else set()
    return (
        f"members of a group that no line names made unlike calls, by their places in it: {listed}",
        apart_from,
    )


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


def _with_coverage(case: Case, finding: HangFinding) -> HangFinding:
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

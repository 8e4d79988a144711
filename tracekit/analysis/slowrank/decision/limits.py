"""Limits that the evidence as a whole sets to an answer: dumps, an unknown mesh, or only a part of a step.

Flight-recorder dumps time communication and show no causes. Where calls are placed only to within a watchdog's poll,
clocks and gaps are too coarse for stages and links, and a slow rank is believed only if it also waited least, which
durations alone show. A large difference that is not significant does not prove health. A rank is to blame only if
another one waits for it. Where the mesh is unknown, all ranks were compared with each other; ranks of different stages
do different work, so each rank is only a candidate.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.open_answers import leave_rank_open
from tracekit.analysis.slowrank.evidence import evidence_of
from tracekit.analysis.slowrank.gaps.evidence_gaps import what_would_decide, why_open
from tracekit.analysis.slowrank.suspects import Answer, left_open, up_to
from tracekit.case.case import Case
from tracekit.case.wording import of_step, ranks_in_words
from tracekit.inference.groups.other_recordings import is_placed
from tracekit.inference.mesh.mesh_choice import KIND
from tracekit.steps.medians import median_of_others
from tracekit.thresholds.slowrank import CLEAR_SHARE, MAJORITY
from tracekit.units import F64, ms

_FORMAT = "flight_recorder"


def dumps_time_communication(case: Case, answer: Answer) -> Answer:
    """The answer that dumps support: no cause, and open where they are too coarse; `answer` itself without dumps."""
    if all(r.format != _FORMAT for r in case.run.ranks):
        return answer
    if answer.verdict == "healthy":
        if float(np.nanmax(np.nan_to_num(case.found.mean, nan=0.0))) < CLEAR_SHARE * case.step_ns:
            return answer
        more = "profiler traces of the same job would show more"
        return left_open(f"dumps show waiting, but {answer.reason}; {more}")
    placed, (mine, others) = is_placed(case.run), _waits(case)
    few = mine <= MAJORITY * others
    kept = [s for s in answer.suspects if not placed or few[case.steps.row(s.rank)]]
    if answer.verdict == "slow_rank" and kept[:1] == list(answer.suspects[:1]):
        own = tuple(
            replace(s, cause="unknown", evidence=tuple(e for e in s.evidence if e.quantity == "own"))
            for s in kept
        )
        return replace(answer, cause="unknown", suspects=own)
    if not placed:
        return answer
    reason = (
        "the times of calls are known only to within the watchdog's poll, which is too coarse to prove that "
        f"{answer.reason}"
    )
    # durations are exact where the times of calls are not, and the last to come waits for none
    spared = np.nan_to_num(np.maximum(others - mine, 0.0)) / case.steps.count
    costly = {row: ns for row, ns in enumerate(spared.tolist()) if ns >= case.threshold_ns}
    return left_open(reason, _TRACES, up_to(case, costly))


_TRACES: Final = "record profiler traces of three whole steps: they time calls to the microsecond"


def _waits(case: Case) -> tuple[F64, F64]:
    """(what each rank waited, the median of its peers, NaN without any), by row of Steps, ns.

    A receive counts with its whole duration: which part is waiting, only clocks show.
    """
    lasted = np.where(case.ops.op == "recv", case.ops.end - case.ops.start, 0)
    wait = np.where(case.in_message, lasted, case.waits.wait)
    spent = np.array([float(wait[case.ops.of(rank)].sum()) for rank in case.steps.ranks])
    return spent, median_of_others(spent[:, None], case.stages)[:, 0]


def mesh_is_unknown(case: Case, answer: Answer) -> Answer:
    """The answer without a mesh: open, with all named ranks as candidates; `answer` itself where the mesh is known."""
    rows = [q.detail for q in case.run.quality if q.kind == KIND]
    if not rows or len(case.ops.ranks) < 2:  # `one_rank_alone` has answered already
        return answer
    reason, _, remedy = rows[0].rpartition("; ")
    open_ = None if answer.suspects else evidence_of(case).undecided
    answer = leave_rank_open(case, open_) if open_ is not None else answer
    found = answer.suspects or answer.candidates
    detail = answer.reason if found else "no rank differs clearly from all others"
    high = [max(s.lost_ms_high or 0.0, s.lost_ms_per_step) for s in found]
    candidates = (
        replace(s, lost_ms_low=0.0, lost_ms_high=most, confidence=0.0, coords={})
        for s, most in zip(found, high, strict=True)
    )
    reason = f"{reason}, and ranks of different stages do different work; {detail}"
    return left_open(reason, remedy, tuple(candidates))


def shares_no_communication(case: Case, answer: Answer) -> Answer:
    """`answer`, left open where the suspects communicate with each other alone, so that no other rank waits for them.

    Replicas of a serving engine are such ranks: each answers requests of its own. All ranks of an operation table end
    their steps together. Where the members of all their communication are unknown, nothing shows that others wait.
    """
    named = {s.rank for s in answer.suspects}
    beside = np.array([*(not named.issuperset(c.members) for c in case.ops.channels), False])
    joined = any(beside[case.ops.channel[case.ops.of(rank)]].any() for rank in named)
    if answer.verdict != "slow_rank" or case.table is not None or joined:
        return answer
    unknown = any((case.ops.channel[case.ops.of(rank)] < 0).any() for rank in named)
    why = "no communication joins them with another rank: none waits for them"
    remedy = "compare what they were given to compute, or give slowrank the traces of one replica alone"
    reason = (
        f"{ranks_in_words(sorted(named))} worked longer than the peers by {of_step(case, answer.gain)}, but "
        f"{why_open(case) if unknown else why}"
    )
    return left_open(reason, what_would_decide(case) if unknown else remedy, answer.suspects)


def part_of_a_step(case: Case, answer: Answer) -> Answer:
    """`answer`, left open where it rests on part of a step, which proves neither health nor a slow rank."""
    if not case.of_part or answer.verdict == "inconclusive":
        return answer
    reason = f"no step was recorded whole on enough ranks; in the part that all recorded {answer.reason}"
    return left_open(reason, "record three whole steps or more on every rank", answer.suspects)


def price_may_be_smaller(case: Case, answer: Answer) -> Answer:
    """`answer`, left open where the lowest price of what it names, of all together, is below the threshold.

    Ranks that are slow together cost little one by one: the price of all is as uncertain as that of the first.
    """
    known = [s for s in answer.suspects if s.lost_ms_low is not None and s.lost_ms_high is not None]
    least = ms(case.threshold_ns)
    lows = [s.lost_ms_low or 0.0 for s in known]
    doubt = max((s.lost_ms_per_step - low for s, low in zip(known, lows, strict=True)), default=0.0)
    low = max(*lows, ms(answer.gain) - doubt, ms(answer.least or 0.0)) if lows else least
    if low >= least:
        return answer
    high = max(s.lost_ms_high or 0.0 for s in known)
    reason = (
        f"{answer.reason}; but the cost lies between {max(low, 0.0):.1f} and {max(high, ms(answer.gain)):.1f} ms, "
        f"and from {least:.1f} ms on it counts"
    )
    return left_open(reason, what_would_decide(case), answer.suspects)

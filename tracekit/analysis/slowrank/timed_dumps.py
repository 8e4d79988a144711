"""What an answer may claim where the input is flight-recorder dumps: they time communication and nothing else.

Causes cannot be told. Where calls could only be placed to within a watchdog's poll, clocks and gaps are too coarse
for stages and links, and a slow rank is believed only if it also waited least, which durations alone tell. A large
difference that is not significant is no proof of health. Last step of `slow_rank`.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.excess import stage_rows
from tracekit.analysis.slowrank.statistics import MIN_LOST_SHARE
from tracekit.analysis.slowrank.verdict import Answer

_FORMAT = "flight_recorder"
_LITTLE = 0.5
"""A rank that others wait for waits less than this share of what its peers wait."""


def tempered(case: Case, answer: Answer) -> Answer:
    """Give the answer that dumps allow; any other input's answer is left alone."""
    if all(r.format != _FORMAT for r in case.run.ranks):
        return answer
    placed = any(q.kind == "placed_calls" for q in case.run.quality)
    if answer.verdict == "healthy":
        return _healthy(case, answer)
    if answer.verdict == "slow_rank":
        if placed and not _waits_least(case, answer.suspects[0].rank):
            return _too_coarse(answer)
        own = tuple(
            replace(
                s, cause="unknown", evidence=tuple(e for e in s.evidence if e.what.startswith("own time"))
            )
            for s in answer.suspects
        )
        return replace(answer, cause="unknown", suspects=own)
    return _too_coarse(answer) if placed and answer.verdict != "inconclusive" else answer


def _too_coarse(answer: Answer) -> Answer:
    reason = (
        f"calls could be placed to within the watchdog's poll only, too coarse to tell if {answer.reason}"
    )
    return Answer("inconclusive", "unknown", reason)


def _healthy(case: Case, answer: Answer) -> Answer:
    largest = float(np.nanmax(np.nan_to_num(case.found.mean, nan=0.0)))
    if largest < 2 * MIN_LOST_SHARE * case.step_ns:
        return answer
    reason = answer.reason.replace("no rank", "dumps show waiting, but no rank", 1)
    return Answer("inconclusive", "unknown", f"{reason}; profiler traces of the same job would tell more")


def _waits_least(case: Case, rank: int) -> bool:
    """Whether the rank waited in collectives for a small part of the time that its peers did."""
    p2p = np.array([c.p2p for c in case.ops.channels] or [False])
    wait = np.where(p2p[np.maximum(case.ops.channel, 0)], 0, case.waits.wait)
    spent = {r: float(wait[case.ops.of(r)].sum()) for r in case.steps.ranks}
    row = case.steps.row(rank)
    peers = next(g for g in stage_rows(case.steps, case.mesh) if row in g)
    others = [spent[case.steps.ranks[i]] for i in peers.tolist() if i != row]
    return bool(others) and spent[rank] <= _LITTLE * float(np.median(others))

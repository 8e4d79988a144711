"""The answer that flight-recorder dumps allow: they time communication and nothing else.

Dumps tell no causes. Where calls could only be placed to within a watchdog's poll, clocks and gaps are too coarse for
stages and links, and a slow rank is believed only if it also waited least, which durations alone tell. A large
difference that is not significant is no proof of health. This is the last step of `analyse`.
"""

from dataclasses import replace

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.thresholds.slowrank import DUMP_DOUBT, DUMP_LITTLE

_FORMAT = "flight_recorder"


def tempered(case: Case, answer: Answer) -> Answer:
    """The answer that dumps allow; the answer to any other input is returned as it is."""
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
    return left_open(reason)


def _healthy(case: Case, answer: Answer) -> Answer:
    largest = float(np.nanmax(np.nan_to_num(case.found.mean, nan=0.0)))
    if largest < DUMP_DOUBT * case.step_ns:
        return answer
    reason = answer.reason.replace("no rank", "dumps show waiting, but no rank", 1)
    return left_open(f"{reason}; profiler traces of the same job would tell more")


def _waits_least(case: Case, rank: int) -> bool:
    """Whether the rank waited in collectives for a small share of the time that its peers waited."""
    wait = np.where(case.in_message, 0, case.waits.wait)
    spent = {r: float(wait[case.ops.of(r)].sum()) for r in case.steps.ranks}
    row = case.steps.row(rank)
    peers = next(g for g in case.stages if row in g)
    others = [spent[case.steps.ranks[i]] for i in peers.tolist() if i != row]
    return bool(others) and spent[rank] <= DUMP_LITTLE * float(np.median(others))

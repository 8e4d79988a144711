"""The causes that an answer names, and their mechanisms: which kernels of the devices, what the hosts did."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.analysis.mechanisms.device import (
    compared,
    named,
    of_device,
    of_products,
    of_replaced,
    of_work,
    surplus,
)
from tracekit.analysis.mechanisms.host import of_host
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.case.case import Case
from tracekit.case.wording import listed
from tracekit.cause_entry import causes_by_share
from tracekit.causes import CAUSES
from tracekit.findings import Mechanism, Quality, Suspect
from tracekit.mechanisms import MORE_WORK, OF_HOST, OTHER_DEVICE
from tracekit.rank_events.event_columns import categories, truth
from tracekit.steps.host_need import products_in_steps
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import PEERS_SAMPLED

_FRAME: Final = re.compile(r"\.py\(\d+\): |^<built-in ")
"""Frames of Python as `with_stack=True` records them: every call and return costs the host about a microsecond."""


def refined(case: Case, answer: Answer) -> Answer:
    """Return `answer`, its suspects with a cause only where that explains most of their excess.

    The first ones have the two mechanisms that explain most of it as well, but for an operation table, which holds no
    events of kernels and hosts.
    """
    suspects = list(answer.suspects)
    if case.table is None and (answer.verdict == "slow_rank" or answer.blames_data):
        blamed = {case.steps.row(s.rank) for s in suspects}
        first = suspects[:PEERS_SAMPLED]
        suspects[:PEERS_SAMPLED] = [replace(s, mechanisms=_mechanisms(case, s, blamed)) for s in first]
    named = tuple(map(_named, suspects))
    answer = replace(answer, suspects=named, candidates=tuple(map(_named, answer.candidates)))
    if not named or named[0].cause == suspects[0].cause or answer.cause != suspects[0].cause:
        return answer
    return replace(answer, cause=named[0].cause)


def _named(suspect: Suspect) -> Suspect:
    """`suspect` with its cause if that explains most of its excess, else `unknown`, and the two causes that do best.

    Work that it alone runs is one reason for the compute and for the gaps that belong to it.
    """
    if not suspect.causes or any(c.sure for c in suspect.causes):
        return suspect
    added = sum(m.share for m in suspect.mechanisms if m.name == MORE_WORK.name)
    shares = {c.name: min(c.share, 1 - added) for c in suspect.causes}
    if suspect.cause in shares:
        own = next(c.share for c in suspect.causes if c.name == suspect.cause)
        shares[suspect.cause] = max(own, added)
    causes = causes_by_share(shares, suspect.cause)
    if any(c.sure for c in causes):
        return replace(suspect, causes=causes)
    return replace(suspect, cause="unknown", causes=causes, mechanisms=())


def _mechanisms(case: Case, suspect: Suspect, blamed: set[int]) -> tuple[Mechanism, ...]:
    """What may explain the excess of a suspect beyond unsuspected peers, the largest share first.

    The first is named where none rivals it. `blamed` are the rows of all suspects.
    """
    entry, source = CAUSES[suspect.cause], case.ops.per_rank[suspect.rank]
    peers = sampled(case.beside(case.steps.row(suspect.rank), blamed))
    added = _of_work(case, suspect, peers) if MORE_WORK in entry.mechanisms else []
    found: list[Mechanism] = []
    if entry.mechanisms == OF_HOST:
        found = of_host(case.run, case.ops, case.steps, suspect.rank)
    elif source.on_gpu and entry.mechanisms and peers and not entry.on_host:
        rows = case.steps.row(suspect.rank), *peers
        read = [case.kernels(row) for row in rows]
        known = [f for row in rows if (f := case.features(row)) is not None]
        replaced = of_replaced(known[0], known[1:]) if len(known) == len(rows) else []
        found = replaced or of_device(compared(read[0], read[1:]))
        found = _of_model(case, suspect, peers) or found
    rest = 1.0 - sum(m.share for m in added)
    return named([*added, *(replace(m, share=rest * m.share) for m in found)])


def _of_model(case: Case, suspect: Suspect, peers: Sequence[int]) -> list[Mechanism]:
    """What a device of another model explains: all that its kernels take longer; nothing where names agree."""
    names = {r.rank: r.device for r in case.run.ranks}
    theirs = {names[case.steps.ranks[row]] for row in peers}
    mine = names[suspect.rank]
    if not mine or "" in theirs or mine in theirs:
        return []
    text = f"its device is named {mine}, those of its peers {listed(sorted(theirs))}"
    return [Mechanism(OTHER_DEVICE.name, 1.0, text)]


def _of_work(case: Case, suspect: Suspect, peers: Sequence[int]) -> list[Mechanism]:
    """The work that a suspect runs and its peers do not: more pieces of it, or larger ones, where there are any."""
    row = case.steps.row(suspect.rank)
    mine = case.features(row)
    theirs = [f for other in peers if (f := case.features(other)) is not None]
    if mine is None or not theirs:
        return []
    excess = mine.own - float(np.median([f.own for f in theirs]))
    pieces = of_work(surplus(mine, theirs), excess)
    flops = [products_in_steps(case.run, case.ops, case.steps, f.rank) for f in (mine, *theirs)]
    known = [f for f in flops if f is not None]
    if len(known) < len(flops):
        return pieces
    usual, busy = float(np.median(known[1:])), float(np.median([f.busy for f in theirs]))
    larger = of_products(known[0], usual, busy, excess)
    return max(pieces, larger, key=lambda found: sum(m.share for m in found))


def unlike_recordings(case: Case, answer: Answer) -> tuple[Quality, ...]:
    """Return a row where suspects record the stacks of Python and no peer does, and the host may be what is slow.

    The profiler may be the reason then: nothing in the trace separates it from the cause that is named. None where a
    device is slow, as stacks do not lengthen kernels.
    """
    if case.table is not None or answer.verdict not in {"slow_rank", "inconclusive"}:
        return ()
    named = (*answer.suspects, *answer.candidates)[:PEERS_SAMPLED]
    read = [(s, case.ops.per_rank[s.rank]) for s in named if s.rank in case.ops.per_rank]
    slow = [s.rank for s, ops in read if CAUSES[s.cause].quantity != "busy" or not ops.on_gpu]
    blamed = {s.rank for s in (*answer.suspects, *answer.candidates)}
    peers = sampled([rank for rank in case.steps.ranks if rank not in blamed])
    with_stacks = [rank for rank in slow if _records_stacks(case, rank)]
    if not with_stacks or not peers or any(_records_stacks(case, rank) for rank in peers):
        return ()
    ranks = ", ".join(map(str, sorted(with_stacks)))
    detail = (
        f"rank{'s' if len(with_stacks) > 1 else ''} {ranks}: Python stacks are recorded (with_stack=True), which its "
        "peers do not, and that alone slows a host; record all ranks with the same settings"
    )
    return (Quality("unlike_recordings", None, len(with_stacks), detail),)


def _records_stacks(case: Case, rank: int) -> bool:
    """Whether the trace of a rank holds frames of Python."""
    events = case.run.events(rank, ["cat", "name"])
    frames = categories(events) == "python_function"
    return bool((frames & truth(events, "name", _FRAME)).any())

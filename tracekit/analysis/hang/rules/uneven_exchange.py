"""All-to-alls with sizes that do not fit: one rank breaks a pattern of sizes, and all its peers keep it.

Sizes of an all-to-all may differ by rank, and a dump holds what a rank passes and takes in all, not what it sends to
each peer. But programs make them in patterns: a fixed size repeats, and experts send back what they received.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tracekit.analysis.hang.agreement import version_of
from tracekit.analysis.hang.frontier import Frontier, Group
from tracekit.analysis.hang.rules.rule import Accusation, Found
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature, numel
from tracekit.thresholds.hang import MIN_WITNESSES

Moved = tuple[int | None, int | None]
"""Elements that a rank passes and takes."""


class _Break(NamedTuple):
    """The rank that does not repeat (`back`: reverse) its call `seq`, as all its peers do, and the sizes due then."""

    rank: int
    seq: int
    back: bool
    due: Moved


def unfitting_exchanges(scene: Scene, _known: Found) -> Found:
    """Return the rank with other sizes in an all-to-all than its peers' sizes and the calls before let expect.

    Looks for: a pending all-to-all of three or more members in which all but one pass and take as much as in an
    earlier one, or the reverse, where all such earlier calls give the odd rank the same sizes, other than its own.
    Excuses: all members if several ranks could be the odd one, if every size has been there before, and if a ring or
    dump lacks the call; groups of two, where either end may be the wrong one.
    Returns: `mismatched_call`; the call in dispute; the other members are excused.
    """
    found = Found()
    for call in scene.graph.pending:
        group = scene.groups[call.group]
        odd = None if group.mixed or group.guessed else _odd(group, call.seq)
        if odd is not None:
            accused = Accusation("mismatched_call", call.group, call.seq, how=_how(group, call.seq, odd))
            others = frozenset(group.ranks) - {odd.rank}
            place = frozenset({(call.group, call.seq)})
            found = found.and_then(Found({odd.rank: accused}, excused=others, disputed=place))
    return found


def _how(group: Group, seq: int, odd: _Break) -> str:
    made = group.frontiers[odd.rank].call(seq)
    passed, taken = (None, None) if made is None else _moved(made)
    was = odd.due[::-1] if odd.back else odd.due
    way = "reverse" if odd.back else "repeat"
    return (
        f"passes {passed} and takes {taken} elements in an all-to-all in which its peers' sizes {way} call {odd.seq}, "
        f"where it passed {was[0]} and took {was[1]}"
    )


def _odd(group: Group, seq: int) -> _Break | None:
    """Return the only rank that can be the odd one of this call, with the latest earlier call that shows it."""
    now = {rank: call for rank, f in group.frontiers.items() if (call := f.call(seq)) is not None}
    first = next(iter(now.values()), None)
    if first is None or set(group.ranks) != now.keys() or len(now) - 1 < MIN_WITNESSES:
        return None
    version = version_of(first)
    if not str(version[0]).startswith("alltoall") or any(version_of(c) != version for c in now.values()):
        return None
    breaks: list[_Break] = []
    for before, log in _earlier(group, seq):
        for back in (False, True):
            odd = _unlike(now, log, back=back)
            if not odd:
                return None
            if len(odd) == 1:
                due = _moved(log[odd[0]])
                breaks.append(_Break(odd[0], before, back, due[::-1] if back else due))
    return breaks[0] if len({(b.rank, b.due) for b in breaks}) == 1 else None


def _earlier(group: Group, seq: int) -> Iterator[tuple[int, dict[int, Signature]]]:
    """Yield the group's calls before this number that every ring holds, the latest first."""
    frontiers: list[Frontier] = list(group.frontiers.values())
    for before in reversed([int(s) for s in frontiers[0].tail.seq if s < seq]):
        calls = {f.rank: call for f in frontiers if (call := f.call(before)) is not None}
        if len(calls) < len(frontiers):
            return
        yield before, calls


def _unlike(now: Mapping[int, Signature], log: Mapping[int, Signature], *, back: bool) -> list[int]:
    """Return up to two ranks that do not repeat (`back`: reverse) an earlier call."""
    odd = []
    for rank, call in now.items():
        before = log[rank]
        moved = _moved(before)[::-1] if back else _moved(before)
        if version_of(before) != version_of(call) or moved != _moved(call):
            odd.append(rank)
            if len(odd) == 2:
                break
    return odd


def _moved(call: Signature) -> Moved:
    return numel(call.input_sizes), numel(call.output_sizes)

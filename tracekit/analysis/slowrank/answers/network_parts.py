"""What is common to the slow transfers of an answer: a rank, one direction, a card, a host, a switch or a rail.

Each transfer passes parts of the network. A part is at fault where it is on the way of the slow transfers, weighted by
what they take longer, and of no typical one. Where several parts are, these transfers do not separate them, and all
are listed, the smallest first. Hosts are known from traces or from the user's file, switches and rails from that alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.answers.expert_waits import (
    UNSEPARATED,
    Part,
    calls_of,
    of_experts,
    parts_by_load,
)
from tracekit.analysis.slowrank.hypotheses.slow_link import briefest
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.case.case import Case
from tracekit.case.wording import listed
from tracekit.causes import NETWORK
from tracekit.expected.like_transfers import comparable, message_of
from tracekit.expected.nodes import nodes_of
from tracekit.findings import NetworkPart
from tracekit.placement import Place
from tracekit.thresholds.slowrank import MAJORITY, RANKS_LISTED
from tracekit.units import F64

KINDS: Final = ("way", "pair", "send", "receive", "rank", "card", "hosts", "host", "rail", "switch")
"""Kinds of parts, the smallest first. A `way` is a pair in one direction, `hosts` the path between two hosts."""
ONE_WAY: Final = frozenset({"way", "send", "receive"})


@dataclass(frozen=True)
class Transfers:
    """The transfers of one channel in a family of channels that carry the same message along the same axes.

    members: (source, destination) of messages. took: ns a transfer. slow: whether the decision takes them for slow.
    """

    members: tuple[int, ...]
    message: bool
    family: int
    took: float
    slow: bool


def _excess(took: float, others: Sequence[float]) -> tuple[float, float]:
    """(how much longer transfers take than the median of `others`, ns, the share of that); none without others."""
    usual = float(np.median(others)) if others else took
    longer = max(took - usual, 0.0)
    return longer, longer / max(usual, 1.0)


def parts_of(transfers: Transfers, places: Mapping[int, Place]) -> set[Part]:
    """Return the parts of the network that transfers pass; links inside a host are parts of their ranks alone."""
    members = transfers.members
    parts: set[Part] = set()
    if transfers.message:
        source, target = members
        pair = tuple(sorted(members))
        parts |= {("way", members), ("pair", pair), ("send", (source,)), ("receive", (target,))}
    known = {m: places[m] for m in members if m in places and places[m].host}
    hosts = sorted({place.host for place in known.values()})
    across = len(hosts) > 1
    for member in members:
        place = known.get(member, Place())
        parts.add(("rank", (member,)))
        if across and place.rail:
            parts |= {("card", (place.host, place.rail)), ("rail", (place.rail,))}
        if across and place.host:
            parts.add(("host", (place.host,)))
        if across and place.switch:
            parts.add(("switch", (place.switch,)))
    if len(hosts) == len(("here", "there")):
        parts.add(("hosts", tuple(hosts)))
    return parts


def common_parts(transfers: Sequence[Transfers], places: Mapping[int, Place]) -> tuple[Part, ...]:
    """Return the parts on the way of the slow transfers and of no typical one, the smallest first.

    A part must cover all that they take longer. Transfers that are not slow clear a part where they are as
    fast as others of their family: where a whole family without slow ones passes it, nothing shows its usual time.
    One direction is a part only where the other one is typical.
    """
    families: dict[int, list[tuple[Transfers, set[Part]]]] = {}
    kinds = {_leaves_host(t, places) for t in transfers if t.slow}
    for t in transfers:
        if _leaves_host(t, places) in kinds:
            families.setdefault(t.family, []).append((t, parts_of(t, places)))
    weights: dict[Part, float] = {}
    struck: list[tuple[float, float]] = []
    for family in families.values():
        sound = [t.took for t, _ in family if not t.slow]
        for t, parts in family:
            if t.slow:
                struck.append(_excess(t.took, sound))
                for part in parts:
                    weights[part] = weights.get(part, 0.0) + struck[-1][0]
    least = sum(ns for ns, _ in struck)
    covering = [part for part, weight in weights.items() if weight >= least]
    fits = [part for part in covering if not any(_clears(f, part, struck) for f in families.values())]
    if any(kind not in ONE_WAY for kind, _ in fits):
        fits = [part for part in fits if part[0] not in ONE_WAY]
    cards = {r for r, place in places.items() if ("card", (place.host, place.rail)) in fits}
    fits = [part for part in fits if part[0] != "rank" or part[1][0] not in cards]  # the same, said better
    return tuple(sorted(fits, key=_order))


def _clears(
    family: Collection[tuple[Transfers, set[Part]]], part: Part, struck: Sequence[tuple[float, float]]
) -> bool:
    """Whether transfers that are not slow pass `part`, by half of what the slow ones show.

    Their usual time is that of the sound transfers beside slow ones, else of those of the family that do not pass it.
    """
    beside = [t.took for t, parts in family if part not in parts]
    if any(t.slow for t, _ in family):
        beside = [t.took for t, _ in family if not t.slow]
    limit = [MAJORITY * float(np.median(values)) for values in zip(*struck, strict=True)]
    over = [_excess(t.took, beside) for t, parts in family if part in parts and not t.slow]
    return bool(beside) and any(ns < limit[0] and share < limit[1] for ns, share in over)


def _leaves_host(t: Transfers, places: Mapping[int, Place]) -> bool | None:
    """Whether transfers leave a host; None where hosts are unknown."""
    hosts = {places[m].host for m in t.members if m in places}
    return None if "" in hosts or not all(m in places for m in t.members) else len(hosts) > 1


def located(case: Case, answer: Answer) -> Answer:
    """Return `answer`, with the parts of the network that its slow transfers share where a slow link is its cause."""
    named = (*answer.suspects, *answer.candidates)
    if case.table is not None or not named or any(s.cause != NETWORK for s in named):
        return answer
    slow = answer.slow_channels
    if not slow:
        return answer
    places = places_of(case)
    dealt = [calls_of(case, case.ops.channels[n]) for n in slow if of_experts(case, n)]
    loaded = {part for calls in dealt for part in parts_by_load(calls)}
    found = sorted(loaded, key=_order) if loaded else common_parts(transfers_of(case, slow), places)
    parts = tuple(_in_words(case, part, places) for part in found)
    shared = sentence(parts) if any(part.kind != "rank" for part in parts) else ""
    shared = UNSEPARATED if dealt and not parts else shared
    return replace(answer, network_parts=parts, reason="; ".join(filter(None, (answer.reason, shared))))


def _order(part: Part) -> tuple[int, tuple[object, ...]]:
    """The place of a part in a list: the smallest kind first."""
    return KINDS.index(part[0]), part[1]


def places_of(case: Case) -> dict[int, Place]:
    """Return the place of each rank as far as known: by the user's file, else the node that traces show."""
    places = case.run.places
    return {
        rank: places.get(rank) or Place(node if isinstance(node, str) else f"node {node}")
        for rank, node in nodes_of(case).items()
    }


def transfers_of(case: Case, slow_channels: Collection[int]) -> list[Transfers]:
    """Return the transfers of every channel that was compared, once for each message that it carries.

    Both directions between two ranks count with their mean, as their clocks may differ, unless the durations at their
    ends, which need no clock, show that one of them takes all the time.
    """
    message, scale = message_of(case)
    spent, brief, known = case.waits.delivery / scale, briefest(case) / scale, case.ops.channels
    found = []
    for number, channels in enumerate(comparable(case, message, nodes_of(case))):
        took = {c: _level(spent, numbers) for c, numbers in channels.items()}
        ends = {c: _level(brief, numbers) for c, numbers in channels.items()}
        usual, shortest = float(np.median(list(took.values()))), float(np.median(list(ends.values())))
        back = {known[c].members: c for c in channels if known[c].p2p}
        for c, here in took.items():
            other = back.get(known[c].members[::-1], c) if known[c].p2p else c
            level, slow = (here + took[other]) / 2, c in slow_channels
            one, two = (max(ends[end] - shortest, 0.0) for end in (c, other))
            alone = max(one, two) > level - usual and min(one, two) < MAJORITY * max(one, two)
            if other != c and slow and alone:
                level, slow = (usual + one, True) if one > two else (usual, False)
            found.append(Transfers(known[c].members, known[c].p2p, number, level, slow))
    return found


def _level(spent: F64, numbers: Sequence[int]) -> float:
    """The median of `spent` (ns) over instances of one channel."""
    return float(np.median(spent[np.array(numbers)]))


def _in_words(case: Case, part: Part, places: Mapping[int, Place]) -> NetworkPart:
    """A part with its name and its ranks, as a finding holds it."""
    kind, name = part
    everywhere = sorted(r for r in places if r in case.mesh.coordinates)
    first = str(name[0])
    holds: Mapping[str, Iterable[int]] = {
        "card": (r for r in everywhere if (places[r].host, places[r].rail) == name),
        "host": (r for r in everywhere if places[r].host == first),
        "hosts": (r for r in everywhere if places[r].host in name),
        "rail": (r for r in everywhere if places[r].rail == first),
        "switch": (r for r in everywhere if places[r].switch == first),
    }
    ranks = tuple(holds[kind]) if kind in holds else tuple(int(str(rank)) for rank in name)
    host = first if first.startswith("node ") else f"host {first}"
    words = {
        "way": f"the way from rank {first} to rank {name[-1]}",
        "pair": f"the link between rank {first} and rank {name[-1]}",
        "send": f"the sending side of rank {first}",
        "receive": f"the receiving side of rank {first}",
        "rank": f"rank {first}",
        "card": f"the card of {host} on rail {name[-1]} (rank {listed(ranks)})",
        "hosts": f"the path between {host.removesuffix(first)}{first} and {name[-1]}",
        "host": f"the network of {host}",
        "rail": f"rail {first}",
        "switch": f"switch {first}",
    }
    return NetworkPart(kind, words[kind], ranks)


def sentence(parts: Sequence[NetworkPart]) -> str:
    """Return the words on what slow transfers share: one part, or all parts that the transfers do not separate."""
    names = [part.name for part in parts[:RANKS_LISTED]]
    if len(parts) == 1:
        return f"they share only {names[0]}"
    more = f", or {len(parts) - len(names)} more" if len(parts) > len(names) else ""
    last = "" if more else f" or {names.pop()}"
    return f"they share {', '.join(names)}{last}{more}, which these transfers do not separate"

"""Circles of waiting: who went past a call which everybody else in the same place makes first.

A rank that leaves a collective out runs on and soon waits itself, so that nobody in the circle is idle. But ranks of
one place in the mesh run one program: those that made both calls, or only the first, show the order. Used by `hang`.
"""

from collections import defaultdict
from itertools import combinations

from tracekit.analysis.hang.call_order import Places, places_of
from tracekit.analysis.hang.groups import Group, Row
from tracekit.analysis.hang.wait_graph import Graph, Hub
from tracekit.dumps.dump import Signature
from tracekit.dumps.load import DumpSet


def out_of_step(groups: list[Group], graph: Graph, dumps: DumpSet) -> dict[int, tuple[int, int]]:
    """Find ranks that left a call out, with its group and number.

    Such a rank is behind in one group and has issued a later call, which all ranks in those places that show an
    order issue after the one it lacks; and they are many.
    """
    odd: dict[int, tuple[int, int]] = {}
    stances: dict[tuple[tuple[str, int], int, tuple[str, int], int], tuple[set[int], int]] = {}
    for rank, hubs in graph.behind_in.items():
        for at in hubs:
            hub = graph.hubs[at]
            for other in graph.waits.get(rank, ()):
                ahead = graph.hubs[other]
                if ahead.group == hub.group:
                    continue
                key = (groups[hub.group].role, hub.seq, groups[ahead.group].role, ahead.seq)
                if key not in stances:
                    stances[key] = _stances(groups, *key)
                past, usual = stances[key]
                if rank in past and 2 * len(past) <= usual:
                    odd[rank] = (hub.group, hub.seq)
    return odd or _past_by_pairs(groups, graph, dumps) or _crossed(groups, graph, dumps)


def left_out(groups: list[Group], dumps: DumpSet) -> dict[int, tuple[int, int, Signature]]:
    """Find a rank that left out a send or receive which all ranks of its stage make: its later ones are shifted."""
    logs: dict[tuple[str, int, int], dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in dumps.dumps.items():
        kept = dump.messages
        for number, seq, name in zip(kept.group.tolist(), kept.seq.tolist(), kept.names, strict=True):
            tail = dump.groups[number]
            if rank in tail.ranks and not dump.truncated:
                role = (tail.desc, len(tail.ranks), tail.ranks.index(rank))
                made = logs[role][rank]
                made[seq] = made.get(seq, "") + name
    odd: dict[int, tuple[int, int, Signature]] = {}
    for (desc, size, _), mates in logs.items():
        for rank, log in mates.items():
            missed = _first_shift(log, [other for r, other in mates.items() if r != rank])
            if missed is not None:
                number = next(
                    i
                    for i, g in enumerate(groups)
                    if rank in g.rows and g.desc == desc and len(g.ranks) == size
                )
                odd[rank] = (number, *missed)
    return odd if len(odd) == 1 else {}


def _first_shift(log: dict[int, str], others: list[dict[int, str]]) -> tuple[int, Signature] | None:
    """Give the call from which on `log` is one ahead of all `others`, which agree; None where it is not."""
    if len(others) < 2:
        return None
    usual: dict[int, set[str]] = defaultdict(set)
    for other in others:
        for seq, name in other.items():
            usual[seq].add(name)
    differ = [s for s, name in sorted(log.items()) if usual[s] and usual[s] != {name}]
    if not differ or any(len(usual[s]) > 1 for s in log):
        return None
    first = differ[0]
    shifted = [usual[s + 1] == {name} for s, name in log.items() if s >= first and usual[s + 1]]
    before = [s for s in log if s < first and usual[s]]
    if not (shifted and all(shifted) and before):
        return None
    name = next(iter(usual[first]))
    return first, (name[name.find(":") + 1 :], "", "", "", "")


def _past_by_pairs(groups: list[Group], graph: Graph, dumps: DumpSet) -> dict[int, tuple[int, int]]:
    """Find the same where the later call is a send or receive, still outstanding on ranks of the same stage."""
    same: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, dump in dumps.dumps.items():
        for op in dump.p2p:
            same[dump.groups[op.group].desc, op.text, op.seq].append((rank, op.created))
    rows: dict[tuple[tuple[str, int], int], Row] = {
        (g.role, r.rank): r for g in groups for r in g.rows.values() if r.enqueued >= 0
    }
    odd: dict[int, tuple[int, int]] = {}
    for users in same.values():
        for rank, _ in users:
            for at in graph.behind_in.get(rank, ()):
                hub = graph.hubs[at]
                role = groups[hub.group].role
                past = [r for r, _ in users if (role, r) in rows and rows[role, r].enqueued < hub.seq]
                order = [
                    (rows[role, r].created(hub.seq), t)
                    for r, t in users
                    if (role, r) in rows and rows[role, r].enqueued >= hub.seq
                ]
                usual = [made is not None and made < t for made, t in order]
                if usual and all(usual) and len(past) <= len(usual):
                    odd[rank] = (hub.group, hub.seq)
    return odd


def _crossed(groups: list[Group], graph: Graph, dumps: DumpSet) -> dict[int, tuple[int, int]]:
    """Find ranks that made two calls, both of which everybody waits in, the other way round than their peers.

    A rank that leaves out one of many alike calls makes the next of them under its number, but later. Asked are the
    members of both groups, unless they are all ranks: other stages may run other programs.
    """
    odd: dict[int, tuple[int, int]] = {}
    asked: dict[tuple[int, int], dict[int, bool]] = {}
    places = places_of(groups, set(dumps.world))
    for rank, hubs in graph.waits.items():
        for pair in combinations(sorted(h for h in hubs if graph.hubs[h].in_flight), 2):
            if pair not in asked:
                asked[pair] = _ways(groups, places, [graph.hubs[h] for h in pair], len(dumps.world))
            ways = asked[pair]
            if rank not in ways:
                continue
            alike = sum(way == ways[rank] for way in ways.values())
            if len(ways) - alike > 1 and 2 * alike <= len(ways) - alike:
                late = graph.hubs[pair[1] if ways[rank] else pair[0]]
                odd[rank] = (late.group, late.seq)
    return odd


def _ways(groups: list[Group], places: Places, pair: list[Hub], world: int) -> dict[int, bool]:
    """Whether members of these two groups made the first call before the second, each in its own place."""
    narrow = [
        groups[h.group] for h in pair if len(groups[h.group].ranks) < world and not groups[h.group].mixed
    ]
    found: dict[int, bool] = {}
    for rank in sorted({r for g in narrow for r in g.ranks}):
        times = []
        for hub in pair:
            alike = places[rank].get(groups[hub.group].role, [])
            number = hub.group if hub.group in alike else alike[0] if len(alike) == 1 else None
            times.append(None if number is None else groups[number].rows[rank].created(hub.seq))
        if times[0] is not None and times[1] is not None and times[0] != times[1]:
            found[rank] = times[0] < times[1]
    return found


def _stances(
    groups: list[Group], lacks: tuple[str, int], seq: int, has: tuple[str, int], other: int
) -> tuple[set[int], int]:
    """Find ranks that issued `other` without `seq`, and count those that issue `seq` first (0 if some do not)."""
    first: dict[int, Row] = {}
    second: dict[int, Row] = {}
    for group in groups:
        for row in group.rows.values():
            if row.enqueued >= 0 and group.role == lacks:
                first[row.rank] = row
            if row.enqueued >= 0 and group.role == has:
                second[row.rank] = row
    past: set[int] = set()
    usual = 0
    for rank in first.keys() & second.keys():
        made, passed = first[rank].enqueued >= seq, second[rank].enqueued >= other
        if made and passed:
            at, then = first[rank].created(seq), second[rank].created(other)
            if at is None or then is None:
                continue
            if at > then:
                return past, 0
        usual += made
        if passed and not made:
            past.add(rank)
    return past, usual

"""A host that launches more slowly than its peers' hosts, priced although its device works no longer.

Its device computes while late operations are missing, so its own time equals its peers'. The price is what a step model
saves in which the rank issues its operations when a peer does; the pace of its launches shows that its host is the
reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tracekit.analysis.slowrank.hypotheses.suspect_work import pace_beside
from tracekit.analysis.slowrank.price import Price, rank_doubt_ns
from tracekit.case.case import Case
from tracekit.case.cures import with_hosts
from tracekit.step_graph.replay import StepModel
from tracekit.thresholds.slowrank import KIND_RATIO, MINOR, NO_ACCIDENT, PEERS_SAMPLED, STAGE_TELLING_PEERS
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class SlowLaunch:
    """The rank with the slow host (row of Steps), and the saving of a step if it issues as its peers do; ns."""

    row: int
    price: Price
    pace: tuple[float, float]  # between two launches: of its own host, of its peers' hosts


def slow_launch(case: Case) -> SlowLaunch | None:
    """The rank that costs the threshold or more because its host launches too slowly; None where none is proven.

    The others wait for it in every step, its host needs longer between launches than its peers' hosts, and a step is
    shorter if it issues as any of its peers does, by more than the model's error.
    """
    if case.timeline is None or len(case.steps.numbers) < NO_ACCIDENT or case.coverage.matched != 1:
        return None
    waited = waited_for(case)
    least = max(case.threshold_ns, case.residual_ns)
    for row in np.argsort(-waited.mean(axis=1), kind="stable")[:PEERS_SAMPLED].tolist():
        recurs = waited[row].min() >= MINOR * waited[row].mean() > 0
        pace = pace_beside(case, row) if recurs else None
        if pace is None or pace[0] <= KIND_RATIO * pace[1]:
            continue
        saved = saved_as_peers(case, row)
        if len(saved) >= STAGE_TELLING_PEERS and saved.min() >= least:
            price = Price(*np.quantile(saved, (0.0, 0.5, 1.0)).tolist())
            return SlowLaunch(row, price.widened(rank_doubt_ns(case, np.array([row]))), pace)
    return None


def waited_for(case: Case) -> F64:
    """Return the median wait of the others for a rank that joins a collective last, ns, by row × column of Steps."""
    waits = {last: float(np.median(case.waits.exposed_wait[others])) for last, others in awaited(case)}
    return case.by_step(np.array([*waits], np.int64), np.array([*waits.values()]))


def awaited(case: Case) -> Iterator[tuple[int, I64]]:
    """(the last operation to arrive, the other operations) of each collective with all members and launches."""
    rows, bounds = complete_collectives(case, np.isfinite(case.ops.at_ready))
    for begin, end in pairwise(bounds.tolist()):
        last = int(case.waits.last[case.ops.instance[rows[begin]]])
        yield last, rows[begin:end][rows[begin:end] != last]


def complete_collectives(case: Case, among: Mask) -> tuple[I64, I64]:
    """(operations of complete collectives `among` those chosen, by instance; where each instance begins, and the end).

    Such an instance has several operations, and the last one to arrive is among them.
    """
    ops, waits = case.ops, case.waits
    rows = np.flatnonzero((ops.instance >= 0) & case.analysed & ~case.in_message & among)
    rows = rows[waits.complete[ops.instance[rows]]]
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    _, place, size = np.unique(ops.instance[rows], return_inverse=True, return_counts=True)
    there = np.bincount(place, rows == waits.last[ops.instance[rows]], len(size)) > 0
    kept = there & (size > 1)
    return rows[kept[place]], np.append(0, np.cumsum(size[kept]))


def saved_as_peers(case: Case, row: int) -> F64:
    """The saving of a step if the rank in `row` issues as a peer does, ns, for each of up to STAGE_TELLING_PEERS peers.

    Takes the first peers that run the same operations, and stops after a peer that saves less than the threshold.
    """
    saved: list[float] = []
    for quick in as_peers(case, row):
        saved.append(case.model.recorded_ns - quick.recorded_ns)
        if len(saved) == STAGE_TELLING_PEERS or saved[-1] < case.threshold_ns:
            break
    return np.array(saved)


def as_peers(case: Case, row: int) -> Iterator[StepModel]:
    """Yield for each peer with the same operations the model of the step in which `row` issues as the peer does."""
    places, stage = places_of(case), case.stage_of(row)
    model = None if case.timeline is None else with_hosts(case, case.timeline, [row])
    peers = np.roll(stage, -int(np.flatnonzero(stage == row)[0]))[1:].tolist()
    made = (_as_peer(case, model, places, (row, mate)) for mate in peers if model is not None)
    yield from (quick for quick in made if quick is not None)


def _as_peer(case: Case, model: StepModel, places: I64, pair: tuple[int, int]) -> StepModel | None:
    """`model` with the first row of `pair` issuing as the second does; None where they run different operations."""
    row, mate = pair
    mine, theirs = rows = np.full((2, int(places.max(initial=-1)) + 1), -1, np.int64)  # by place
    for side, where in zip(rows, (case.ops.of(case.steps.ranks[r]) for r in pair), strict=True):
        side[places[where]] = np.arange(where.start, where.stop)
    if not np.array_equal(mine >= 0, theirs >= 0):
        return None
    own = np.full(len(case.ops.rank), -1, np.int64)
    own[theirs[theirs >= 0]] = mine[mine >= 0]
    runs = []
    for columns, lines in model.runs:
        by_row = {line.row: line for line in lines}
        if row not in by_row or mate not in by_row:
            return None
        other = by_row[mate]
        taken = replace(other, row=row, events=own[other.events].astype(np.int32), start=by_row[row].start)
        runs.append((columns, tuple(taken if line.row == row else line for line in lines)))
    return replace(model, runs=tuple(runs))


def places_of(case: Case) -> I64:
    """The place of each operation: the number of the shape of its group, its kind, its step and the ordinal in that."""
    ops = case.ops
    kinds: dict[object, int] = {}
    sides = np.array([_sides(case, number, kinds) for number in range(len(ops.channels))], np.int64)
    sides = np.append(sides.reshape(-1, 2), [[-1, -1]], axis=0)  # channel -1 takes the last one
    first = np.array([c.members[0] for c in ops.channels] + [-1], np.int64)
    side = sides[ops.channel, (first[ops.channel] != ops.rank).astype(np.int64)]
    _, op = ops.kinds
    order = np.lexsort((ops.start, ops.step, op, side, ops.rank))
    columns = np.stack([side, op, ops.step, ops.rank])[:, order]
    new = np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0))[: len(order)]
    begins = np.flatnonzero(new)
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    _, code = np.unique(np.stack([*columns[:3], turn]), axis=1, return_inverse=True)
    place = np.empty(len(order), np.int64)
    place[order] = code.reshape(-1)
    return place


def _sides(case: Case, number: int, kinds: dict[object, int]) -> tuple[int, int]:
    """The kind of the channel `number` for its first member and for any other member; `kinds` numbers the kinds."""
    channel = case.ops.channels[number]
    if not channel.p2p:
        same = ("group", case.shape_of(channel) or len(channel.members))
        at = kinds.setdefault(same, len(kinds))
        return at, at
    source, to = (case.mesh.coordinates.get(m) for m in channel.members)
    apart = tuple(b - a for a, b in zip(source, to, strict=True)) if source and to else ("unknown",)
    return kinds.setdefault(("from", apart), len(kinds)), kinds.setdefault(("to", apart), len(kinds))

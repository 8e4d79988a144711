"""Which division of the ranks leaves together at each position of the step, on streams that carry several groups.

From torch 2.8 on a collective with async_op=False runs on its caller's stream, and a CUDA graph launches on the
streams that it was captured from, whatever the group. An operation without a group there may belong to any group of
the ranks, but the same position belongs to the same group in every step.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracekit.inference.groups.common_ends import (
    ClockErrors,
    Members,
    Together,
    arrivals,
    beyond_tail,
    most_apart,
)
from tracekit.inference.groups.stream_sequences import UNTOLD_KINDS, StreamClass, stream_classes, unnamed_rows
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.rank_ops import RankOps
from tracekit.thresholds.tables import (
    APART_QUANTILE,
    CLEAREST_TAIL_NS,
    CLEARLY_APART,
    LEAST_ALIGNED_ENDS,
    LEAST_BLIND_ENDS,
    LEAST_STEPS_BY_PLACE,
    LEAST_TAIL_NS,
    LEAST_WIDER_ENDS,
    PAIRS_COMPARED,
    PLACES_TRIED,
    PROVING_LEAD,
    ROUNDS_OF_FIT,
    TAIL_NS,
    TOGETHER,
)
from tracekit.units import F64, I64

Division = Sequence[Members]
Columns = npt.NDArray[np.bool_]


def ways_by_place(
    streams: StreamClass, ways: Sequence[Division], barred: Mapping[int, Collection[int]] | None = None
) -> dict[int, int]:
    """Return position → index of the way that leaves together there, without positions that stay open.

    barred: place → the ways that it cannot have. All places are compared at once, then those of each kind that are
    still open, so that a group with few places is found beside one with many: without a common clock the better half of
    the ends gives the clocks.
    """
    least = LEAST_ALIGNED_ENDS if streams.aligned else LEAST_BLIND_ENDS
    if len(streams.places) < LEAST_STEPS_BY_PLACE * len(streams.usual):
        return _by_kind(streams, ways, barred) if len(streams.places) >= least else {}
    found: dict[int, int] = {}
    for kind in (None, *sorted(set(streams.usual))):
        left = [p for p, k in enumerate(streams.usual) if p not in found and kind in {None, k}]
        columns = np.isin(streams.places, left)
        if columns.sum() >= least:
            found |= _Compared(streams, columns, ways, barred).decided()
    return found


def _by_kind(
    streams: StreamClass, ways: Sequence[Division], barred: Mapping[int, Collection[int]] | None
) -> dict[int, int]:
    """Return `ways_by_place` if too few steps were recorded to judge single places: all places of a kind are one."""
    first = {kind: streams.usual.index(kind) for kind in streams.usual}
    kinds = {first[kind]: [p for p, k in enumerate(streams.usual) if k == kind] for kind in first}
    none = {one: {w for p in places for w in (barred or {}).get(p, ())} for one, places in kinds.items()}
    columns = np.ones(len(streams.places), bool)
    made = replace(streams, places=tuple(first[kind] for kind in streams.kinds))
    ways_of_kinds = _Compared(made, columns, ways, none).decided()
    return {place: way for one, way in ways_of_kinds.items() for place in kinds[one]}


def carries_others(streams: StreamClass, way: Division, known: Collection[int]) -> bool:
    """Return whether members of the groups of `way` leave clearly apart at a position that has no way yet."""
    scores = _Compared(streams, np.ones(len(streams.places), bool), [way]).scores[0]
    return any(s >= CLEARLY_APART * TAIL_NS for place, s in scores.items() if place not in known)


def leave_apart(streams: StreamClass, place: int, groups: Division) -> bool:
    """Return whether members of `groups` leave clearly apart at a place of a class with aligned clocks."""
    scores = _Compared(streams, np.array(streams.places) == place, [groups]).scores[0]
    return scores.get(place, 0.0) >= CLEARLY_APART * TAIL_NS


def stand_still_as_one(streams: StreamClass, place: int, groups: Division) -> bool:
    """Return whether all members of some of `groups` are idle at a place for far longer than members of others.

    Then they wait for other ranks, in a wider group, unless their link is slow.
    """
    row = {rank: i for i, rank in enumerate(streams.kept)}
    columns = np.array(streams.places) == place
    lasted = (streams.ends - streams.starts)[:, columns]
    least = [lasted[rows].min(axis=0) for g in groups if (rows := [row[r] for r in g if r in row])]
    if len(least) < len(("one", "other")):
        return False
    longest, shortest = (float(np.median(f(least, axis=0))) for f in (np.max, np.min))
    return longest >= TOGETHER * max(shortest, TAIL_NS)


class _Compared:
    """Some columns of a class, and how far apart the groups of each way leave at each position."""

    def __init__(
        self,
        streams: StreamClass,
        columns: Columns,
        ways: Sequence[Division],
        barred: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        self._barred = barred or {}
        at = np.array(streams.places)[columns]
        self._columns = {place: np.flatnonzero(at == place) for place in np.unique(at).tolist()}
        self._ends = streams.ends[:, columns]
        self._lasted: F64 = self._ends - streams.starts[:, columns]
        self._aligned = streams.aligned
        self._clocks = ClockErrors(np.median(self._ends, axis=0), streams.doubt, streams.drifts)
        row = {rank: i for i, rank in enumerate(streams.kept)}
        self._rows = [[r for g in way if len(r := [row[m] for m in g if m in row]) > 1] for way in ways]
        self._kinds = np.array(streams.kinds)[columns]
        self._exact_pairs = streams.exact_pairs
        self.scores = [self._scored(rows) for rows in self._rows]

    def decided(self) -> dict[int, int]:
        """Return place → way, if only one way leaves together and its members waited for each other.

        The tails at the clear places show how closely members leave at the others.
        """
        usual = np.full(len(self.scores), LEAST_TAIL_NS)
        found = self._decided(usual)
        for way in set(found.values()):
            tails = [self.scores[w][place] for place, w in found.items() if w == way]
            usual[way] = max(CLEAREST_TAIL_NS, TOGETHER * float(np.median(tails)))
        return self._decided(np.minimum(usual, LEAST_TAIL_NS)) | found

    def _decided(self, tails: F64) -> dict[int, int]:
        """Return position → way; ends closer than the way's entry of `tails`, ns, count as that far apart."""
        shown = {place: self._way_at(place, tails) for place in self._columns}
        found = {place: way for place, (way, alone) in shown.items() if way is not None and not alone}
        lone: dict[int, list[int]] = {}
        for place, (way, alone) in shown.items():
            if way is not None and alone:
                lone.setdefault(way, []).append(place)
        for way, places in lone.items():
            mine = [*places, *(p for p, w in found.items() if w == way)]
            if self._proven(way, mine):
                found |= dict.fromkeys(places, way)
        return found

    def _way_at(self, place: int, tails: F64) -> tuple[int | None, bool]:
        """Return (the way that the ends at a position show, or None; whether it fits alone, with unproven waits)."""
        ends = np.array([scores.get(place, np.inf) for scores in self.scores])
        ends[list(self._barred.get(place, ()))] = np.inf
        least = np.maximum(float(ends.min(initial=np.inf)), tails)
        close = np.flatnonzero(ends <= TOGETHER * least).tolist()
        far = ends >= CLEARLY_APART * least
        clear = self._clocks.tell(len(self._columns[place])) and float(ends.min(initial=np.inf)) <= TAIL_NS
        if not close or not clear or len(close) + far.sum() < len(ends):
            return None, False
        best = max(close, key=lambda w: max(len(rows) for rows in self._rows[w]))
        home = {row: n for n, rows in enumerate(self._rows[best]) for row in rows}
        if any(len({home.get(r) for r in rows}) > 1 for w in close for rows in self._rows[w]):
            return None, False
        finer = [self._rows[w] for w in close if w != best] or [[]]
        columns, apart = self._columns[place], max(LEAST_TAIL_NS, ends[best])
        known = UNTOLD_KINDS.isdisjoint(self._kinds[columns].tolist())
        ways = (arrivals(self._lasted[:, columns], self._rows[best], units) for units in finer)
        if self._proven(best, [place]) or all(way.tell(apart, collective=known) for way in ways):
            return best, False
        return (best, True) if len(close) == 1 else (None, False)

    def _proven(self, way: int, places: Sequence[int]) -> bool:
        """Whether a member of the groups of `way` came last at `places` by far more than their ends differ."""
        columns = np.concatenate([self._columns[p] for p in places])
        apart = max(LEAST_TAIL_NS, *(self.scores[way][p] for p in places))
        lead = arrivals(self._lasted[:, columns], self._rows[way], ()).lead
        return float(np.quantile(lead, APART_QUANTILE)) >= PROVING_LEAD * apart

    def _scored(self, groups: Sequence[list[int]]) -> dict[int, float]:
        """Return position → how far apart most ends of members are, ns; empty where no group has two of the ranks."""
        pairs = [(rows[0], other) for rows in groups for other in rows[1:]]
        if not pairs:
            return {}
        picked = np.unique(np.linspace(0, len(pairs) - 1, min(len(pairs), PAIRS_COMPARED)).astype(int))
        one, other = np.array(pairs).T[:, picked]
        away = self._ends[other] - self._ends[one]
        if not self._aligned:
            away = self._without_clocks(away)
        first, second = self._exact_pairs(groups)
        exact = self._ends[second] - self._ends[first]
        return {
            place: max(
                most_apart(self._clocks.of(columns).taken_out(away[:, columns])),
                beyond_tail(exact[:, columns]),
            )
            for place, columns in self._columns.items()
        }

    def _starts(self) -> list[I64]:
        """Return column sets from which a fit may start: all, each kind's, and some positions'."""
        places = list(self._columns)
        picked = np.unique(np.linspace(0, len(places) - 1, min(len(places), PLACES_TRIED)).astype(int))
        starts = [np.arange(len(self._kinds))]
        starts += [np.flatnonzero(self._kinds == kind) for kind in np.unique(self._kinds)]
        return starts + [self._columns[places[i]] for i in picked.tolist()]

    def _without_clocks(self, away: F64) -> F64:
        """Return `away` without the offset and drift that fit the better half of the columns best."""
        when = np.median(self._ends, axis=0)
        base = np.stack([np.ones(len(when)), (when - when.mean()) / (float(np.std(when)) or 1.0)], axis=1)
        half = len(when) // 2 + 1
        best, least = away, np.inf
        for chosen in self._starts():
            better = chosen
            for _ in range(ROUNDS_OF_FIT):
                slopes = np.linalg.lstsq(base[better], away[:, better].T, rcond=None)[0]
                left = away - (base @ slopes).T
                worst = np.quantile(np.abs(left), APART_QUANTILE, axis=0)
                better = np.sort(np.argsort(worst, kind="stable")[:half])
            reached = float(worst[better].max())
            if reached < least:
                best, least = left, reached
        return best


# Splits streams that carry several groups: a kind that ends together on more ranks than the rest is another
# group's.
#
# From torch 2.8 on, a collective that is waited for runs on its caller's stream, for any group; only ends
# separate it from the others there.


def streams_apart(ranks: Sequence[RankOps]) -> list[RankOps]:
    """Return `ranks` with a separate stream number for each kind that ends together where its stream does not.

    A thread of Gloo serves one group, so it is not divided.
    """
    stream = {r.rank: r.stream.copy() for r in ranks if r.stream is not None}
    rows = {r.rank: unnamed_rows(r) for r in ranks}
    kinds = {r.rank: r.op for r in ranks}
    free = 1 + max((int(s.max(initial=0)) for s in stream.values()), default=0)
    for streams in stream_classes([r for r in ranks if r.on_gpu]):
        for kind in wider_kinds(streams):
            for rank, old in streams.streams.items():
                stream[rank][rows[rank] & (stream[rank] == old) & among(kinds[rank], (kind,))] = free
            free += 1
    return [replace(r, stream=stream.get(r.rank)) for r in ranks]


def wider_kinds(streams: StreamClass) -> Iterator[str]:
    """Yield the kinds with ends that agree on all ranks of a class, some waiting, while ends of other kinds do not."""
    kinds = np.array(streams.kinds)
    for kind in sorted(set(streams.kinds)):
        mine = kinds == kind
        if min(mine.sum(), (~mine).sum()) < LEAST_WIDER_ENDS:
            continue
        apart, rest = (Together(_only(streams, m)).apart([streams.kept]) for m in (mine, ~mine))
        if apart is None or rest is None:
            continue
        lasted = (streams.ends - streams.starts)[:, mine]
        waited = float(np.quantile(np.ptp(lasted, axis=0), APART_QUANTILE))
        width = max(apart, LEAST_TAIL_NS)
        if rest >= CLEARLY_APART * width and waited >= PROVING_LEAD * width:
            yield kind


def _only(streams: StreamClass, columns: np.ndarray) -> StreamClass:
    """Return a class with some of its operations."""
    return replace(streams, starts=streams.starts[:, columns], ends=streams.ends[:, columns])

"""Splits streams that carry several groups: a kind that ends together on more ranks than the rest is another group's.

From torch 2.8 on, a collective that is waited for runs on its caller's stream, for any group; only ends separate it
from the others there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tracekit.inference.groups.common_ends import Together
from tracekit.inference.groups.stream_sequences import StreamClass, stream_classes, unnamed_rows
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operations import RankOps
from tracekit.thresholds.tables import (
    APART_QUANTILE,
    CLEARLY_APART,
    LEAST_TAIL_NS,
    LEAST_WIDER_ENDS,
    PROVING_LEAD,
)


def streams_apart(ranks: Sequence[RankOps]) -> list[RankOps]:
    """Return `ranks` with a separate stream number for each kind that ends together where its stream does not."""
    stream = {r.rank: r.stream.copy() for r in ranks if r.stream is not None}
    rows = {r.rank: unnamed_rows(r) for r in ranks}
    kinds = {r.rank: r.op for r in ranks}
    free = 1 + max((int(s.max(initial=0)) for s in stream.values()), default=0)
    for streams in stream_classes(ranks):
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

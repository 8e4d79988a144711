"""A place in a group that nothing names tells the peer, where both ends of a pipeline's messages agree."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import bare, events, gemm, launch, row, step, title
from tracekit.inference.peers.places_in_groups import with_recorded_places
from tracekit.matching.clock import align
from tracekit.matching.match import match
from tracekit.rank_events.operations import rank_ops

FORTH, BACK = "c10d::send", "c10d::recv_"


def batch(at, *calls):
    """A batch of (call, place of its peer), and its kernel."""
    rows = [
        row("cpu_op", name, at + n, 0.5, input_peer=place, pid=1, tid=1)
        for n, (name, place) in enumerate(calls)
    ]
    return [*rows, title(at + 5, 50), launch(at + 6, round(at)), bare(at + 10, 50, round(at))]


def pipeline(places, last=BACK):
    """Three stages: each sends forth what it received, one step; `places` are those of the stages."""
    one, two, three = places
    rows = (
        batch(10, (FORTH, two)),
        [*batch(10, (BACK, one)), *batch(100, (FORTH, three))],
        batch(100, (last, two)),
    )
    return [[gemm(-9, 1), step(0, 0, 900), *mine] for mine in rows]


def found(line, rows):
    """(how many messages found their peer, the peers of each rank's messages)."""
    ops = match([rank_ops(r, events(mine)) for r, mine in zip(line, rows, strict=True)], [])
    told, count = with_recorded_places(ops, align(ops), [line])
    return count, [sorted(zip(r.src.tolist(), r.dst.tolist(), strict=True)) for r in told]


@pytest.mark.parametrize("places", [(0, 1, 2), (1, 2, 5)], ids=["of the pipeline", "of the world"])
def test_places_count_in_one_group(places):
    assert found((1, 2, 5), pipeline(places)) == (4, [[(1, 2)], [(1, 2), (2, 5)], [(2, 5)]])


@pytest.mark.parametrize(
    "rows",
    [pipeline((0, 1, 3)), pipeline((0, 1, 2), last=FORTH), pipeline((None, 1, 2))],
    ids=["no such place", "both ends send", "one place lost"],
)
def test_places_that_disagree_stay_open(rows):
    count, peers = found((1, 2, 5), rows)
    assert (count, {end for mine in peers for end in mine}) == (0, {(-1, -1)})


def test_a_rank_without_places_is_untouched():
    ops = match(
        [rank_ops(r, events(mine)) for r, mine in zip((1, 2, 5), pipeline((0, 1, 2)), strict=True)], []
    )
    bare_ranks = {
        r: replace(mine, place=None, way=np.zeros(len(mine.op), np.int64)) for r, mine in ops.per_rank.items()
    }
    told, count = with_recorded_places(replace(ops, per_rank=bare_ranks), align(ops), [(1, 2, 5)])
    assert count == 0
    assert told == list(bare_ranks.values())

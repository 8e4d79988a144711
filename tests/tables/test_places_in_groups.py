"""Titles count within a group that nothing names; the files list the groups, and both ends tell which one it is."""

import pytest

from tests.tables.rows import bare, events, gemm, group, launch, title
from tracekit.inference.peers.places_in_groups import with_places_in_groups
from tracekit.rank_events.operations import rank_ops

RINGS = [group(0, 0, 1), group(1, 2, 3)]
STAGES = [group(2, 0, 2), group(3, 1, 3)]


def titled(rank, *names, groups):
    rows = [gemm(0, 1)]
    for n, name in enumerate(names):
        at, told = 100.0 * (n + 1), [g for g in groups if rank in g.ranks]
        rows += [title(at, 8, name), launch(at + 2, n + 1), bare(at + 4, 5, n + 1, group_size=2, stream=7)]
    return rank_ops(rank, events(rows), told)


def peers(told):
    return [sorted({(int(s), int(d)) for s, d in zip(r.src, r.dst, strict=True)}) for r in told]


def ring(groups, *, ranks=range(4), broken=False):
    """Two rings of two; rank 2 tells of a message to its own place 1 only where it is not `broken`."""
    names = {0: ("nccl:send 0->1", "nccl:recv 0<-1"), 1: ("nccl:recv 1<-0", "nccl:send 1->0")}
    every = [titled(r, *names[r % 2], groups=groups) for r in ranks]
    if broken:
        every[2] = titled(2, "nccl:send 1->0", "nccl:recv 1<-0", groups=groups)
    return with_places_in_groups(every, groups)


def test_both_ends_tell_the_group():
    """Rank 0 has place 0 in its ring and in its pipeline; rank 2 does not have place 1 in what it tells."""
    told = ring([*RINGS, *STAGES])
    assert peers(told) == [[(0, 1), (1, 0)], [(0, 1), (1, 0)], [(2, 3), (3, 2)], [(2, 3), (3, 2)]]
    assert [set(r.group.tolist()) for r in told] == [{0}, {0}, {1}, {1}]
    assert {token for r in told for token in r.token} == set(titled(1, "nccl:send 1->0", groups=RINGS).token)


@pytest.mark.parametrize(
    "more", [{"broken": True}, {"ranks": (0,)}], ids=["two groups answer", "nobody else was recorded"]
)
def test_what_fits_two_groups_stays_open(more):
    assert peers(ring([*RINGS, *STAGES], **more))[0] == [(-1, -1)]

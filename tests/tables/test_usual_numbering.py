"""Where ranks are missing, a mesh of the usual numbering explains what common ends show of the others' groups."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid
from tracekit.inference.groups.stream_sequences import StreamClass
from tracekit.inference.groups.usual_numbering import members_of, shown, usual_groups, ways_of
from tracekit.mesh import Mesh

US = 1_000.0
OPS = 40
SHAPES = {
    "tensor and data": ({"tp": 4, "dp": 2}, (("tp",), ("dp",), ("tp", "dp"))),
    "a union with a hole": ({"tp": 2, "pp": 2, "dp": 2}, (("tp",), ("pp",), ("tp", "dp"))),
    "three axes": ({"tp": 2, "cp": 2, "dp": 2}, (("tp",), ("cp",), ("cp", "dp"))),
}


def streams(mesh, axes, recorded, number, size=-1):
    """The class of one stream of the recorded ranks, whose groups lie along `axes`; everybody waits for somebody."""
    rng = np.random.default_rng(number)
    kept = sorted(recorded)
    starts, ends = np.zeros((len(kept), OPS)), np.zeros((len(kept), OPS))
    for group in sorted({mesh.line(r, axes) for r in mesh.coordinates}):
        when = np.arange(OPS) * 1e6 + rng.normal(0, 200 * US, (len(group), OPS))
        leave = when.max(axis=0) + 100 * US
        for place, rank in enumerate(group):
            if rank in recorded:
                end = leave + rng.exponential(2 * US, OPS)
                starts[kept.index(rank)], ends[kept.index(rank)] = when[place] - end[0], end - end[0]
    return StreamClass(dict.fromkeys(kept, number), tuple(kept), starts, ends, size)


@pytest.mark.parametrize("recorded", [range(8), (2, 3, 4, 5, 7), (0, 1, 3, 4, 6), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize(("sizes", "families"), SHAPES.values(), ids=SHAPES.keys())
def test_parts_of_groups_tell_the_whole(sizes, families, recorded):
    mesh = grid(**sizes)
    classes = [streams(mesh, axes, set(recorded), n) for n, axes in enumerate(families)]
    found = usual_groups(classes, 8, recorded)
    assert found
    assert all(group == mesh.line(rank, families[n]) for (rank, n), group in found.items())


def test_ranks_that_never_leave_together_are_alone():
    """One rank of each tensor group was recorded: no two of them meet in the tensor groups."""
    mesh, recorded = grid(tp=2, pp=2, dp=2), {0, 2, 4, 6}
    classes = [streams(mesh, axes, recorded, n) for n, axes in enumerate((("tp",), ("pp",)))]
    found = usual_groups(classes, 8, recorded)
    assert {found[r, 0] for r in recorded} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert {found[r, 1] for r in recorded} == {(0, 2), (1, 3), (4, 6), (5, 7)} - {(1, 3), (5, 7)}


def test_a_told_size_decides_between_ways():
    mesh, recorded = grid(tp=2, dp=4), {0, 2, 4, 6}
    assert set(usual_groups([streams(mesh, ("dp",), recorded, 0, 4)], 8, recorded).values()) == {(0, 2, 4, 6)}
    assert set(usual_groups([streams(mesh, ("dp",), recorded, 0)], 8, recorded).values()) == {tuple(range(8))}


def test_groups_of_no_usual_numbering_tell_nothing():
    mesh = grid(tp=2, dp=4)
    shuffled = [0, 5, 3, 6, 1, 7, 2, 4]
    there = streams(mesh, ("tp",), set(range(8)), 0)
    moved = StreamClass(
        there.streams, there.kept, there.starts[np.argsort(shuffled)], there.ends[np.argsort(shuffled)], -1
    )
    assert usual_groups([moved], 8, range(8)) == {}


@pytest.mark.parametrize("world", [1, 7, 720, 4096])
def test_any_size_of_job_is_answered(world):
    assert usual_groups([], world, range(2)) == {}


def test_a_given_mesh_may_divide_an_axis():
    """Shards and replicas are parts of data parallelism: no stream of theirs is taken for a tensor group."""
    mesh = grid(tp=2, dp=4)
    halves = Mesh(("tp", "shard", "dp"), {"tp": 2, "shard": 2, "dp": 2}, {})
    halves = replace(halves, coordinates={r: (r % 2, r // 2 % 2, r // 4) for r in range(8)})
    recorded = {0, 1, 3, 6, 7}
    classes = [streams(halves, axes, recorded, n, 2) for n, axes in enumerate((("shard",), ("dp",), ("tp",)))]
    found = members_of(shown(classes, list(ways_of(mesh)), recorded), recorded)
    for number, axes in enumerate((("shard",), ("dp",), ("tp",))):
        groups = {
            found.get((rank, number), halves.line(rank, axes)) == halves.line(rank, axes) for rank in recorded
        }
        assert groups == {True}
    assert found[1, 0] == (1, 3)


def test_no_part_of_an_axis_hides_unrecorded_ranks():
    """Ranks 0 to 3 of eight replicas leave together: so may the others, whom shards of four would leave out."""
    recorded = {*range(4)}
    classes = [streams(grid(dp=8), ("dp",), recorded, 0)]
    found = members_of(shown(classes, list(ways_of(grid(dp=8))), recorded), recorded)
    assert set(found.values()) == {tuple(range(8))}


def test_no_gap_in_a_part_hides_unrecorded_ranks():
    """Replicas 0 and 2 of each four leave together: so may those between them, which every second one leaves out."""
    mesh, recorded = grid(dp=16), {*range(0, 16, 2)}
    blocks = Mesh(("expert", "dp"), {"expert": 4, "dp": 4}, {r: (r % 4, r // 4) for r in range(16)})
    found = members_of(
        shown([streams(blocks, ("expert",), recorded, 0)], list(ways_of(mesh)), recorded), recorded
    )
    assert found == {(rank, 0): blocks.line(rank, ("expert",)) for rank in recorded}


def test_ranks_that_no_clock_compares_leave_groups_open():
    """Replicas 0 and 1 of two: each leaves together, and nothing tells whether both are one group or two."""
    mesh = grid(tp=4, dp=2)
    together = streams(mesh, ("tp", "dp"), {*range(8)}, 0)
    half = replace(together, kept=(0, 1, 2, 3), starts=together.starts[:4], ends=together.ends[:4])
    ways = shown([half], list(ways_of(mesh)), {*range(8)})
    assert members_of(ways, {*range(8)}) == {}
    assert members_of(ways, {*range(4)})[0, 0] == (0, 1, 2, 3)

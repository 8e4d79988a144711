"""Messages that go round in a ring are those of ring attention, and make no pipeline of its ranks."""

import pytest

from tests.tables.rows import gemm, group, matched, recv, send
from tracekit.inference.mesh.group_uses import rings
from tracekit.mesh import GroupUse, infer


def exchanged(ranks, gap, *, layers=4, back=False, alone=False):
    """Rows of ranks that each send to the next one and receive from the one before, `gap` us later, in every layer.

    `back`: in every second layer the other way round; `alone`: the first layer's receive and the last one's send lack.
    """
    rows = {}
    for place, rank in enumerate(ranks):
        nxt, prev = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        rows[rank] = []
        for layer in range(layers):
            at = 1000.0 * layer
            to, come = (prev, nxt) if back and layer % 2 else (nxt, prev)
            rows[rank] += [gemm(at, 100), send(at + 110, 20, rank, to, stream=7)]
            if not (alone and layer == 0):
                rows[rank].append(recv(at + 130 + gap, 20, come, rank, stream=8))
    return rows


def found(ranks, *args, lost=(), **more):
    rows = exchanged(ranks, *args, **more)
    return rings(matched({r: m for r, m in rows.items() if r not in lost}, group(0, *ranks)), [tuple(ranks)])


@pytest.mark.parametrize("ranks", [(0, 1), (0, 4), (0, 1, 2), (3, 5, 6, 9)])
def test_a_ring_is_found(ranks):
    assert found(ranks, 0) == {ranks}


@pytest.mark.parametrize("lost", [(0,), (1, 2)])
def test_some_ranks_of_a_ring_tell_it(lost):
    assert found((0, 1, 2, 3), 0, lost=lost) == {(0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        ((0, 1, 2), {"back": True}),
        ((0, 1), {"gap": 400}),
        ((0, 1), {"alone": True}),
        ((0, 1), {"lost": (1,)}),
    ],
    ids=["to and fro", "work in between", "one way at first", "one rank alone"],
)
def test_a_pipeline_is_no_ring(ranks, more):
    assert not found(ranks, **({"gap": 0} | more))


def test_a_ring_names_context_parallelism():
    pairs = [GroupUse((r, r + 1), (), 0, 10, ring=True) for r in range(0, 8, 2)]
    stages = [GroupUse(tuple(range(r, 8, 2)), (), 0, 5) for r in range(2)]
    sizes = infer([*pairs, *stages], range(8)).mesh.sizes
    assert sizes == {"tp": 1, "cp": 2, "pp": 4, "dp": 1}


def _four_by_four(inner, differ):
    """Two axes of four without a description; messages name the inner group's ranks, and no peer."""
    uses = [
        *(GroupUse(tuple(range(r, r + 4)), (), 40, 0, frozenset({"send_recv"})) for r in range(0, 16, 4)),
        *(GroupUse(tuple(range(r, 16, 4)), (), 4, 0, frozenset({"all_reduce"})) for r in range(4)),
    ]
    programs = {r: ("message", 6 if differ and r % 4 in {1, 2} else 3) for r in range(16)}
    mesh = infer(uses, range(16), programs=programs).mesh
    return mesh.sizes[inner], mesh.sizes["dp"], mesh.coords(1)[inner]


def test_one_program_along_an_axis_is_a_ring():
    assert _four_by_four("cp", differ=False) == (4, 4, 1)


def test_ends_that_exchange_less_make_a_pipeline():
    assert _four_by_four("pp", differ=True) == (4, 4, 1)

"""Ranks that messages alone connect are stages of one pipeline, and no peers of each other."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job
from tests.tables.rows import LARGE, comm, gemm, recorded, recv, send
from tracekit.errors import MeshUnknownError
from tracekit.inference.joined import _connected, _Linked
from tracekit.inference.mesh.mesh_choice import choose
from tracekit.inference.mesh.programs import is_one_pipeline
from tracekit.matching.match import match
from tracekit.schema import Group, InferredGroup

STEPS, MICRO = 3, 4
WORLD = Group(0, (0, 1, 2, 3), ("0",), ("default_pg",))


def stages(pairs, reduced, ranks=range(4), nelems=LARGE, group=0):
    """Ranks that send along `pairs` for each micro-batch and reduce `reduced` elements a step."""
    found = []
    for rank in ranks:
        rows, at = [], 0.0
        for _ in range(STEPS):
            for _ in range(MICRO):
                rows.append(gemm(at, 50))
                at += 60
                for a, b in pairs:
                    if rank in (a, b):
                        rows.append((send if rank == a else recv)(at, 5, a, b, nelems=nelems))
                        at += 10
            rows.append(comm(at, 5, group, nelems=reduced))
            at += 10
        found.append(recorded(rank, *rows, groups=[WORLD] if group is not None else ()))
    return found


NEIGHBOURS = ((0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0))
RING = ((0, 1), (1, 2), (2, 3), (3, 0))


@pytest.mark.parametrize(
    ("pairs", "reduced", "nelems", "piped"),
    [
        (NEIGHBOURS, 1, LARGE, True),
        (NEIGHBOURS, -1, -1, True),  # no sizes: the ends talk to one neighbour only
        (RING, 1, LARGE, True),  # interleaved stages close the ring
        (RING, -1, -1, False),  # or is it ring attention?
        (RING, 1 << 26, LARGE, False),  # it is: gradients are reduced
        (((0, 1), (2, 3)), 1, LARGE, False),
        ((), 1, LARGE, False),
    ],
)
def test_messages_and_reduced_elements_tell_a_pipeline(pairs, reduced, nelems, piped):
    assert is_one_pipeline(match(stages(pairs, reduced, nelems=nelems), [WORLD])) is piped


def test_tied_embeddings_leave_a_pipeline_one():
    ends = Group(1, (0, 3), ("1",), ("EMBEDDING_GROUP",))
    reduced = [
        recorded(
            rank,
            *[
                row
                for step in range(STEPS)
                for row in _step_of_stage(rank, 1000.0 * step, ends.ranks if rank in ends.ranks else ())
            ],
            groups=[WORLD, ends] if rank in ends.ranks else [WORLD],
        )
        for rank in range(4)
    ]
    assert is_one_pipeline(match(reduced, [WORLD, ends]))


def _step_of_stage(rank, at, tied):
    """One micro-batch of a stage, a norm of everybody, and the gradients of an embedding that `tied` ranks share."""
    yield gemm(at, 50)
    for i, (a, b) in enumerate(NEIGHBOURS):
        if rank in (a, b):
            yield (send if rank == a else recv)(at + 60 + 10 * i, 5, a, b, nelems=LARGE)
    if tied:
        yield comm(at + 200, 5, 1, nelems=LARGE)
    yield comm(at + 300, 5, 0, nelems=1)


@pytest.mark.parametrize(("group", "source"), [(0, "process_groups"), (None, "flat_world")])
def test_stages_are_no_replicas(tmp_path, group, source):
    groups = (WORLD,) if group is not None else ()
    run = replace(job(tmp_path, grid(dp=4)), groups=groups)
    found = choose(run, match(stages(NEIGHBOURS, 1, group=group), groups), None, None)
    assert found.mesh.sizes == {"tp": 1, "cp": 1, "pp": 4, "dp": 1}
    assert found.source == source
    assert "one pipeline" in " ".join([*found.notes, *(q.detail for q in found.quality)])


def test_messages_to_nobody_leave_the_mesh_open(tmp_path):
    """Ranks 0 and 1 of four share a collective of everybody; whom their messages are for, nothing tells."""
    ranks = stages((), 1, ranks=(0, 1))
    lost = [replace(r, op=("send_recv", *r.op[1:])) for r in ranks]
    run = replace(job(tmp_path, grid(dp=4)), groups=(InferredGroup(0, WORLD.ranks, (), ()),))
    with pytest.raises(MeshUnknownError, match=r"messages name no peer.*--mesh"):
        choose(run, match(lost, run.groups), None, None)
    assert choose(run, match(ranks, run.groups), None, None).mesh.sizes["dp"] == 4


@pytest.mark.parametrize(("pairs", "connected"), [(NEIGHBOURS, True), (((0, 1), (2, 3)), False)])
def test_exchanges_in_parts_of_a_line_are_no_pipeline(pairs, connected):
    """Experts exchange tokens within parts of the data axis, by kernels that have the name of a message's."""
    ops = match(stages(pairs, 1), [WORLD])
    assert _connected(_Linked(ops, {(0, 1, 2, 3)}, 8, sure=False)) is connected

"""Parts of a job with layouts of their own: which groups divide the ranks into programs, and which do not."""

from dataclasses import replace

import pytest

from tests.mesh.uses import grid, groups, relabelled
from tracekit.inference.mesh.programs import of_programs
from tracekit.mesh import GroupUse

ENCODERS = GroupUse((0, 1, 2, 3), ("encoder",), 4, ops=frozenset({"all_reduce"}))
MODEL = relabelled(groups(grid(tp=4, dp=2)), range(4, 12))
CALLED = frozenset({"all_gather"})
CHAIN = GroupUse(tuple(range(12)), (), 0, 48, frozenset({"p2p"}), named=False)


def divided(*more, uses=MODEL, world=12, run=None):
    found = of_programs([ENCODERS, *uses, *more], range(world), None, None, run or {})
    return None if found is None else [sorted(program.coordinates) for program in found.mesh.programs]


@pytest.mark.parametrize(
    "more",
    [
        [],
        [GroupUse(tuple(range(12)), ("bridge",), 2, ops=CALLED)],
        [GroupUse((r, r + 4, r + 8), ("bridge",), 2, ops=CALLED) for r in range(4)],
    ],
)
def test_bridges_join_no_programs(more):
    assert divided(*more) == [[0, 1, 2, 3], [*range(4, 12)]]


def test_messages_beside_axes_without_names_may_be_inside():
    """They may be of a pipeline in the encoder, unless its description names another axis."""
    assert divided(CHAIN) is None
    named = replace(ENCODERS, descs=("DATA_PARALLEL_GROUP",))
    assert of_programs([named, *MODEL, CHAIN], range(12), None, None, {}) is not None


def test_no_line_leaves_its_program():
    mesh = of_programs([ENCODERS, *MODEL], range(12), None, None, {}).mesh
    lines = {
        mesh.line(rank, axes) for rank in range(12) for axes in (("dp",), ("pp",), ("tp", "cp"), ("dp", "tp"))
    }
    assert all(len({mesh.program(rank) for rank in line}) == 1 for line in lines)
    assert mesh.dims_of((0, 1, 2, 3)) == ("dp",)
    assert (mesh.coords(0), mesh.coords(4)) == ({"dp": 0, "pp": 0, "cp": 0, "tp": 0},) * 2


def test_groups_of_ends_are_no_bridge():
    """Without descriptions, groups of first and last stages look like a second axis of some ranks."""
    tensor = [GroupUse(tuple(range(at, at + 4)), (), 90, ops=CALLED) for at in (0, 4, 8)]
    ends = [GroupUse((r, r + 8), (), 2, ops=CALLED) for r in range(4)]
    assert of_programs([*tensor, *ends, CHAIN], range(12), None, None, {}) is None


def test_equal_layouts_are_programs_by_their_operations():
    other = [replace(ENCODERS, ranks=(4, 5, 6, 7), descs=("model",))]
    assert divided(uses=other, world=8) is None
    assert divided(uses=other, world=8, run={r: r // 4 for r in range(8)}) is not None
    assert divided(uses=other, world=8, run={r: r % 4 for r in range(8)}) is None


def test_an_axis_of_all_ranks_is_of_one_program():
    assert divided(GroupUse(tuple(range(12)), ("DATA_PARALLEL_GROUP",), 2, ops=CALLED)) is None

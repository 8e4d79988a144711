"""Ranks, coordinates and process groups of the grid, against the definition."""

import itertools

import pytest

from reftrain.rank.mesh import coordinates, rank_at
from reftrain.simulate.grid import SPANS, Grid

SIZES = {"tp": 2, "cp": 2, "pp": 3, "dp": 2}


@pytest.mark.parametrize(
    "order", [("tp", "cp", "pp", "dp"), ("tp", "cp", "dp", "pp"), ("pp", "dp", "tp", "cp")]
)
def test_places_and_coordinates_are_the_trainers(order):
    grid = Grid(SIZES, order)
    seen = set()
    for rank in range(grid.world):
        at = coordinates(rank, SIZES, order)
        assert grid.coords(rank) == at
        stage, place = grid.place(rank)
        assert grid.ranks(stage)[place] == rank
        assert rank_at(at, SIZES, order) == rank
        seen.add((stage, place))
    assert len(seen) == grid.world


@pytest.mark.parametrize("kind", ["tp", "cp", "pp", "dp", "dp_cp", "world"])
def test_groups_hold_ranks_that_differ_along_their_axes(kind):
    order = ("tp", "cp", "dp", "pp")
    grid = Grid(SIZES, order)
    for rank in range(grid.world):
        mine = coordinates(rank, SIZES, order)
        fixed = [axis for axis in order if axis not in SPANS[kind]]
        alike = [
            r
            for r in range(grid.world)
            if all(coordinates(r, SIZES, order)[axis] == mine[axis] for axis in fixed)
        ]
        assert grid.group(kind, rank).ranks == tuple(alike)


def test_names_tell_groups_apart_and_agree_between_members():
    grid = Grid(SIZES, ("tp", "cp", "pp", "dp"))
    grid.join("dp", (0, 2))
    by_name: dict[str, tuple[int, ...]] = {}
    for rank in range(grid.world):
        for group in grid.groups_of(rank):
            assert rank in group.ranks
            assert by_name.setdefault(group.name, group.ranks) == group.ranks
    assert len(set(by_name.values())) == len(by_name)


def test_every_stage_has_a_group_of_its_owners():
    """The first and the last stage of two pipelines lie on the same two ranks, but are summed in other orders."""
    grid = Grid(SIZES, ("tp", "cp", "pp", "dp"))
    for stage in (0, 2):
        grid.join(f"replicas_{stage}", (0, 2))
    first, last = (grid.group_over(f"replicas_{stage}", (0, 2), 0) for stage in (0, 2))
    assert first.name != last.name
    assert (first.desc, last.desc) == ("mesh_replicas_0", "mesh_replicas_2")
    assert first.ranks == last.ranks == (0, 2 * grid.strides["pp"])


def test_groups_over_pipeline_ranks_join_their_data_parallel_groups():
    grid = Grid(SIZES, ("tp", "cp", "pp", "dp"))
    grid.join("dp", (0, 2))
    group = grid.group_over("dp", (0, 2), 0)
    stages = {grid.coords(rank)["pp"] for rank in group.ranks}
    assert stages == {0, 2}
    assert len(group.ranks) == 2 * SIZES["dp"]
    for a, b in itertools.pairwise(group.ranks):
        assert grid.coords(a)["tp"] == grid.coords(b)["tp"]

"""Rank numbers and coordinates."""

import itertools

import pytest

from reftrain.config.file import load
from reftrain.rank.mesh import coordinates, rank_at
from tests.reftrain import workers

SIZES = {"tp": 2, "cp": 3, "pp": 4, "dp": 5}


@pytest.mark.parametrize("order", list(itertools.permutations(SIZES)))
def test_coordinates_and_ranks_are_inverse(order):
    for rank in range(120):
        coords = coordinates(rank, SIZES, order)
        assert all(0 <= coords[axis] < SIZES[axis] for axis in SIZES)
        assert rank_at(coords, SIZES, order) == rank
    assert coordinates(1, SIZES, order)[order[0]] == 1, "the first axis is the innermost"


def test_default_order_is_tp_cp_pp_dp():
    assert coordinates(2 * 3 * 4 * 1 + 2 * 3 * 2 + 2 * 1 + 1, SIZES, ("tp", "cp", "pp", "dp")) == {
        "tp": 1,
        "cp": 1,
        "pp": 2,
        "dp": 1,
    }


def test_groups_are_described_as_torchtitan_does(ranks):
    config = load(None, {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}, "model": {"layers": 2}})
    of_rank = ranks.run(workers.groups, 16, config)
    assert of_rank[6] == {
        "tp": ("mesh_tp", (6, 7)),
        "cp": ("mesh_cp", (4, 6)),
        "pp": ("mesh_pp", (2, 6)),
        "dp": ("mesh_dp", (6, 14)),
        "dp_cp": ("mesh_dp_cp", (4, 6, 12, 14)),
    }


def test_order_moves_the_groups(ranks):
    mesh = {"tp": 2, "dp": 2, "pp": 2, "order": ["pp", "tp", "dp", "cp"]}
    of_rank = ranks.run(workers.groups, 8, load(None, {"mesh": mesh, "model": {"layers": 2}}))
    assert {name: members for name, (_, members) in of_rank[0].items()} == {
        "pp": (0, 1),
        "tp": (0, 2),
        "dp": (0, 4),
        "dp_cp": (0, 4),
    }

"""Rank numbers and coordinates."""

import itertools

import pytest

from reftrain.mesh import coordinates, rank_at

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

"""Experts in simulated jobs, memory and plans: groups of ep, their all-to-alls, weights of a part of the experts."""

import pytest

from reftrain.config.model_mesh import MeshConfig, ModelConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.links import axis_links
from reftrain.cost.shapes import Shapes
from reftrain.plan.meshes import expert_ranks
from reftrain.simulate.grid import Grid

MODEL = ModelConfig(experts=8)


def test_groups_of_ep_are_neighbours_on_dp():
    grid = Grid({"tp": 2, "cp": 1, "pp": 2, "dp": 4}, ("tp", "cp", "pp", "dp"), ep=2)
    assert grid.group("ep", 0).ranks == (0, 4)
    assert grid.group("ep", 13).ranks == (9, 13)
    names = {grid.group(kind, rank).name for kind in grid.kinds for rank in range(16)}
    assert len(names) == 1 + 8 + 8 + 4 + 8  # world, tp, pp, dp, ep


def test_a_rank_holds_its_part_of_the_experts():
    whole, dealt = Shapes(MODEL, 1), Shapes(MODEL, 1, 4)
    assert whole.layer_matrices - dealt.layer_matrices == 6 * 3 * MODEL.dim * MODEL.ffn_dim


@pytest.mark.parametrize(("dp", "found"), [(1, [1]), (6, [1, 2]), (16, [1, 2, 4, 8])])
def test_planner_deals_whole_experts(dp, found):
    assert expert_ranks(MODEL, dp) == found
    assert expert_ranks(ModelConfig(), dp) == [1]


def test_links_of_ep_stay_in_the_node():
    hardware = load_hardware("h100")
    assert axis_links(hardware, MeshConfig(dp=16, ep=8), "ep").in_node
    assert not axis_links(hardware, MeshConfig(tp=2, dp=16, ep=8), "ep").in_node

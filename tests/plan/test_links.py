"""Collectives by formula, and how axes lie on nodes."""

from dataclasses import replace

import pytest

from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.links import AxisLinks, axis_links, collective_seconds, message_seconds

H100 = load_hardware("h100")
NODE, NETWORK = H100.node.bytes_per_s, H100.network.bytes_per_s


@pytest.mark.parametrize(
    ("mesh", "axis", "inside", "rate"),
    [
        ({"tp": 8, "dp": 4}, "tp", 8, NODE),
        ({"tp": 8, "dp": 4}, "dp", 1, NETWORK),
        ({"tp": 4, "cp": 2, "dp": 4}, "cp", 2, NODE),
        ({"tp": 4, "cp": 4, "dp": 4}, "cp", 2, 2 * NETWORK),  # two members a node, two ports
        ({"tp": 4, "cp": 2, "dp": 4}, "dp_cp", 2, 2 * NETWORK),
        ({"tp": 2, "dp": 64}, "dp", 4, 4 * NETWORK),
        ({"dp": 64}, "dp", 8, min(NODE, 8 * NETWORK)),
        ({"tp": 16, "dp": 2}, "tp", 8, min(NODE, 8 * NETWORK)),
        ({"tp": 8, "pp": 4, "dp": 2}, "world", 8, min(NODE, 8 * NETWORK)),
    ],
)
def test_placement(mesh, axis, inside, rate):
    links = axis_links(H100, MeshConfig(**mesh), axis)
    assert (links.inside, links.bytes_per_s) == (inside, pytest.approx(rate))
    assert links.latency_s == (H100.node if links.in_node else H100.network).latency_s


def test_axis_order_decides_who_shares_a_node():
    mesh = MeshConfig(tp=4, dp=8, order=("dp", "tp", "cp", "pp"))
    assert axis_links(H100, mesh, "dp").in_node
    assert not axis_links(H100, mesh, "tp").in_node


UNIT = AxisLinks(size=8, inside=8, latency_s=1.0, bytes_per_s=1.0, message_bytes_per_s=1.0)


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        ("all_gather", 7 + 7 / 8 * 64),
        ("reduce_scatter", 7 + 7 / 8 * 64),
        ("all_reduce", 6 + 2 * 7 / 8 * 64),  # 2·log2(8) steps, Rabenseifner
        ("barrier", 6),
    ],
)
def test_collectives_by_hand(op, seconds):
    assert collective_seconds(UNIT, op, 64) == pytest.approx(seconds)
    assert collective_seconds(replace(UNIT, size=1), op, 64) == 0


def test_small_rings_beat_rabenseifner():
    assert collective_seconds(replace(UNIT, size=2), "all_reduce", 0) == 2


def test_an_operation_without_a_cost_is_refused():
    with pytest.raises(ValueError, match="gossip"):
        collective_seconds(UNIT, "gossip", 1)


def test_message():
    assert message_seconds(UNIT, 5) == 6
    assert message_seconds(replace(UNIT, size=1), 5) == 0

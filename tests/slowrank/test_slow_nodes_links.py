"""A node all of whose links to others are slow is at fault, where each slow link alone has two ends."""

from types import SimpleNamespace

import pytest

from tracekit.expected.nodes import on_slow_node
from tracekit.matching.channels import Channel

NODES = {rank: rank // 2 for rank in range(8)}
GROUPS = [(0, 2, 4, 6), (1, 3, 5, 7), (2, 4), (0, 7), (4, 5), (4, 6)]


def named(slow, nodes=NODES, tested=(0, 1, 2, 3, 4, 5)):
    channels = [Channel(n, members, False, 0) for n, members in enumerate(GROUPS)]
    return on_slow_node(SimpleNamespace(ops=SimpleNamespace(channels=channels)), set(slow), tested, nodes)


@pytest.mark.parametrize(
    ("slow", "tested", "ranks"),
    [
        ({0, 1}, [0, 1, 3, 4, 5], (2, 3)),
        ({0, 1, 2}, [0, 1, 2, 3, 4], ()),
        ({0, 1}, [0, 1, 2, 3, 4], ()),
        ({0, 1, 3}, [0, 1, 2, 3], ()),
    ],
    ids=["node 1 is", "nodes 1 and 2 are", "none is", "nodes 0 and 3 are"],
)
def test_the_node_without_a_sound_link_is_named(slow, tested, ranks):
    assert named(slow, tested=tested) == ranks


@pytest.mark.parametrize(
    ("slow", "more"),
    [({0, 2}, {}), ({0}, {"tested": [0, 3]}), ({0, 1}, {"nodes": {}})],
    ids=["a rank in all", "one link", "nodes unknown"],
)
def test_less_evidence_names_no_node(slow, more):
    assert named(slow, **more) == ()

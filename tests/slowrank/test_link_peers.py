"""Links of a short pipeline are compared with those of other ranks; where each node runs a stage, of other nodes."""

import pytest

from tests.slowrank.jobs import grid
from tracekit.expected.like_transfers import beside, short_pipeline
from tracekit.matching.channels import Channel

MESH = grid(dp=8, pp=4)
NODES = {rank: rank // 8 for rank in range(32)}
LINKS = [
    Channel(n, ends, True, -1)
    for n, ends in enumerate((a, a + step) for step in (8, -8) for a in range(32) if 0 <= a + step < 32)
]


def stages(number):
    return {rank // 8 for rank in LINKS[number].members}


def test_links_of_a_node_meet_those_of_others():
    ends = short_pipeline(LINKS, NODES)
    slow = {n for n in range(len(LINKS)) if 2 in stages(n)}
    for number in range(len(LINKS)):
        peers = {frozenset(stages(n)) for n in beside(ends, number, slow)}
        if stages(number) == {1, 2}:  # all others touch one of its nodes: those found to be sound are left
            assert peers == {frozenset({0, 1})}
        else:
            assert peers == {frozenset({0, 1, 2, 3} - stages(number))}


@pytest.mark.parametrize("nodes", [{}, dict.fromkeys(range(32), 0), {r: r for r in range(32)}])
def test_many_links_need_few_nodes(nodes):
    assert short_pipeline(LINKS, nodes) == {}


def test_few_links_are_told_by_their_ranks():
    few = LINKS[:6]
    assert short_pipeline(few, NODES) == {c.number: c.members for c in few}


def test_few_links_between_several_nodes_meet_by_node():
    """With one slow pair of three nodes, the links of other ranks are as slow, and half of all are."""
    pipeline = [
        Channel(n, ends, True, -1)
        for n, ends in enumerate((a, a + step) for step in (4, -4) for a in range(12) if 0 <= a + step < 12)
    ]
    ends = short_pipeline(pipeline, {rank: rank // 4 for rank in range(12)})
    slow = {c.number for c in pipeline if {m // 4 for m in c.members} == {1, 2}}
    assert len(slow) == len(pipeline) / 2
    assert {n for number in slow for n in beside(ends, number, slow)} == {c.number for c in pipeline} - slow

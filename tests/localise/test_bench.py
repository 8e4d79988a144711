"""A few cases of the bench, end to end."""

import pytest

from tests.localise.__main__ import one
from tests.localise.schedule import deepspeed, lowered, one_f_one_b
from tests.marks import quick_first

SEEDS = (1003, 1007, 1012, 1018, 1025, 1031)
"""Documents on graphs, two faults in ragged windows, slow hosts, a checkpoint: of 2.8 to 2.15, with eight ranks."""


@pytest.mark.parametrize("seed", quick_first(3, SEEDS))
def test_case_is_answered(seed):
    outcome = one(seed, world=8)
    assert outcome.result == "right"
    assert outcome.vote_result


def pairs(plans):
    """Per direction between two stages, the order in which messages are sent and received."""
    sent, received = {}, {}
    for stage, plan in enumerate(plans):
        for send, peer, kind in (message for item in plan if item[0] == "X" for message in item[1]):
            way = (stage, peer) if send else (peer, stage)
            (sent if send else received).setdefault(way, []).append(kind)
    return sent, received


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_both_sides_order_messages_alike(stages):
    for micro in (stages, 2 * stages):
        made = [one_f_one_b(stages, micro), deepspeed(stages, micro)]
        made += [lowered(name, stages, micro, v, fuse=True) for name in ("1f1b", "gpipe") for v in (1, 2)]
        for plans in made:
            sent, received = pairs(plans)
            assert sent == received

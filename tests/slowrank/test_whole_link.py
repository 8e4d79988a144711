"""A slow link also delays transfers that no other channel carries, such as those of a group of all ranks."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.jobs import TRANSFER_US, grid, job
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.like_transfers import uncompared_lateness
from tracekit.matching.channels import Channel

LAYERS = 3


def test_the_price_counts_groups_of_all_ranks(tmp_path):
    """The least price is that of the compared transfers alone."""
    link = {(1, 5): 12.0, tuple(range(8)): 12.0}
    finding = analyse(job(tmp_path, grid(tp=4, dp=2), link=link, jitter=0, combined=[("tp", "dp")]))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_link", [1, 5])
    compared = LAYERS * 11 * TRANSFER_US / 1000
    saved = finding.what_if.step_ms - finding.what_if.without_suspects_ms
    assert saved == pytest.approx(2 * compared, rel=0.02)
    suspect = finding.suspects[0]
    assert suspect.lost_ms_low < 1.01 * compared
    assert suspect.lost_ms_high == pytest.approx(2 * compared, rel=0.1)


def _case(*spent: int) -> SimpleNamespace:
    """Transfers of a channel of ranks 0 and 1, and last that of a channel of four ranks."""
    channels = [Channel(0, (0, 1), False, 0), Channel(1, (0, 1, 2, 3), False, 0)]
    first = np.arange(len(spent))
    every = np.ones(len(spent), bool)
    waits = SimpleNamespace(first_row=first, complete=every, timed=every, delivery=np.array(spent))
    channel = np.array([0] * (len(spent) - 1) + [1])
    token = np.array([f"message {number}" for number in range(len(spent))])
    ops = SimpleNamespace(channels=channels, channel=channel, token=token)
    return SimpleNamespace(waits=waits, analysed=every, ops=ops)


LATE = np.array([1_000.0, 1_000.0, 0.0])
TESTED = {0: [0, 1]}


@pytest.mark.parametrize(
    ("pairs", "likely"),
    [([(1_100, 100), (1_400, 400)], 1_000), ([(200, 100), (800, 400)], 2_000)],
    ids=["a delay", "a share"],
)
def test_what_compared_transfers_have_in_common_holds_for_others(pairs, likely):
    case = _case(*(here for here, _ in pairs), 4_000)
    found = uncompared_lateness(case, {0: pairs}, TESTED, LATE, (0,), {})
    assert [round(float(late[-1])) for late in found[:2]] == [0, likely]
    assert found[2][-1] >= found[1][-1]
    assert not any(late[:-1].any() for late in found)


def test_a_link_late_for_one_message_proves_nothing():
    case = _case(1_100, 400, 4_000)
    late = np.array([1_000.0, 0.0, 0.0])
    least, likely, most = uncompared_lateness(case, {0: [(1_100, 100)]}, TESTED, late, (0,), {})
    assert (least[-1], likely[-1], most[-1] > 0) == (0, 0, True)


def test_what_need_not_pass_the_link_is_left_alone():
    """A group without one of the ranks at the link, and one that connects nodes where the slow channel does not."""
    case, slow = _case(1_100, 1_400, 4_000), {0: [(1_100, 100), (1_400, 400)]}
    assert not any(late.any() for late in uncompared_lateness(case, slow, TESTED, LATE, (0, 5), {}))
    nodes = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert not any(late.any() for late in uncompared_lateness(case, slow, TESTED, LATE, (0,), nodes))

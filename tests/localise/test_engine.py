"""The machine gives the times that one works out by hand."""

import pytest

from tests.localise.calls import Collective, Kernel, Messages, Part, Sync, Wait
from tests.localise.engine import LAUNCH_NS, LEAVE_NS, Machine

US = 1_000
HOST = 10 * US
FIRST = HOST + LAUNCH_NS
"""When a first kernel starts: its call takes 10 us, then the launch is on its way."""


def run(programs, contention=0.0, capacity=0, queue=1000):
    return Machine(programs, contention, capacity, queue).run().places


def kernel(us, **more):
    return Kernel(HOST, stream="compute", work=us * US, **more)


def reduce(ranks, us, number=1):
    return Collective(HOST, stream="nccl", group=ranks, key=(ranks, number), transfer=us * US)


def message(send, peer, us, size=100):
    return Messages(HOST, channel=("pp",), parts=[Part(send, peer, size, size // 2, us * US)])


def test_members_leave_with_the_last():
    places = run({rank: [kernel(us), reduce((0, 1), 20)] for rank, us in ((0, 100), (1, 150))})
    assert [places[rank].ops[1].start for rank in (0, 1)] == [FIRST + 100 * US, FIRST + 150 * US]
    for rank in (0, 1):
        assert 0 <= places[rank].ops[1].end - (FIRST + 170 * US) < LEAVE_NS


def test_pipeline_of_three_is_a_staircase():
    places = run(
        {
            0: [kernel(100), message(True, 1, 10)],
            1: [message(False, 0, 10), Wait(0, handle=0), kernel(100), message(True, 2, 10)],
            2: [message(False, 1, 10), Wait(0, handle=0), kernel(100)],
        }
    )
    assert places[1].ops[2].start == FIRST + 110 * US
    assert places[2].ops[2].start == FIRST + 220 * US
    assert places[2].ops[0].start == FIRST  # the receive spins from its launch


@pytest.mark.parametrize(("capacity", "leaves"), [(0, 510), (1000, 110)])
def test_eager_sender_leaves_at_once(capacity, leaves):
    programs = {
        0: [kernel(100), message(True, 1, 10)],
        1: [kernel(500), message(False, 0, 10)],
    }
    places = run(programs, capacity=capacity)
    assert places[0].ops[1].end == FIRST + leaves * US
    assert places[1].ops[1].end == FIRST + 510 * US


def test_compute_is_slower_beside_communication():
    beside = Collective(0, stream="side", caller="side", group=(0,), key=("alone",), transfer=60 * US)
    places = run({0: [beside, kernel(100)]}, contention=0.2)
    began = places[0].ops[1].start
    ended = places[0].ops[0].end
    done = (ended - began) / 1.2
    assert places[0].ops[1].end == pytest.approx(ended + 100 * US - done, abs=2)


def test_host_waits_for_its_device():
    places = run({0: [kernel(100), Sync(0), kernel(50)]})
    assert places[0].ops[2].start == FIRST + 100 * US + FIRST


def test_host_is_bounded_ahead():
    places = run({0: [kernel(100) for _ in range(5)]}, queue=2)
    assert places[0].hosts[2] == (2 * HOST, FIRST + 100 * US + HOST)


def test_blocked_programs_are_told():
    with pytest.raises(RuntimeError, match="block each other"):
        run({0: [reduce((0, 1), 1)], 1: []})

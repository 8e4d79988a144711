"""Messages of two ranks keep one order in both directions, as on the stream of their communicator."""

import numpy as np
import pytest

from reftrain.errors import ScheduleError
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec
from reftrain.simulate.compile import compile_programs
from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.engine import Engine
from reftrain.simulate.grid import Grid
from reftrain.simulate.program import Builder, Kind, Parcel
from reftrain.simulate.runner import simulate
from tests.marks import quick_first
from tests.simulate.case import setup_of
from tests.simulate.plain_operations import PlainOperations

MESSAGES = {Kind.SEND, Kind.RECV}


def pairs_of(programs):
    """By pair of ranks and rank: (sender, stage, micro-batch, backward) of its messages, in its order of issue."""
    found = {}
    for program in programs:
        for op in program.ops:
            if op.kind in MESSAGES:
                sends = op.kind is Kind.SEND
                message = (program.rank if sends else op.peer, op.micro_batch, op.backward)
                pair = frozenset({program.rank, op.peer})
                found.setdefault(pair, {}).setdefault(program.rank, []).append(message)
    return found


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("p", [2, 4])
def test_both_ranks_exchange_in_one_order(name, p):
    asked = 0
    for virtual in (1, 2):
        for concat in ("direct", "doubling", "halving"):
            try:
                spec = ScheduleSpec(name, p, 2 * p, virtual, p, concatenation=concat)
                schedule = lower(generate(spec), 1)
            except ScheduleError:
                continue
            grid = Grid({"tp": 1, "cp": 1, "pp": schedule.ranks, "dp": 1}, ("tp", "cp", "pp", "dp"))
            programs = compile_programs(schedule, grid, PlainOperations(1.0, 2.0, 0.25))
            for sides in pairs_of(programs).values():
                one, other = sides.values()
                assert one == other
                asked += 1
    assert asked


@pytest.mark.parametrize(
    "fault",
    quick_first(
        1,
        [
            "host_stall:rank=1,axis=pp,op=send",
            "skip_collective:rank=0,axis=pp,op=recv",
            "wrong_size:rank=2,axis=pp,op=send",
        ],
    ),
)
def test_no_message_overtakes_one_that_hangs(fault):
    setup, _ = setup_of({"pp": 4}, fault)
    found = simulate(setup)
    held = 0
    for program, times in zip(found.programs, found.times, strict=True):
        for peer in {op.peer for op in program.ops} - {-1}:
            rows = [i for i, op in enumerate(program.ops) if op.peer == peer]
            ended = np.isfinite(times.end[rows, 0][np.isfinite(times.issued[rows, 0])])
            assert not (np.diff(ended.astype(int)) > 0).any()
            held += not ended.all()
    assert held


def test_two_receives_before_both_sends_are_refused():
    """On one stream each would wait for the send behind the other's receive."""
    grid = Grid({"tp": 1, "cp": 1, "pp": 2, "dp": 1}, ("tp", "cp", "pp", "dp"))
    programs = []
    for rank in (0, 1):
        builder = Builder(rank, grid)
        receipt = builder.message(Kind.RECV, "recv", 1 - rank, Parcel(1.0, 8))
        builder.message(Kind.SEND, "send", 1 - rank, Parcel(1.0, 8))
        builder.sync([receipt])
        programs.append(builder.program)
    with pytest.raises(ScheduleError, match="never gets past"):
        Engine(programs, grid, 1, host=HostCosts()).run()

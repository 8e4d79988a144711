"""In a pipeline of three stages the order of the schedule and the ends of kernels tell each message's peer."""

from collections import Counter

import pytest

from tests.tables.rows import bare, events, gemm, launch, row, step, title
from tracekit.inference.peers.pipeline_order import with_pipeline_order
from tracekit.matching.clock import align
from tracekit.matching.match import match, rematch
from tracekit.rank_events.operations import rank_ops

FORTH, BACK = "c10d::send", "c10d::recv_"
WORK = {"F": 1_000, "B": 2_000}
STEP = 50_000
PLANS = {
    "all forward first": ["FFFBBB", "FFFBBB", "FFFBBB"],
    "one forward, one backward": ["FFFBBB", "FFBFBB", "FBFBFB"],
}


class Rank:
    """What one stage runs: its host is ahead, its device waits for what it receives."""

    def __init__(self, stage, plan):
        self.stage, self.plan, self.at, self.rows = stage, list(plan), 0, []

    def message(self, name, us, end=None):
        """A kernel that begins when the one before ended."""
        end = self.at + us if end is None else end
        ticket = len(self.rows)
        host = {"pid": 1, "tid": 1}
        self.rows += [
            row("cpu_op", name, self.at - 4, 0.5, **host), title(self.at - 3, 2.5), launch(self.at - 2, ticket),
            bare(self.at, end - self.at, ticket),
        ]  # fmt: skip
        self.at = end

    def work(self, us):
        """Compute."""
        self.rows.append(gemm(self.at, us))
        self.at += us


def pipeline(plans):
    """The events of each stage, two steps; sends go to a buffer, and take 10 us."""
    ranks = [Rank(stage, plan * 2) for stage, plan in enumerate(plans)]
    arrived = {}
    for number in range(2):
        for rank in ranks:
            rank.at = STEP * number + 50
            rank.rows.append(step(number, STEP * number, STEP - 100))
        todo = {rank.stage: [(kind, n) for kind, n in numbered(rank.plan[: len(plans[0])])] for rank in ranks}
        while any(todo.values()):
            for rank in ranks:
                if todo[rank.stage] and ran(rank, *todo[rank.stage][0], arrived, number, len(plans)):
                    todo[rank.stage].pop(0)
    return [rank.rows for rank in ranks]


def numbered(plan):
    """The computations of a plan with the numbers of their micro-batches."""
    seen = Counter()
    for kind in plan:
        yield kind, seen[kind]
        seen[kind] += 1


def ran(rank, kind, micro, arrived, number, many):
    """Whether a computation's input is there, after it ran and sent what it found."""
    way = 1 if kind == "F" else -1
    needs = (kind, rank.stage, micro, number)
    first = rank.stage == (0 if kind == "F" else many - 1)
    if not first and needs not in arrived:
        return False
    if not first:
        rank.message(BACK, 10, max(rank.at + 10, arrived[needs]))
    rank.work(WORK[kind])
    if 0 <= rank.stage + way < many:
        rank.message(FORTH, 10)
        arrived[kind, rank.stage + way, micro, number] = rank.at
    return True


def found(rows):
    """(how many messages found their peer, the operations after it)."""
    ranks = [rank_ops(r, events(mine)) for r, mine in enumerate(rows)]
    ops = rematch(match(ranks, []), ranks, [])
    told, count = with_pipeline_order(ops, align(ops), [tuple(range(len(rows)))])
    return count, rematch(ops, told, [])


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
def test_schedules_tell_every_peer(plans):
    count, ops = found(pipeline(plans))
    assert count == 48
    assert (ops.instance >= 0).all()
    assert Counter(ops.op) == {"send": 24, "recv": 24}


def test_clocks_that_differ_change_nothing():
    rows = pipeline(PLANS["one forward, one backward"])
    late = [[{**r, "ts": r["ts"] + 77_000_000 * n} for r in mine] for n, mine in enumerate(rows)]
    assert found(late)[0] == 48


def test_a_message_too_many_leaves_all_open():
    rows = pipeline(PLANS["all forward first"])
    for number in range(2):
        extra = Rank(1, "")
        extra.at, extra.rows = STEP * number + 40_000, rows[1]
        extra.message(FORTH, 10)
    assert found(rows)[0] == 0


def test_ranks_in_a_ring_are_no_pipeline():
    """Those of context parallelism all send and receive at once."""
    ranks = [Rank(n, "") for n in range(3)]
    for rank in ranks:
        for number in range(2):
            rank.at = STEP * number + 50
            rank.rows.append(step(number, STEP * number, STEP - 100))
            for _ in range(4):
                rank.work(1_000)
                rank.message(FORTH, 10)
                rank.message(BACK, 10)
    assert found([rank.rows for rank in ranks])[0] == 0

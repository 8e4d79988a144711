"""Kernels that tell nothing of their messages find their peers by the schedule that fits their numbers and ends."""

from collections import Counter

import numpy as np
import pytest

from tests.localise.schedule import deepspeed, lowered
from tests.tables.rows import events, step
from tests.tables.test_pipeline_order import BACK, FORTH, PLANS, STEP, WORK, Rank, pipeline
from tracekit.inference.peers.line_kernels import Kernel, Learnt, Message, Says, schedules, with_learnt
from tracekit.inference.peers.line_order import _ahead, _pairs, with_line_order
from tracekit.inference.peers.message_fits import Times
from tracekit.matching.clock import Clocks
from tracekit.matching.match import match, rematch
from tracekit.rank_events.operation_names import RECEIVES, SENDS
from tracekit.rank_events.operations import rank_ops


def bare_kernels(rows):
    """The same recording without the host."""
    return [r for r in rows if r["cat"] == "kernel" or r["name"].startswith("ProfilerStep")]


def found(plans, change=lambda rows: rows, only=None):
    """(how many messages found their peer, how many go from one rank to another in each of two steps).

    `change` is done to the recording of every rank, or of the `only` one.
    """
    every = [bare_kernels(rows) for rows in pipeline(plans)]
    every = [change(rows) if only in {None, n} else rows for n, rows in enumerate(every)]
    told, count = learnt_of(every)
    ends = Counter(
        (op, int(s), int(d)) for r in told for op, s, d in zip(r.op, r.src, r.dst, strict=True) if s >= 0
    )
    return count, {key: n / 2 for key, n in ends.items()}


def learnt_of(every, *, apart=False, lines=None):
    """(the operations of all ranks with what is learnt of their messages, the number of messages).

    Clocks are one, or `apart`, so that no collective links them. All ranks are one line, unless `lines` are given.
    """
    ranks = [rank_ops(r, events(rows)) for r, rows in enumerate(every)]
    ops = rematch(match(ranks, []), ranks, [])
    line = tuple(range(len(every)))
    same, island = dict.fromkeys(line, 0), {r: r if apart else 0 for r in line}
    clock = Clocks(dict.fromkeys(line, 0.0), dict.fromkeys(line, 0.0), island, same, 0.0, exact=island)
    return with_line_order(ops, clock, lines or [line])


def unbuffered(plans):
    """The recordings of stages that run `plans` (tests.localise.schedule), two steps; both ends of a message wait."""
    ranks = [Rank(stage, "") for stage in range(len(plans))]
    for number in range(2):
        for rank in ranks:
            rank.at = STEP * number + 50
            rank.rows.append(step(number, STEP * number, STEP - 100))
        todo = {rank.stage: list(plans[rank.stage]) for rank in ranks}
        while any(todo.values()):
            for rank in ranks:
                while todo[rank.stage] and todo[rank.stage][0][0] != "X":
                    rank.work(WORK[todo[rank.stage].pop(0)[0]])
            if not any(todo.values()):
                break
            stage = next(rank.stage for rank in ranks if meets(todo, rank.stage) is not None)
            ((sent, peer, _),) = todo[stage][0][1]
            end = max(ranks[stage].at, ranks[peer].at) + 100
            ranks[stage].message(FORTH if sent else BACK, 10, end)
            ranks[peer].message(BACK if sent else FORTH, 10, end)
            todo[stage].pop(0)
            todo[peer].pop(0)
    return [bare_kernels(rank.rows) for rank in ranks]


def meets(todo, stage):
    """The stage with a next message that is the counterpart of the next one of `stage`; None where it waits."""
    if not todo[stage] or todo[stage][0][0] != "X":
        return None
    ((sent, peer, kind),) = todo[stage][0][1]
    return peer if todo[peer] and todo[peer][0] == ("X", [(not sent, stage, kind)]) else None


def without_first(rows):
    """A recording without the first message of each step."""
    ends = {r["ts"] // (STEP * 1000): n for n, r in reversed([*enumerate(rows)]) if "nccl" in r["name"]}
    return [r for n, r in enumerate(rows) if n not in ends.values()]


@pytest.mark.parametrize("plan", PLANS)
def test_a_known_schedule_tells_every_peer(plan):
    count, ends = found(PLANS[plan])
    ways = [(a, b) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    assert ends == {(op, *way): 3 for op in ("send", "recv") for way in ways}
    assert count == 2 * 2 * 3 * len(ways)


def two_stages():
    """Two micro-batches of GPipe: the first stage sends the second one in the kernel that receives a gradient."""
    first, last = Rank(0, ""), Rank(1, "")
    for number in range(2):
        for rank in (first, last):
            rank.at = STEP * number + 50
            rank.rows.append(step(number, STEP * number, STEP - 100))
        first.work(WORK["F"])
        first.message(FORTH, 100)
        last.message(BACK, 0, first.at)
        first.work(WORK["F"])
        last.work(WORK["F"])
        last.message(BACK, 0, max(first.at, last.at) + 100)
        last.work(WORK["F"] + WORK["B"])
        last.message(FORTH, 100)
        first.message(FORTH, 0, last.at)
        first.work(WORK["B"])
        last.work(WORK["B"])
        last.message(FORTH, 0, max(first.at, last.at) + 100)
        first.message(BACK, 0, last.at)
        first.work(WORK["B"])
    return [bare_kernels(rank.rows) for rank in (first, last)]


def test_two_stages_have_one_neighbour_each():
    told, count = learnt_of(two_stages())
    assert count == 2 * 2 * 4
    assert [*told[0].op] == ["send", "send", "recv", "recv"] * 2
    assert [*told[1].op] == ["recv", "recv", "send", "send"] * 2


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_without_trace_gets_its_replicas_messages(stage):
    """Ranks 0 and 1 are a whole pipeline; rank 2 runs as its `stage`, beside rank 3, which left no trace."""
    both = two_stages()
    line = (2, 3) if stage == 0 else (3, 2)
    told, count = learnt_of([*both, both[stage]], lines=[(0, 1), line])
    assert count == 2 * 2 * 4 + 2 * 4
    assert [*told[2].op] == [*told[stage].op]
    names = dict(zip((0, 1), line, strict=True))
    assert [*told[2].src] == [names[r] for r in told[stage].src.tolist()]


def test_another_program_gets_no_messages_of_replicas():
    first, last = two_stages()
    told, _ = learnt_of([first, last, without_first(first)], lines=[(0, 1), (2, 3)])
    assert {*told[2].op} == {"send_recv"}


@pytest.mark.parametrize(("late", "count"), [(0, 16), (20_000, 0)])
def test_some_clocks_must_let_every_message_arrive(late, count):
    """No clock is common to both stages; messages behind the first one, `late` by so many µs, allow none."""
    first, last = two_stages()
    seen = Counter()
    for row in last:
        if "nccl" in row["name"]:
            seen[number := int(row["ts"] // (STEP * 1000))] += 1
            row["ts"] += (late if seen[number] > 1 else 0) * 1000
    assert learnt_of([first, last], apart=True)[1] == count


@pytest.mark.parametrize(("ways", "token"), [((True,), "p2p/Float/8"), ((True, False), "p2p/Float/-1")])
def test_a_learnt_message_is_a_message_of_one_size(ways, token):
    """The other end may name its peer: both ends must agree on what they carry."""
    sized = {"collective": "send_recv", "dtype": "Float", "in_nelems": 8}
    row = next(r for r in bare_kernels(pipeline(["FB", "FB"])[0]) if "nccl" in r["name"])
    rank = rank_ops(0, events([row | sized]))
    ends = {True: ("send", 0, 1), False: ("recv", 1, 0)}
    told = with_learnt(rank, [Learnt(0, *ends[sent], number) for number, sent in enumerate(ways)])
    assert {*told.token} == {token}
    assert [*told.op] == [ends[sent][0] for sent in ways]


@pytest.mark.parametrize("plan", PLANS)
def test_numbers_of_no_schedule_stay_open(plan):
    assert found(PLANS[plan], without_first) == (0, {})


BATCH = Kernel((Message(1, True), Message(1, False)), 0)


@pytest.mark.parametrize(
    ("ends", "ways", "kernel", "fits"),
    [
        ((), (0,), BATCH, True),
        ((), (0, 0), BATCH, True),
        ((), (SENDS,), BATCH, False),
        ((), (SENDS, RECEIVES), BATCH, True),
        ((), (SENDS, SENDS), BATCH, False),
        (((1, True),), (), BATCH, False),
        (((1, False), (1, True)), (), BATCH, True),
        (((1, True),), (RECEIVES,), BATCH, True),
        (((2, True),), (0,), BATCH, False),
        ((), (RECEIVES,), Kernel((Message(0, True),), 0), False),
    ],
)
def test_a_kernel_of_a_schedule_contradicts_nothing_told(ends, ways, kernel, fits):
    assert Says(ends, ways).may_be(kernel) == fits


@pytest.mark.parametrize("plan", PLANS)
def test_what_some_kernels_tell_must_agree(plan):
    def tell(peer):
        """Sends of the first stage that name a peer."""
        return lambda rows: [
            r | {"collective": "send", "src_rank": 0, "dst_rank": peer, "in_nelems": 8}
            if r["cat"] == "kernel" and "nccl" in r["name"] and r["ts"] % (STEP * 1000) < 1_200_000
            else r
            for r in rows
        ]

    assert found(PLANS[plan], tell(1), only=0)[0] == found(PLANS[plan])[0]
    assert found(PLANS[plan], tell(2), only=0)[0] == 0


@pytest.mark.parametrize(("counts", "kernels"), [((6, 12, 6), 4), ((5, 9, 4), 1), ((7, 9, 9, 8), 1)])
def test_schedules_have_as_many_kernels(counts, kernels):
    tried = list(schedules([{count} for count in counts]))
    assert len(tried) >= kernels
    for stages in tried:
        assert tuple(map(len, stages)) == counts
        assert _pairs(stages) is not None


def test_one_forward_one_backward_batches_its_changes():
    """The last but one of three stages warms up once; a change from forward to backward is one kernel."""
    three = next(s for s in schedules([{5}, {9}, {4}]))
    assert [k.messages for k in three[0][:2]] == [(Message(1, True),), (Message(1, True),)]
    assert [k.messages for k in three[2][:2]] == [(Message(1, False),), (Message(1, True), Message(1, False))]


def test_interleaved_stages_talk_around_the_ring():
    pairs = {(p.sender, p.receiver) for s in schedules([{18}, {24}, {18}]) for p in _pairs(s) or ()}
    assert {(2, 0), (0, 2)} <= pairs


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("schedule", "stages", "micro", "chunks"), [("1f1b", 4, 4, 2), ("gpipe", 4, 3, 1)])
def test_posted_receives_follow_their_senders(schedule, stages, micro, chunks, together):
    """torch.distributed.pipelining lowers compute in turns of all stages: a sender puts the receive at its peer."""
    plans = lowered(schedule, stages, micro, chunks, together)
    wanted = [
        [[m[1::-1] for m in messages] for kind, messages in p if kind == "X"] for p in only_messages(plans)
    ]
    counts = [{len(kernels)} for kernels in wanted]
    assert wanted in [
        [[[*map(tuple, k.messages)] for k in kernels] for kernels in s] for s in schedules(counts)
    ]


def only_messages(plans):
    return [[item for item in plan if item[0] == "X"] for plan in plans]


def test_other_streams_carry_other_operations():
    """All-to-alls of a stage look like messages without a record, and make its kernels as many as of no schedule."""
    plain = two_stages()
    mixed = [
        [*rows, *(beside(row) for row in rows if "nccl" in row["name"] for _ in range(3))] for rows in plain
    ]
    told, count = learnt_of(mixed)
    assert count == learnt_of(plain)[1] == 16
    assert all(op == "send_recv" for r in told for op, s in zip(r.op, r.stream, strict=True) if s == OTHER)


OTHER = 99


def beside(row):
    """A short kernel of another stream after one of a message."""
    return row | {"stream": OTHER, "ts": row["ts"] + row["dur"] + 1000, "dur": 1000}


@pytest.mark.parametrize("ahead", [0, 7_000_000])
def test_messages_show_the_clocks_of_their_schedule(ahead):
    """Only the first receive waited; the others are ten late, as regular tasks are, and would end with their sends."""
    ends = 10_000_000 * np.arange(1, 6)
    late = 10_000_000 * np.array([0, 1, 1, 1, -1]) - ahead
    mine = Times(ends - 2_000_000, ends, ends, np.ones(5, bool))
    theirs = Times(mine.start + late, ends + late, ends, mine.alone)
    places = np.arange(5)
    assert _ahead(mine, theirs, np.array([places[:4]] * 2), np.array([places[4:]] * 2)) == ahead


def test_sends_without_buffers_decide_which_comes_first():
    """DeepSpeed sends a gradient before it receives: with the opposite order each would end before its receive."""
    plans = deepspeed(3, 6)
    learnt = learnt_of(unbuffered(plans))[0]
    for plan, rank in zip(plans, learnt, strict=True):
        sent = [item[1][0][0] for item in plan if item[0] == "X"]
        assert [op == "send" for op in rank.op] == sent * 2

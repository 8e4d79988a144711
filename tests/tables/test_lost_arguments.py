"""Arguments that some kernels lost are told by their stream, by other steps, and by the numbers around them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tables.rows import bare, comm, gemm, launch, record, recorded, row, send, step
from tracekit.inference.peers.lost_arguments import repaired

RCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def read(rows):
    return recorded(0, *rows)


def steady(lost=(), *, groups=(0, 1, 0), stream=7, steps=3, name=None, count=True):
    """Rows of steps of one collective for each of `groups`; the calls numbered in `lost` have no arguments."""
    rows, at, call = [], 0.0, 0
    calls = dict.fromkeys(groups, 0)
    for number in range(steps):
        begin = at
        for group in groups:
            calls[group] += 1
            more = {"seq": calls[group]} if count else {}
            op = "allreduce" if group else "_allgather_base"
            told = comm(at + 10, 5, group, op, stream=stream, **more)
            kernel = name or "ncclDevKernel_AllReduce" if group else name or "ncclDevKernel_AllGather"
            silent = row("kernel", kernel, at + 10, 5, stream=stream)
            rows += [gemm(at, 10), silent if call in lost else told]
            at, call = at + 20, call + 1
        rows.append(step(number, begin, at - begin))
    return rows


def test_one_group_a_stream_tells_the_group():
    whole, found = read(steady(groups=(0, 0))), repaired(read(steady({1, 4}, groups=(0, 0))))
    assert found.group.tolist() == whole.group.tolist()
    assert found.seq.tolist() == whole.seq.tolist()


def test_groups_from_common_ends_tell_no_other_place():
    """The ends would have shown the group of the second call as well, unless it is of another one."""
    rank = read(steady(range(9), groups=(0, 0, 0)))
    shown = np.arange(9) % 3 != 1
    group = np.where(shown, 0, -1).astype(rank.group.dtype)
    found = repaired(replace(rank, group=group, inferred=shown))
    assert found.group.tolist() == group.tolist()


def test_other_steps_tell_the_group_on_a_shared_stream():
    whole, found = read(steady()), repaired(read(steady({1, 3, 8})))
    assert found.group.tolist() == whole.group.tolist() == [0, 1, 0] * 3
    assert found.op == whole.op
    assert found.seq.tolist() == whole.seq.tolist()


def test_other_steps_tell_the_size():
    """Beside a large collective a small one of unknown size would seem to be as slow, or as quick."""
    whole, found = read(steady()), repaired(read(steady({1, 3, 8})))
    assert found.token == whole.token
    assert found.nelems.tolist() == whole.nelems.tolist()
    assert found.nelems.min() > 0


def test_other_steps_tell_what_rccl_ran():
    found = repaired(read(steady({1, 3}, name=RCCL)))
    assert found.op == ("all_gather", "all_reduce", "all_gather") * 3


def test_without_steps_only_the_stream_tells():
    def unmarked(*args, **more):
        return read([r for r in steady(*args, **more) if not r["name"].startswith("ProfilerStep")])

    assert repaired(unmarked({1, 4}, groups=(0, 0))).group.tolist() == [0] * 6
    assert repaired(unmarked({1, 4})).group.tolist() == [0, -1, 0, 0, -1, 0, 0, 1, 0]
    uncounted = unmarked({1, 4}, count=False)
    assert repaired(uncounted, final=False).group.tolist() == [0, -1, 0, 0, -1, 0, 0, 1, 0]
    assert (repaired(uncounted).group == -1).all()  # by order alone, all behind a lost call would be shifted


def test_what_no_step_tells_stays_unknown():
    """The second call is lost in every step: nothing tells its group, and uncounted ones beside it are not trusted."""
    found = repaired(read(steady({1, 4, 7}, count=False)))
    assert (found.group == -1).all()
    counted = repaired(read(steady({1, 4, 7})))
    assert counted.group.tolist() == [0, -1, 0] * 3


def test_whole_recordings_stay_as_they_are():
    whole = read(steady())
    assert repaired(whole) is whole


def test_gaps_in_numbers_are_no_lost_calls():
    rows = steady({2}, groups=(0, 0))
    for event in rows:
        if event.get("seq", 0) > len(("one", "two")):
            event["seq"] += 5
    found = repaired(read(rows))
    assert found.seq.tolist() == [1, 2, -1, 9, 10, 11]
    assert np.all(found.group == 0)


def test_no_step_left_places_no_operation_outside():
    """Calls before the first step, matched by their ends alone, fit those of any step of the other ranks."""
    before = comm(-50, 5, 0, "_allgather_base", stream=7)
    lost, kept = (
        steady({0, 2}, groups=(0, 1), steps=2, count=False),
        steady({0}, groups=(0, 1), steps=2, count=False),
    )
    assert repaired(read([before, *lost])).group.tolist()[0] == -1
    assert repaired(read([before, *kept])).group.tolist()[0] == 0


def test_operations_outside_every_step_are_left_alone():
    rows = [comm(10 * i, 5, None, stream=3) for i in range(3)] + [comm(50, 5, 0, stream=3)]
    rank = recorded(0, *rows)
    assert repaired(rank).op == rank.op


def messages(lost, *, peers=(1,), stream=7, mute=0):
    """Six sends of rank 0 to each of `peers` in turn; the kernels numbered in `lost` tell their direction alone.

    The `mute` ones behind them tell nothing.
    """
    rows = [gemm(0, 1)]
    for n in range(10, 10 + mute):
        rows += [launch(20.0 * n - 6, n + 1), bare(20.0 * n, 5, n + 1, stream=stream)]
    for n in range(6):
        at = 20.0 * n
        told = send(at, 5, 0, peers[n % len(peers)], stream=stream)
        silent = [record(at - 8, 4, "send"), launch(at - 6, n + 1), bare(at, 5, n + 1, stream=stream)]
        rows += silent if n in lost else [told]
    return repaired(read(rows))


def test_a_message_without_arguments_goes_where_the_others_go():
    found = messages({1, 4})
    assert found.op == ("send",) * 6
    assert found.dst.tolist() == [1] * 6
    assert len(set(found.token)) == 1


def test_a_message_between_two_peers_stays_open():
    assert messages({1}, peers=(1, 2)).op[1] == "send_recv"


def test_most_messages_must_tell_their_peer():
    assert messages({0, 1, 2, 3}).op[0] == "send_recv"


@pytest.mark.parametrize(("mute", "op"), [(3, "send"), (4, "send_recv")])
def test_messages_without_direction_may_go_elsewhere(mute, op):
    assert messages({1}, mute=mute).op[1] == op


def alternating(lost, *, on_gpu=True):
    """Three steps of a send to each of two peers; the calls numbered in `lost` say nothing of themselves."""
    rows = [gemm(0, 1)] if on_gpu else []
    for n in range(6):
        at, kind = 20.0 * n + 5, "kernel" if on_gpu else "cpu_op"
        name = "ncclDevKernel_SendRecv" if on_gpu else "record_param_comms"
        told = {**send(at, 5, 0, 1 + n % 2), "cat": kind, "name": name, "stream": 7 if on_gpu else None}
        rows.append(row(kind, name, at, 5, stream=told["stream"]) if n in lost else told)
        rows += [] if n % 2 else [step(n // 2, at - 5, 40)]
    return repaired(read(rows))


@pytest.mark.parametrize("on_gpu", [True, False])
def test_other_steps_tell_the_peer_of_a_message(on_gpu):
    whole, found = alternating((), on_gpu=on_gpu), alternating((0, 3), on_gpu=on_gpu)
    assert found.dst.tolist() == [1, 2] * 3
    assert (found.op, found.token) == (whole.op, whole.token)


def test_a_message_lost_in_all_steps_stays_open():
    assert alternating((0, 2, 4)).op == ("send_recv", "send") * 3

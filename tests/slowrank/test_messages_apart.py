"""A pause in a pipeline whose messages are not batched: a send and a receive on two streams start by chance in turn."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.slowrank.events import write_run
from tests.slowrank.jobs import grid, prepared
from tests.tables.rows import comm, gemm, launch, recv, row, send, step
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.like_transfers import is_sure
from tracekit.matching.match import message_ends

STAGES, REPLICAS, MICRO_BATCHES, STEPS = 3, 3, 6, 4
WORK_US = (3000.0, 3000.0, 9000.0)
PAUSING = 3
WORLD = tuple(range(STAGES * REPLICAS))
SMALL = {"nelems": 1024}  # goes to a buffer


def forward(rank, begin, sent, apart):
    """(one rank's messages and work from `begin` on as issued, their end), µs; `sent` tells when each message came.

    A send and the next receive start `apart`: on the rank that pauses the receive is first, on its peers the send.
    """
    at, rows, stage = begin + 100.0, [gemm(begin, 100.0)], rank // REPLICAS
    for micro_batch in range(MICRO_BATCHES):
        if stage:
            end = max(at, sent[rank - REPLICAS, micro_batch]) + 20.0
            start = at + (0.0 if rank == PAUSING else apart)
            rows.append(recv(start, end - start, rank - REPLICAS, rank, stream=22, **SMALL))
            at = end
        rows.append(gemm(at, WORK_US[stage]))
        at += WORK_US[stage]
        if stage < STAGES - 1:
            start = at + (apart if rank == PAUSING else 0.0)
            rows.append(send(start, 10.0, rank, rank + REPLICAS, stream=21, **SMALL))
            sent[rank, micro_batch] = start
    return rows, at


def launched_from(moment, rows, first, end):
    """`rows` and their launches, numbered from `first`, one behind the other; then the host waits until `end`."""
    calls = [launch(moment + 2.0 * i, first + i) for i in range(len(rows))]
    free = moment + 2.0 * len(rows)
    calls.append(row("cuda_runtime", "cudaDeviceSynchronize", free, end - free, pid=1, tid=1))
    return [r | {"correlation": first + i} for i, r in enumerate(rows)] + calls


def job(folder, pause, apart, *, launched):
    """Nine ranks, of which one pauses for `pause` µs at the begin of each step."""
    rows, begin = {rank: [] for rank in WORLD}, 1000.0
    for number in range(STEPS):
        sent, told = {}, {}
        for rank in WORLD:
            told[rank] = forward(rank, begin + (pause if rank == PAUSING else 0.0), sent, apart)
        end = max(at for _, at in told.values()) + 50.0
        for rank, (found, at) in told.items():
            kernels = [*found, comm(at, end - at, 0, stream=20)]
            since = found[0]["ts"] / 1000 - 100.0
            rows[rank] += launched_from(since, kernels, 100 * number, end) if launched else kernels
            rows[rank].append(step(number, begin - 200, end - begin + 100))
        begin = end + 300.0
    folder.mkdir()
    lines = [SimpleNamespace(rank=rank, rows=found) for rank, found in rows.items()]
    return write_run(folder, lines, {0: WORLD}, {0: "world"}, len(WORLD))


@pytest.mark.parametrize(("launched", "apart"), [(False, 0.001), (True, 0.001), (True, 5.0)])
@pytest.mark.quick(1)
def test_a_pause_costs_what_the_job_takes_longer(tmp_path, launched, apart):
    mesh = {"tp": 1, "cp": 1, "dp": REPLICAS, "pp": STAGES}
    pausing, quick = (
        analyse(job(tmp_path / f"{pause}", pause, apart, launched=launched), mesh, tuple(mesh))
        for pause in (20_000.0, 0.0)
    )
    assert [s.rank for s in pausing.suspects] == [PAUSING]
    assert pausing.what_if.without_suspects_ms == pytest.approx(quick.what_if.step_ms, rel=0.01)


@pytest.mark.parametrize(("wrong", "sure"), [(0.0, True), (1.0, False)])
def test_a_sender_that_waits_and_leaves_has_another_peer(tmp_path, wrong, sure):
    """Half of the sends last 2 ms; with a `wrong` peer they end before the receives begin."""
    case = prepared(job(tmp_path / "run", 0.0, 0.0, launched=False), grid(dp=3, pp=3))
    ops = case.ops
    ops = replace(ops, channels=tuple(replace(c, inferred=c.p2p) for c in ops.channels))
    send, receive = message_ends(ops)
    channel = int(ops.channel[send[0]])
    start, end = ops.start.copy(), ops.end.copy()
    end[send[::2]] = start[send[::2]] + 2_000_000
    start[receive] = np.where(wrong, end[send] + 1_000_000, start[send])
    ops = replace(ops, start=start, end=np.maximum(end, start + 10_000))
    assert is_sure(replace(case, ops=ops), channel, [0], clockless=True) == sure
    assert not is_sure(replace(case, ops=ops), channel, [0], clockless=False)

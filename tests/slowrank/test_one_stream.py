"""Messages on one stream run in its order, in both directions: a long one holds the next one up in the replay too."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.localise import case as localise
from tests.simulate.case import setup_of, written
from tests.slowrank.events import write_run
from tests.slowrank.jobs import grid, prepared
from tests.tables.rows import comm, gemm, recv, send, step
from tracekit.ingest import load
from tracekit.mesh import from_sizes

WORK_US, REST_US, TRANSFER_US, LONGER_US = 1000.0, (2000.0, 500.0), (100.0, 180.0), 1500.0
BESIDE_US = 150.0  # of compute beside a message of the first rank, so that it does not wait for its end
NEAR_MS = 0.1  # of a replay to the job that it stands for: hosts launch each message some µs later


def exchange(folder, streams, second=1):
    """Two ranks of three compute and exchange a message each way on two `streams`; `second` sends behind.

    It computes meanwhile, while the other one waits for that message. The third rank takes part in the sum at the end
    of each step alone.
    """
    rows = {0: [], 1: [], 2: []}
    first, met = 1 - second, WORK_US
    behind = met + (TRANSFER_US[0] if streams[0] == streams[1] else 0.0)
    came = behind + TRANSFER_US[1]
    end = came + REST_US[0] + 50.0
    for number in range(3):
        begin = 10_000.0 * number
        for rank in (0, 1):
            one, other = (send, recv) if rank == first else (recv, send)
            resumed = came if rank == first else met
            rest = REST_US[rank != first]
            rows[rank] += [
                gemm(begin, WORK_US + (BESIDE_US if rank == first else 0.0)),
                one(begin + met, TRANSFER_US[0], first, second, stream=streams[0]),
                other(begin + behind, TRANSFER_US[1], second, first, stream=streams[1]),
                gemm(begin + resumed, rest),
                comm(begin + resumed + rest, end - resumed - rest, 0, stream=20),
            ]
        rows[2] += [gemm(begin, WORK_US), comm(begin + WORK_US, end - WORK_US, 0, stream=20)]
        for found in rows.values():
            found.append(step(number, begin, end))
    lines = [SimpleNamespace(rank=rank, rows=found) for rank, found in rows.items()]
    return prepared(write_run(folder, lines, {0: (0, 1, 2)}, {0: "world"}, 3), grid(pp=3))


def longer_ms(case, first):
    """By how much a step becomes longer if the messages that `first` sends take longer."""
    sent = np.array([c.p2p and c.members[0] == first for c in case.ops.channels])
    late = np.where(sent[case.ops.channel[case.waits.first_row]], 1000.0 * LONGER_US, 0.0)
    slower = case.model.step_ns(case.steps.own, case.model.transfer + late)
    return (slower - case.model.recorded_ns) / 1e6


@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize(("streams", "costs_us"), [((21, 21), LONGER_US), ((21, 25), 0.0)])
def test_a_message_waits_for_one_of_its_stream(tmp_path, streams, costs_us, second):
    case = exchange(tmp_path, streams, second)
    assert case.model.recorded_ns == pytest.approx(case.model.replayed_ns, rel=0.001)
    assert longer_ms(case, 1 - second) == pytest.approx(costs_us / 1000, abs=0.01)


def replayed(folder, stages, schedule, *faults):
    """The case of a simulated job, and the truth of its step in ms."""
    virtual = 2 if schedule == "interleaved" else 1
    tables = {"model": {"layers": 2 * stages * virtual, "vocab_size": 32000}}
    setup, config = setup_of(
        {"pp": stages}, *faults, schedule=schedule, virtual=virtual, micro_batches=2 * stages, tables=tables,
        merge=False,
    )  # fmt: skip
    outcome = written(folder, setup, config, detail="kernels")
    sizes = {"tp": 1, "cp": 1, "pp": stages, "dp": 1}
    case = prepared(load([str(folder / "trace")]), from_sizes(sizes, tuple(sizes)))
    return case, outcome.summary.mean_step_ms


@pytest.mark.parametrize(
    ("stages", "schedule", "fault"),
    [
        (2, "interleaved", "slow_link:rank=1,delay_ms=30"),
        (3, "1f1b", "slow_link:rank=1,delay_ms=30"),
        (3, "interleaved", "slow_link:rank=0,delay_ms=30"),
        (3, "interleaved", "slow_compute:rank=1,factor=1.5"),
        (3, "zb_h1", "slow_link:rank=0,delay_ms=30"),
    ],
)
@pytest.mark.quick(1)
def test_cured_step_is_the_healthy_one(tmp_path, stages, schedule, fault):
    """With the own times and transfers of the job without the fault, the replay takes as long as that job.

    What a buffered send takes is a transfer as well, as where a link is cured.
    """
    struck, _ = replayed(tmp_path / "struck", stages, schedule, fault)
    healthy, healthy_ms = replayed(tmp_path / "healthy", stages, schedule)
    assert struck.model.replayed_ns == pytest.approx(struck.step_ns, rel=5e-4)
    alone = (struck.model.fixed >= 0) & (healthy.model.fixed >= 0)
    sent = np.where(alone, healthy.model.fixed, struck.model.fixed)
    cured = struck.model.retimed(fixed=sent).step_ns(healthy.steps.own, healthy.model.transfer)
    assert cured / 1e6 == pytest.approx(healthy_ms, abs=NEAR_MS)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [9320069, 9320073, 9320096])
def test_eager_send_behind_an_awaited_receive(tmp_path, seed):
    """Both ends of a pair share a stream there, and all sends are buffered: the rank waits for the receive alone."""
    job = localise.make(seed)
    localise.save(job, tmp_path)
    sizes = dict(job.job.layout.public())
    case = prepared(load([str(tmp_path)]), from_sizes(sizes, tuple(sizes)))
    assert case.buffered.eager.any()
    assert case.model.missed_ns(case) < 0.003 * case.step_ns


def test_no_message_of_a_pair_begins_before_another_ends(tmp_path):
    case, _ = replayed(tmp_path, 3, "interleaved")
    messages = case.in_message
    for rank in case.ops.ranks:
        here = case.ops.of(rank)
        rows = np.flatnonzero(messages[here]) + here.start
        peers = [sum(case.ops.channels[c].members) - rank for c in case.ops.channel[rows]]
        streams = case.ops.per_rank[rank].stream[rows - here.start]
        assert len({*zip(peers, streams.tolist(), strict=True)}) == len({*peers}) == 2
        for peer in {*peers}:
            mine = rows[np.array(peers) == peer]
            assert (case.ops.start[mine[1:]] >= case.ops.end[mine[:-1]]).all()

"""Documents make all stages of a replica longer in the same steps: no rank is slow, and the job is not healthy."""

from types import MappingProxyType

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid
from tracekit.analysis.slowrank.analyse import analyse

STEPS, REPLICAS, BATCHES, KERNELS = 5, 4, 4, 3


def job(folder, lengths, kernel, *, idle=MappingProxyType({}), noise=0.005):
    """Two stages of four replicas. `lengths`: the work of each replica, step and micro-batch, 1 is usual.

    `idle`: µs for which the device of a rank stands still in each micro-batch.
    """
    mesh = grid(pp=2, dp=REPLICAS)
    lines = [Timeline(rank) for rank in sorted(mesh.coordinates)]
    stages = sorted({mesh.line(rank, ["dp"]) for rank in mesh.coordinates})
    replicas = sorted({mesh.line(rank, ["pp"]) for rank in mesh.coordinates})
    groups = dict(enumerate([*stages, *replicas]))
    lots = np.random.default_rng(1)

    def meet(number, op, us):
        handles = [lines[rank].post(number, op) for rank in groups[number]]
        end = max(begun for begun, *_ in handles) + us
        for rank, handle in zip(groups[number], handles, strict=True):
            lines[rank].finish(handle, end, in_nelems=1000, dtype="BFloat16")

    for step in range(STEPS):
        begins = [line.at for line in lines]
        for batch in range(BATCHES):
            for line in lines:
                work = lengths[mesh.coords(line.rank)["dp"], step, batch]
                for number in range(KERNELS):
                    line.compute(400 * work * (1 + noise * lots.standard_normal()), f"{kernel}{number}")
                line.at += idle.get(line.rank, 0)
            for number in range(len(stages), len(groups)):
                meet(number, "broadcast", 10)
        for number in range(len(stages)):
            meet(number, "all_reduce", 100)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    axes = {number: "dp" if number < len(stages) else "pp" for number in groups}
    return write_run(folder, lines, groups, axes, mesh.world_size)


def drawn(first, varies, seed=3):
    """The lengths of replicas by step; those of replica 0 are `first` times as long."""
    lengths = 1 + varies * np.random.default_rng(seed).standard_normal((REPLICAS, STEPS, 1))
    lengths = np.clip(np.repeat(lengths, BATCHES, axis=2), 0.3, 3)
    lengths[0] *= first
    return lengths


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("first", "varies", "seed", "kernel", "within"),
    [
        (1.3, 0.1, 3, "gemm", 0.11),  # nothing but its other stage shows that replica 0 got longer documents
        (1.2, 0.2, 3, "gemm", 0.03),  # five operations a step show that whole steps vary, not single kernels
        (1.1, 0.3, 3, "gemm", 0.03),
        (1.2, 0.2, 0, "flash_attn_", 0.03),  # the data cost far more than the ranks of replica 0
    ],
)
def test_documents_of_a_replica_are_data(tmp_path, first, varies, seed, kernel, within):
    lengths = drawn(first, varies, seed)
    found = analyse(job(tmp_path, lengths, kernel))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "data_imbalance", ())
    even = np.median(lengths, axis=0).sum(axis=1)
    truth = lengths.sum(axis=2).max(axis=0).mean() / even.mean()
    assert found.what_if.slowdown == pytest.approx(truth, abs=within)


def test_a_host_that_pauses_beside_documents_is_named(tmp_path):
    """No data keep a device waiting; a price that documents make as uncertain as it is leaves the answer open."""
    lengths, (slow, idle) = drawn(1.0, 0.2, 7), (5, 150)
    found = analyse(job(tmp_path, lengths, "flash_attn_", idle={slow: idle}))
    assert found.verdict in {"slow_rank", "inconclusive"}
    (first,) = found.suspects or found.candidates
    assert (first.rank, first.cause) == (slow, "host_stall")
    took = 0.4 * KERNELS * lengths.sum(axis=2)
    paused = took + BATCHES * idle / 1000 * (np.arange(REPLICAS) == slow // 2)[:, None]
    truth = (paused.max(axis=0) - took.max(axis=0)).mean()
    assert first.lost_ms_per_step == pytest.approx(truth, rel=0.1)

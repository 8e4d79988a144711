"""Short operators separate a process that shares its cores from a slow processor and from a stopped process."""

import numpy as np
import pyarrow as pa
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank import evidence
from tracekit.analysis.slowrank.hypotheses.excess_parts import explain
from tracekit.steps.features import Features, operator_times

SLICE = 3_000_000
NOTHING = np.zeros(0, np.int64), np.zeros(0, np.int64)
STEPS = 4


def own_lengths(seed=0, products=400):
    """What each operator of a step needs of the processor, ns: many short ones, and some products of 1 to 9 ms."""
    rng = np.random.default_rng(seed)
    short = rng.integers(10_000, 60_000, 8_000)
    return rng.permutation(np.concatenate([short, rng.integers(1_000_000, 9_000_000, products)]))


def shared(need, competitors, run=SLICE):
    """The lengths on a core on which each time slice of `run` is followed by one of every competitor, ns."""
    turn = np.floor(np.cumsum(need) / run)
    return need + (np.diff(turn, prepend=0) * competitors * SLICE).astype(np.int64)


def features(rank, lengths, need):
    """A rank with operators of these lengths in every step; the names tell products from the short ones."""
    end = np.cumsum(np.tile(lengths + 1_000, STEPS))
    start = end - np.tile(lengths, STEPS)
    names = np.where(np.tile(need, STEPS) < 100_000, "aten::add", "aten::mm")
    table = pa.table({"ts": start, "dur": end - start, "name": pa.array(names).dictionary_encode()})
    steps = np.array_split(np.arange(len(end)), STEPS)
    each = np.array([start[s[0]] for s in steps]), np.array([end[s[-1]] for s in steps])
    times = operator_times(table, np.ones(len(end), bool), each, NOTHING)
    own = float(lengths.sum())
    return Features(
        rank=rank, on_gpu=False, own=own, busy=own, gap=0.0, gaps=np.zeros(0, np.int64),
        attention=0.0, matmul=0.0, copies=0.0, loader=0.0, collector=0.0, allocator=0.0, launches=float(len(need)),
        busy_by_step=(own,) * STEPS, attention_by_step=(0.0,) * STEPS, steps=STEPS, operators=times,
    )  # fmt: skip


def cause_of(change, products=400):
    peers = [features(r, need, need) for r, need in ((r, own_lengths(r, products)) for r in range(3))]
    need = own_lengths(9, products)
    return explain(features(9, change(need), need), peers).named


@pytest.mark.quick(6)
@pytest.mark.parametrize("competitors", [1, 2, 3, 6])
@pytest.mark.parametrize("products", [0, 40, 400])
def test_other_processes_on_its_core_are_contention(competitors, products):
    assert cause_of(lambda need: shared(need, competitors), products) == "cpu_contention"


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_lower_priority_is_contention(share):
    """Of two processes that want the core, this one runs for less than half of the time."""
    assert cause_of(lambda need: shared(need, 1, int(share * SLICE))) == "cpu_contention"


def test_turns_under_a_quota_are_no_contention():
    """A quota may interrupt as often as competitors do; only where its pauses end differs."""
    need = own_lengths(9, 0)
    peers = [features(r, own_lengths(r, 0), own_lengths(r, 0)) for r in range(3)]
    struck = features(9, shared(need, 2), need)
    causes = [explain(struck, peers, under_quota=lambda q=q: q).named for q in (False, True)]
    assert causes == ["cpu_contention", "host_stall"]


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0, 4.0])
def test_a_slow_processor_is_no_contention(factor):
    assert cause_of(lambda need: (need * factor).astype(np.int64)) == "gpu_compute"


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_longer_products_are_no_contention(factor):
    assert (
        cause_of(lambda need: np.where(need > 100_000, need * factor, need).astype(np.int64)) == "gpu_compute"
    )


@pytest.mark.parametrize(("stopped", "of"), [(30, 100), (60, 300), (200, 1000)])
def test_a_stopped_process_is_no_contention(stopped, of):
    def change(need):
        pauses = np.floor(np.cumsum(need) / ((of - stopped) * 1_000_000))
        return need + (np.diff(pauses, prepend=0) * stopped * 1_000_000).astype(np.int64)

    assert cause_of(change) == "host_stall"


def pairs_of_longer(folder, longer, ranks=4, layers=6):
    """A case of ranks with short operators and attention; `longer` makes those of odd ranks longer."""
    lines = [Timeline(rank) for rank in range(ranks)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for layer in range(layers):
            for line in lines:
                rng = np.random.default_rng([step, layer, line.rank])
                parts = rng.integers(20_000, 40_000, 150), rng.integers(2_000_000, 2_400_000, 2)
                need = rng.permutation(np.concatenate(parts))
                for length, own in zip(longer(need) if line.rank % 2 else need, need, strict=True):
                    line.compute(length / 1e3, "aten::add" if own < 100_000 else "attention")
                    line.at += 1.0
            handles = [line.post(0) for line in lines]
            end = max(handle[0] for handle in handles) + 500.0
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    for row in (row for line in lines for row in line.rows):
        row["cat"] = "cpu_op" if row["cat"] == "kernel" else row["cat"]
    run = write_run(folder, lines, {0: tuple(range(ranks))}, {0: "dp"}, ranks)
    return prepared(run, grid(dp=ranks))


@pytest.mark.parametrize(
    ("longer", "uneven"),
    [
        (lambda need: shared(need, 1), False),
        (lambda need: np.where(need > 100_000, need * 1.5, need).astype(np.int64), True),
    ],
    ids=["shared core", "more attention"],
)
def test_attention_that_takes_turns_is_no_uneven_work(tmp_path, monkeypatch, longer, uneven):
    monkeypatch.setattr(evidence, "uneven_data", lambda case: 0.1 * case.step_ns)
    assert (evidence.Evidence(pairs_of_longer(tmp_path, longer)).data > 0) == uneven

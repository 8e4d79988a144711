"""Short operators separate a process that shares its cores from a slow processor and from a stopped process."""

import numpy as np
import pyarrow as pa
import pytest

from tracekit.analysis.slowrank.hypotheses.explain import explain
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
        rank=rank, on_gpu=False, own=own, busy=own, gap=0.0, typical=times.typical / STEPS, gaps=np.zeros(0, np.int64),
        attention=0.0, matmul=0.0, copies=0.0, loader=0.0, collector=0.0, allocator=0.0, launches=float(len(need)),
        busy_by_step=(own,) * STEPS, attention_by_step=(0.0,) * STEPS, steps=STEPS, operators=times.by_name,
    )  # fmt: skip


def cause_of(change, products=400):
    peers = [features(r, need, need) for r, need in ((r, own_lengths(r, products)) for r in range(3))]
    need = own_lengths(9, products)
    return explain(features(9, change(need), need), peers)[0]


@pytest.mark.parametrize("competitors", [1, 2, 3, 6])
@pytest.mark.parametrize("products", [0, 40, 400])
def test_other_processes_on_its_core_are_contention(competitors, products):
    assert cause_of(lambda need: shared(need, competitors), products) == "cpu_contention"


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_lower_priority_is_contention(share):
    """Of two processes that want the core, this one runs for less than half of the time."""
    assert cause_of(lambda need: shared(need, 1, int(share * SLICE))) == "cpu_contention"


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

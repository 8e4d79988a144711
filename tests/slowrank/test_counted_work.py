"""Ranks to which more data come run products more often, which is an imbalance; other additional kernels are not."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

LAYERS, LAYER_US, TRANSFER_US, PIECE_US, STEPS = 6, 1000.0, 100.0, 100.0, 8


def dealt(folder, world, often, name="gemm"):
    """A run of data parallel ranks that run the kernel `name` `often(rank, step)` times ahead of a step's layers."""
    random, lines = np.random.default_rng(0), [Timeline(rank) for rank in range(world)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for line in lines:
            for _ in range(often(line.rank, step)):
                line.compute(PIECE_US * (1 + 0.01 * random.normal()), name)
        for _ in range(LAYERS):
            handles = []
            for line in lines:
                for kernel in ("gemm", "flash_fwd_kernel", "norm"):
                    line.compute(LAYER_US / 3 * (1 + 0.01 * random.normal()), kernel)
                handles.append(line.post(0))
            end = max(handle[0] for handle in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(world))}, {0: "default_pg"}, world)


def drawn(rank, step):
    """How often, drawn again for each rank and step."""
    return int(np.random.default_rng(97 * step + rank).integers(5, 30))


@pytest.mark.quick(1)
@pytest.mark.parametrize("world", [4, 8, 32])
def test_more_products_in_turn_are_uneven_data(tmp_path, world):
    found = analyse(dealt(tmp_path, world, drawn))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "data_imbalance", ())


def test_other_kernels_in_turn_say_nothing_of_the_data(tmp_path):
    assert analyse(dealt(tmp_path, 8, drawn, "gather")).cause != "data_imbalance"


@pytest.mark.parametrize("often", [lambda _rank, _step: 10, lambda _rank, step: 10 + 10 * (step % 2)])
def test_equal_counts_are_healthy(tmp_path, often):
    assert analyse(dealt(tmp_path, 8, often)).verdict == "healthy"


def test_more_products_in_every_step_are_of_the_rank(tmp_path):
    found = analyse(dealt(tmp_path, 8, lambda rank, _step: 20 if rank == 3 else 5))
    assert [s.rank for s in found.suspects] == [3]
    assert found.suspects[0].mechanisms[0].name == "more_work"

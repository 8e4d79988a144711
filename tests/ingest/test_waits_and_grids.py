"""What a stream waited for is read from `cuda_sync` events, and the grid from kernels."""

import json

import pytest

from tests.ingest.sample import document, event, kernel, scanned

SYNC = {"stream": 7, "correlation": 9, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 8}


def read(*listed, beside=()):
    """Rows of the events as both readers give them; an odd event `beside` sends them the slow way."""
    return scanned(json.dumps(document([event(0), *listed, *beside])).encode())


@pytest.mark.parametrize("beside", [(), (event(9, args={"stream": [1]}),)])
def test_waits_and_grids_are_read(beside):
    sync = event(1, cat="cuda_sync", name="Stream Wait Event", args=SYNC)
    message = kernel(2, grid=[8, 1, 1]) | {"name": "ncclDevKernel_SendRecv(x)"}
    rows, _ = read(sync, message, kernel(3, grid=[132, 1, 1]), beside=beside)
    assert [(r["wait_stream"], r["wait_record"]) for r in rows[:4]] == [
        (None, None),
        (20, 8),
        *[(None, None)] * 2,
    ]
    assert [r["grid"] for r in rows[:4]] == [None, None, 8, 132]


@pytest.mark.parametrize("grid", [[], None, [None, 1], "8", {"x": 8}])
def test_a_damaged_grid_is_none(grid):
    message = kernel(2, grid=grid) | {"name": "ncclDevKernel_SendRecv"}
    rows, _ = read(message, kernel(3, grid=None))
    assert [r["grid"] for r in rows] == [None] * 3


def test_a_grid_as_a_float_counts_whole():
    message = kernel(2, grid=[8.0, 1, 1]) | {"name": "ncclDevKernel_Generic_1"}
    rows, _ = read(message, kernel(3, grid=None))
    assert [r["grid"] for r in rows] == [None, 8, None]

"""Bandwidths and volumes: on paper."""

import pytest

import tracekit
from tests.breakdown.runs import made, pair, repeated
from tests.tables.rows import comm
from tracekit.rank_events.operation_names import ring_share

MIB = 1 << 20


@pytest.mark.parametrize(
    ("op", "members", "share"),
    [("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce_scatter", 2, 0.5), ("message", 2, 1),
     ("all_to_all", 8, 0.875), ("broadcast", 8, 1), ("all_reduce", 0, 1)],
)  # fmt: skip
def test_what_a_ring_sends(op, members, share):
    assert ring_share(op, members) == share


def test_bandwidth_leaves_waiting_out(tmp_path):
    rows = {r: [e | {"in_nelems": MIB, "out_nelems": MIB} if e["collective"] else e for e in rows]
            for r, rows in pair_with_names().items()}  # fmt: skip
    (found,) = tracekit.breakdown(made(tmp_path, rows), mesh={"tp": 2}).traffic
    assert (found.axis, found.op, found.members, found.calls, found.rank_steps) == (
        "tp",
        "all_reduce",
        2,
        12,
        6,
    )
    assert (found.bytes, found.moved_bytes, found.unsized) == (12 * 4 * MIB, 12 * 4 * MIB, 0)
    assert found.algorithm_gb_s == found.bus_gb_s == pytest.approx(4 * MIB / 50_000)
    assert found.exposed_ns == 3 * (200 + 50 + 50 + 50) * 1000


def pair_with_names():
    return {r: [{"collective": None} | e for e in rows] for r, rows in pair().items()}


def test_a_size_that_is_not_told_is_counted(tmp_path):
    rows = {
        r: [e | {"in_nelems": None, "out_nelems": None} for e in rows]
        for r, rows in pair_with_names().items()
    }
    found = tracekit.breakdown(made(tmp_path, rows), mesh={"tp": 2})
    (traffic,) = found.traffic
    assert (traffic.unsized, traffic.bytes, traffic.algorithm_gb_s) == (12, 0, None)
    assert found.volumes == ()


SHARDED = [("all_gather", 4096), ("reduce_scatter", 4096)]


@pytest.mark.parametrize(
    ("calls", "fits"),
    [
        ([("all_reduce", 4096)], 2),
        (SHARDED, 2),
        ([SHARDED[0], *SHARDED], 3),
        ([SHARDED[0]] * 4 + SHARDED[1:], None),
    ],
)
def test_which_formula_gradients_follow(tmp_path, calls, fits):
    found = {v.formula[0]: v for v in volumes(tmp_path, calls, "dp")}
    assert [v.phi for v in found.values()] == [4096, 4096]
    assert [int(n) for n, v in found.items() if v.fits] == ([] if fits is None else [fits])
    assert found["3"].expected == 3 * 4096 * 3 / 4


def test_layers_and_loss_of_tensor_parallelism(tmp_path):
    calls = [("all_reduce", 64 * 32)] * 4 + [("all_reduce", 32)] * 3
    layers, loss = volumes(tmp_path, calls, "tp")
    assert (layers.what, layers.phi, layers.times, layers.fits) == ("activations", 2048, 1, None)
    assert (loss.what, loss.phi, loss.recorded, loss.expected) == ("loss", 32, 96, 36)


def test_a_lone_loss_is_no_gradient(tmp_path):
    assert volumes(tmp_path, [("all_gather", 4096)], "dp") == ()


def volumes(folder, calls, axis):
    """Volumes of a job of four ranks that make these calls, 20 µs each, in every step."""
    rows = [comm(20 * i, 20, 0, op, nelems=n, stream=20) for i, (op, n) in enumerate(calls)]
    run = made(folder, {r: repeated(rows) for r in range(4)}, {0: (0, 1, 2, 3)}, axis, world=4)
    return tracekit.breakdown(run, mesh={axis: 4}).volumes

"""Between two stages a message that names no peer has one: where orders fit, and nowhere else."""

import pytest

from tests.tables.rows import bare, comm, events, gemm, group, launch, row, step, title
from tracekit.inference.peers.neighbours import with_only_neighbours
from tracekit.matching.clock import align
from tracekit.matching.match import match, rematch
from tracekit.rank_events.operations import rank_ops

BOTH = group(0, 0, 1)
FORTH, BACK = "c10d::send", "c10d::recv_"


def batch(begin, kernel, us, *names, nelems=64):
    """A batch that the host issues at `begin`, and its kernel."""
    here = {"pid": 1, "tid": 1}
    rows = [row("cpu_op", name, begin + n, 0.5, in_nelems=nelems, **here) for n, name in enumerate(names)]
    correlation = round(begin * 10)
    return [*rows, title(begin + 5, 500), launch(begin + 6, correlation), bare(kernel, us, correlation)]


def stages(first=(FORTH,), second=(BACK,), arrives=200, nelems=64):
    """Rank 0 sends an activation, rank 1 returns its gradient; twice."""
    one, two = [gemm(-9, 1)], [gemm(-9, 1)]
    for number in range(2):
        at = 2000 * number
        one += [
            step(number, at, 1900),
            *batch(at + 10, at + 100, 100, *first),
            *batch(at + 30, at + 300, 600, BACK),
        ]
        two += [
            step(number, at, 1900), *batch(at + 10, at + 50, arrives - 50, *second, nelems=nelems),
            *batch(at + 30, at + 800, 100, FORTH),
        ]  # fmt: skip
    return {0: one, 1: two}


def found(rows, *, synced=False):
    """(how many messages found their peer, the operations after it)."""
    lines = [tuple(rows)]
    if synced:
        for rank, mine in rows.items():
            mine += [comm(1950 + 2000 * n - rank, 10 + rank, 0) for n in range(2)]
    ops = match([rank_ops(r, events(mine), [BOTH]) for r, mine in rows.items()], [BOTH])
    told, count = with_only_neighbours(ops, align(ops), lines)
    return count, rematch(ops, told, [BOTH])


@pytest.mark.parametrize("synced", [True, False], ids=["one clock", "unknown clocks"])
def test_two_stages_that_fit_are_peers(synced):
    count, ops = found(stages(), synced=synced)
    messages = ops.op != "all_reduce"
    assert count == 8
    assert (ops.instance[messages] >= 0).all()
    assert sorted(set(ops.op[messages])) == ["recv", "send"]


@pytest.mark.parametrize(
    "rows",
    [
        stages(first=(FORTH, BACK), second=(FORTH, BACK)),
        stages(first=(FORTH, FORTH)),
        stages(nelems=65),
        stages() | {2: stages()[1]},
    ],
    ids=["a ring", "more sent than received", "other sizes", "three stages"],
)
def test_orders_that_do_not_fit_stay_open(rows):
    count, ops = found(rows)
    assert (count, set(ops.op)) == (0, {"send_recv"})


def test_nothing_is_received_before_it_was_sent():
    count, _ = found(stages(arrives=60), synced=True)
    assert count == 0

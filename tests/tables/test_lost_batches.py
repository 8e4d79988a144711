"""A kernel of several messages that lost its arguments says what the same one says in other steps."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.tables.rows import bare, gemm, launch, record, recorded, send, step, title
from tracekit.inference.peers.lost_arguments import repaired, with_rows


def batched(lost=(), *, steps=3, other_way=()):
    """Steps of a send, a batch that sends and receives, and a send.

    Batches of the steps in `lost` have neither record nor launch, those of the steps in `other_way` receive twice.
    """
    rows = []
    for n in range(steps):
        at, call = 100.0 * n, 10 * n + 1
        rows += [step(n, at, 100), gemm(at, 5), send(at + 10, 5, 0, 1, stream=7)]
        if n not in lost:
            first = "recv" if n in other_way else "send"
            rows += [title(at + 18, 10), record(at + 20, 2, first, in_nelems=512, dtype="Float")]
            rows += [record(at + 23, 2, "recv", in_nelems=512, dtype="Float"), launch(at + 26, call)]
        rows.append(bare(at + 30, 20 + n, call, stream=7))
        rows.append(send(at + 60, 5, 0, 1, stream=7))
    return recorded(0, *rows)


def test_other_steps_tell_how_many_messages_a_kernel_carried():
    whole, found = batched(), repaired(batched({1}))
    assert len(whole.op) == 12
    assert (found.op, found.token) == (whole.op, whole.token)
    for name in ("way", "nelems", "start", "end", "step", "stream", "kernel"):
        assert np.array_equal(getattr(found, name), getattr(whole, name)), name


@pytest.mark.parametrize(
    "case", [{"lost": {0, 1, 2}}, {"lost": {1}, "other_way": {2}, "steps": 4}, {"lost": {0}, "steps": 1}]
)
def test_steps_that_tell_nothing_or_differ_leave_it_open(case):
    read = batched(**case)
    found = repaired(read)
    mute = np.flatnonzero(read.way == 0)
    assert len(mute)
    assert len(found.op) == len(read.op)
    assert [found.op[row] for row in mute] == ["send_recv"] * len(mute)


def test_repeated_rows_keep_every_field():
    """A field by operation that is new must be repeated as well, or the fields differ in length."""
    rank = batched()
    given = {f.name: getattr(rank, f.name) for f in fields(rank)}
    whole = {
        n: rank.kernel.copy()
        for n, value in given.items()
        if value is None and n not in {"order", "operators"}
    }
    rank = replace(rank, **whole)
    found = with_rows(rank, np.array([1, 1, 2]), np.array([0, 1, 2]))
    for name in (f.name for f in fields(rank)):
        value = getattr(rank, name)
        if isinstance(value, np.ndarray):
            assert len(value) == 12, name
            assert len(getattr(found, name)) == 3, name
    assert found.start.tolist() == rank.start[:3].tolist()
    assert found.op == (rank.op[1], rank.op[1], rank.op[2])
    assert found.seq[0] == -1

"""Jobs whose collectives host threads carry out: ends differ by chance, sizes are not told, noise hides little."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.like_transfers import message_of

LATE_US = (0.0, 300.0, 100.0, 500.0)


def on_host(folder, calls=8):
    """Four ranks that leave each collective by up to half a millisecond later than each other, a case."""
    lines = [Timeline(r) for r in range(4)]
    for step in range(4):
        begins = [line.at for line in lines]
        for n in range(calls):
            for line in lines:
                line.compute(LAYER_US)
            handles = [line.post(0) for line in lines]
            end = max(h[0] for h in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end + LATE_US[(line.rank * 3 + n + step) % 4])
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    for line in lines:
        for row in line.rows:
            row["cat"] = "cpu_op" if row["cat"] == "kernel" else row["cat"]
    return prepared(write_run(folder, lines, {0: (0, 1, 2, 3)}, {0: "dp"}, 4), grid(dp=4))


def test_the_model_leaves_when_threads_left(tmp_path):
    case = on_host(tmp_path)
    assert case.residual_ns < 0.005 * case.step_ns
    level = replace(case.model, later=np.zeros(len(case.model.later)))
    assert level.missed_ns(case) > 0.02 * case.step_ns


def test_messages_of_unknown_size_are_told_by_calls(tmp_path):
    """One tensor group makes two calls a step where the other makes three."""
    lines = [Timeline(r) for r in range(4)]
    for step in range(2):
        for line in lines:
            begin, pair = line.at, line.rank // 2
            for _ in range(3 - pair):
                line.compute(LAYER_US)
                line.finish(line.post(pair), line.at + TRANSFER_US)
            line.compute(pair * LAYER_US)
            line.step(step, begin)
    run = write_run(tmp_path, lines, {0: (0, 1), 1: (2, 3)}, {0: "tp", 1: "tp"}, 4)
    assert len(set(message_of(prepared(run, grid(tp=2, pp=2)))[0])) == 2


@pytest.mark.parametrize("factor", [1.08, 1.1])
def test_noise_that_hardly_explains_is_no_health(tmp_path, factor):
    finding = analyse(job(tmp_path, grid(dp=4), slow={2: factor}, jitter=0.1, steps=4))
    assert (finding.verdict, [c.rank for c in finding.candidates]) == ("inconclusive", [2])
    assert "record 10 steps" in finding.to_decide


@pytest.mark.parametrize("jitter", np.linspace(0.02, 0.2, 5).tolist())
def test_noise_alone_is_healthy(tmp_path, jitter):
    assert analyse(job(tmp_path, grid(dp=4), jitter=jitter, steps=4)).verdict == "healthy"

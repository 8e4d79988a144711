"""Runs of hand-made rows, whose steps can be cut into parts on paper; times in microseconds."""

from tests.slowrank.events import Timeline, write_run
from tests.tables.rows import comm, launch, recv, row, send, step
from tracekit.schema import EVENTS

STEP_US, STEPS = 1000, 3
PAIR = {0: (0, 1)}
NAMED = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
}


def made(folder, ranks, groups=PAIR, axis="tp", world=2):
    """A run of the rows of each rank; the groups run along `axis`."""
    lines = []
    for rank, rows in ranks.items():
        lines.append(Timeline(rank))
        lines[-1].rows = [dict.fromkeys(EVENTS.names) | r for r in rows]
    return write_run(folder, lines, groups, dict.fromkeys(groups, NAMED[axis]), world)


def repeated(rows, first=0):
    """`rows` of one step in each of the steps, with its mark."""
    every = []
    for number in range(STEPS):
        at = number * STEP_US * 1000
        every += [r | {"ts": r["ts"] + at} | shifted_ids(r, number) for r in rows]
        every.append(step(first + number, number * STEP_US, STEP_US))
    return every


def shifted_ids(one, number):
    """Correlations of another step."""
    return {"correlation": one["correlation"] + 100 * number} if one.get("correlation") is not None else {}


def kernel(begin, us, correlation):
    """Compute that was launched by the call of that correlation."""
    return row("kernel", "gemm", begin, us, correlation=correlation, stream=7)


def pair(*more, both=()):
    """Rank 0 waits for its host (100 µs), for rank 1 (150 µs), and idles though its work was launched (100 µs).

    It has `more` rows in each step, and both ranks have those of `both`.
    """
    quick = [
        kernel(0, 300, 1), launch(5, 2), kernel(400, 100, 2), comm(500, 200, 0, stream=20),
        launch(390, 2), kernel(700, 100, 3), launch(200, 4), kernel(900, 50, 4), comm(950, 50, 0, stream=20),
        *more, *both,
    ]  # fmt: skip
    slow = [
        kernel(0, 650, 1),
        comm(650, 50, 0, stream=20),
        kernel(700, 250, 2),
        comm(950, 50, 0, stream=20),
        *both,
    ]
    return {0: repeated(quick), 1: repeated(slow)}


def stages():
    """Stage 1 waits 400 µs for its input, stage 0 380 µs for what comes back, then stage 1 130 µs in a reduction."""
    first = [
        kernel(0, 400, 1), send(400, 20, 0, 1, stream=21), recv(420, 400, 1, 0, stream=22),
        kernel(820, 130, 2), comm(950, 50, 0, stream=20),
    ]  # fmt: skip
    last = [
        recv(0, 420, 0, 1, stream=22), kernel(420, 380, 1), send(800, 20, 1, 0, stream=21),
        comm(820, 180, 0, stream=20),
    ]  # fmt: skip
    return {0: repeated(first), 1: repeated(last)}

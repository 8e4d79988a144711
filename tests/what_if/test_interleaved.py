"""Interleaved pipelines: a message belongs to its chunk's computation, however a recorder writes what meets nobody."""

from itertools import product

import pytest

import tracekit
from tests.what_if.tables import ingested, row, timeline

F, B, P2P = 0.010, 0.020, 0.001
STAGES, CHUNKS, BATCHES = 2, 2, 2
MS = 1e6


def interleaved(written, slow=1.0, steps=2):
    """Two replicas of two stages with two chunks, all forward and then all backward; replica 1 computes `slow` times.

    written: "all" has rows for what is not sent or received at the ends of the ring as well, "met" only for what is,
    "but_first" lacks the first receive of the first stage.
    """
    lines = [line for dp in (0, 1) for line in replica(dp, slow if dp else 1.0, written)]
    end = max(at + lasts for *_, at, lasts, _ in lines)
    rows = [
        row(s, stage * 2 + dp, stage, dp, op, n, at, t) | {"mc": mc}
        for s in range(steps)
        for dp, stage, op, n, at, t, mc in lines
    ]
    return rows + [
        row(s, stage * 2 + dp, stage, dp, *op)
        for s, stage, dp in product(range(steps), range(STAGES), range(2))
        for op in (("optimizer-clip-main-grad", 0, end, 0.001), ("optimizer", 0, end + 0.001, 0.002))
    ]


def replica(dp, factor, written):
    """(dp, stage, optype, seq, start, duration, chunk) of one replica."""
    last = CHUNKS * STAGES - 1
    done, free, lines = {}, dict.fromkeys(range(STAGES), 0.0), []
    for phase, lasts, chunks in (("forward", F, range(CHUNKS)), ("backward", B, reversed(range(CHUNKS)))):
        order = list(product(chunks, range(BATCHES)))
        steps = [(c, b, p) for c, b in order for p in (range(STAGES) if phase == "forward" else (1, 0))]
        for c, b, p in steps:
            place = c * STAGES + p
            came = place - 1 if phase == "forward" else place + 1
            goes = place + 1 if phase == "forward" else place - 1
            n, met = order.index((c, b)), 0 <= came <= last
            ready = max(done.get((phase, came, b), 0.0) + P2P, free[p]) if met else free[p]
            if met or written != "met":
                lines.append((dp, p, f"{phase}-recv", n, free[p], ready - free[p], -1))
            start, free[p] = ready, ready + lasts * factor
            done[phase, place, b] = free[p]
            lines.append((dp, p, f"{phase}-compute", n, start, lasts * factor, c))
            if 0 <= goes <= last or written != "met":
                lines.append((dp, p, f"{phase}-send", n, free[p], P2P if 0 <= goes <= last else 1e-6, -1))
    return numbered([one for one in lines if written != "but_first" or one[1:4] != (0, "forward-recv", 0)])


def numbered(lines):
    """`seq_id` counts the rows of a type that are there."""
    seen, found = {}, []
    for dp, stage, op, _, at, lasts, chunk in lines:
        seen[stage, op] = seen.get((stage, op), -1) + 1
        found.append((dp, stage, op, seen[stage, op], at, lasts, chunk))
    return found


@pytest.mark.parametrize("written", ["all", "met", "but_first"])
def test_the_simulated_step_is_the_recorded_one(tmp_path, written):
    simulated = timeline(tmp_path, interleaved(written))
    recorded = simulated.recording.end.max(axis=0)
    assert simulated.step_ns(simulated.work) == pytest.approx(recorded, rel=2e-3)


@pytest.mark.parametrize("written", ["all", "met", "but_first"])
def test_a_slow_replica_is_named(tmp_path, written):
    run = ingested(tmp_path, interleaved(written, slow=1.3))
    assert [q.kind for q in run.quality] == []
    found = tracekit.slowrank(run)
    assert (found.verdict, {s.rank for s in found.suspects}) == ("slow_rank", {1, 3})


def test_chunks_that_are_not_told_stay_open(tmp_path):
    rows = [{k: v for k, v in r.items() if k != "mc"} for r in interleaved("met")]
    assert timeline(tmp_path, rows) is None

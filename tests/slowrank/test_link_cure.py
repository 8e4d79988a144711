"""A slow link holds its senders up as well, so that the step is shorter without both."""

from dataclasses import replace

import numpy as np
import pytest

from tests.localise import case as localise
from tests.localise.faults import Faults
from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.hypotheses.link_cure import _cured
from tracekit.ingest import load

MESH = grid(dp=4, pp=2)
LAYER_US, TRANSFER_US, MESSAGES, STEPS = 1000.0, 100.0, 4, 4
SMALL = {"dtype": "BFloat16", "in_nelems": 4096, "out_nelems": 4096}


def pipeline(folder, *, late, times=None):
    """Each first stage sends `MESSAGES` buffered messages a step; those of rank 1 last `late` µs longer.

    With `times` only those do whose (step, number) is one of them.
    """
    lines = [Timeline(r) for r in range(8)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for number in range(MESSAGES):
            for line in lines[:4]:
                line.compute(LAYER_US)
            for r in range(4):
                takes = TRANSFER_US + (late if r == 1 and (times is None or (step, number) in times) else 0.0)
                begin, posted = lines[r].at, lines[r + 4].at
                message(lines[r], begin, begin + takes, "send", r, r + 4)
                message(lines[r + 4], posted, begin + takes, "recv", r, r + 4)
                lines[r + 4].compute(LAYER_US * (1 + 0.001 * ((r + number + step) % 3)))
        end = max(line.at for line in lines) + TRANSFER_US
        for line in lines:
            line.finish(line.post(0), end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    groups = {0: tuple(range(8)), 1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    groups |= {3 + r: (r, r + 4) for r in range(4)}
    descs = {0: "default_pg", 1: "mesh_dp", 2: "mesh_dp"} | {3 + r: "mesh_pp" for r in range(4)}
    return write_run(folder, lines, groups, descs, 8)


def message(line, begin, end, op, source, target):
    """One message as its kernel; the rank's stream is busy until it ends."""
    line._row(
        begin, end - begin, "kernel", "ncclDevKernel_SendRecv", collective=op, group=3 + source,
        src_rank=source, dst_rank=target, **SMALL,
    )  # fmt: skip
    line.at = end


def test_a_slow_link_holds_its_sender(tmp_path):
    """The sender stands still for each message, so the step loses all of them, not the last one alone."""
    late = 400.0
    finding = analyse(pipeline(tmp_path, late=late))
    assert [s.rank for s in finding.suspects] == [1, 5]
    assert finding.what_if.step_ms - finding.what_if.without_suspects_ms == pytest.approx(
        MESSAGES * late / 1000, rel=0.05
    )


def test_cure_of_a_link_leaves_unseen_ranks_alone(tmp_path):
    """The model of a job with unseen ranks holds their operations behind the recorded ones."""
    mesh = grid(tp=2, pp=4)
    case = prepared(job(tmp_path, mesh, jitter=0.002), mesh)
    model = replace(case.model, fixed=np.append(case.model.fixed, 5.0))
    late = np.zeros(len(case.waits.transfer))
    assert (_cured(case, model, late).fixed == model.fixed).all()


def test_waits_for_a_slow_link_lengthen_kernels(tmp_path):
    """Replicas compute while their sums wait for the pipeline with the slow link: those kernels are longer as well."""
    made = localise.make(9810047, "slow_link")
    localise.save(made, tmp_path)
    found = analyse(load([str(tmp_path)]))
    sound = localise.simulate(made.job, Faults())
    saved = (localise.step_time(made.job, made.machine) - localise.step_time(made.job, sound)) / 1e6
    link = found.suspects[0]
    assert {s.rank for s in found.suspects} == set(made.culprits)
    assert link.lost_ms_per_step == pytest.approx(saved, rel=0.02)
    assert link.lost_ms_low < saved < link.lost_ms_high


def test_calls_of_unknown_size_are_late_each(tmp_path):
    """One of three calls of a slow group is another one on its peers, and waits there for ranks beyond the group."""
    made = localise.make(9820085)
    localise.save(made, tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert (found.verdict, {s.rank for s in found.suspects}) == ("slow_link", set(made.culprits))
    assert found.what_if.slowdown == pytest.approx(made.slowdown, abs=0.003)


def test_a_link_split_into_calls_stays_certain(tmp_path):
    """Few calls of each place do not prove their members, but all of them did; pauses and this link hide each other."""
    made = localise.make(9900670)
    localise.save(made, tmp_path)
    found = analyse(load([str(tmp_path)]), mesh={"tp": 1, "cp": 2, "pp": 2, "dp": 2})
    assert (found.verdict, found.suspects[0].rank) == ("slow_rank", 4)

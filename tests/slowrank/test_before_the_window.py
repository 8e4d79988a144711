"""What the device still ran for the host of before the window names no peer, and leaves nothing open."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job
from tests.tables.rows import bare, comm, group, launch, matched, recv, send, step
from tracekit.inference.joined import joined
from tracekit.inference.peers.open_messages import any_open

WORLD = group(0, *range(8))
RINGS = [replace(group(1 + n, 2 * n, 2 * n + 1), descs=("mesh_cp",)) for n in range(4)]
STEPS, STREAM = (5, 6), 20


def ring(rank, backlog, lost=(), told=True):
    """Rows of a rank that passes keys on in its ring, behind `backlog` messages of before the window.

    Messages of the steps `lost` name no peer; those of the others run on the stream of the backlog if that is `told`.
    """
    mate = rank ^ 1
    rows = [bare(10.0 * n, 5, 1000 + n, stream=STREAM) for n in range(backlog)]
    for number in STEPS:
        at, first = 200.0 * (number - 4), 10 * number
        rows.append(step(number, at, 190))
        rows += [launch(at + 1 + n, first + n) for n in range(3)]
        known = {"stream": STREAM if told else STREAM + 1}
        if number in lost:
            rows += [bare(at + 20 * n, 5, first + n, stream=STREAM) for n in (1, 2)]
        else:
            rows.append(send(at + 20, 5, rank, mate, correlation=first, **known))
            rows.append(recv(at + 40, 5, mate, rank, correlation=first + 1, **known))
        rows.append(comm(at + 80, 5, 0, correlation=first + 2, stream=7))
    return rows


def measured(**how):
    """Operations of eight ranks, which run 1 to 3 messages of before the window."""
    return matched({r: ring(r, 1 + r % 3, **how) for r in range(8)}, WORLD, *RINGS)


def test_messages_of_before_the_window_leave_the_mesh(tmp_path):
    run = replace(job(tmp_path, grid(dp=8)), groups=(WORLD, *RINGS))
    choice = joined(run, measured(), None, None).choice
    assert choice.source == "process_groups"
    assert choice.mesh.sizes == {"tp": 1, "cp": 2, "pp": 1, "dp": 4}


@pytest.mark.parametrize("how", [{"lost": (6,)}, {"lost": STEPS}, {"told": False}])
def test_messages_that_steps_need_stay_open(how):
    assert any_open(measured(**how))
    assert not any_open(measured())

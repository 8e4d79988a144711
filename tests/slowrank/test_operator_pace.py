"""A slow rank on shared cores shows in the pace of its operators, though interruptions vary by more than it adds."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS, LAYERS = (0, 1, 2, 3), 5, 24


class Host(Timeline):
    """One rank on a CPU: operators on its only thread."""

    def operator(self, us, name="aten::mm"):
        self._row(self.at, us, "cpu_op", name, tid=1)
        self.at += us

    def wait(self, seq, begin, end):
        more = {"collective": "all_reduce", "group": 0, "seq": seq, "tid": 1}
        self._row(begin, end - begin, "user_annotation", "gloo:all_reduce", **more)
        self.at = end


def shared_job(folder, *, factor=1.0, seed, slow=1, more=0, pause=0.0):
    """Operators of 1 ms, every third interrupted for up to 8 ms; those of `slow` take `factor` times as long.

    It runs `more` of another name beside them, and sleeps for `pause` µs before each step's work.
    """
    rng = np.random.default_rng(seed)
    lines = [Host(rank) for rank in RANKS]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        lines[slow].at += pause
        for line in lines:
            for _ in range(LAYERS):
                interrupted = rng.uniform(0.0, 8_000.0) if rng.random() < 1 / 3 else 0.0
                line.operator(1_000.0 * (factor if line.rank == slow else 1.0) + interrupted)
        for _ in range(more):
            lines[slow].operator(1_000.0, "aten::linear")
        posts = [line.at for line in lines]
        for line, post in zip(lines, posts, strict=True):
            line.wait(step + 1, post, max(posts) + 500.0)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {0: RANKS}, {0: "default_pg"}, len(RANKS))


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_interruptions_do_not_hide_a_slow_processor(tmp_path, seed):
    found = analyse(shared_job(tmp_path, factor=1.6, seed=seed))
    first = (found.suspects or found.candidates)[0]
    assert (first.rank, first.cause) == (1, "gpu_compute")
    assert found.suspects or seed == 2  # its other ranks vary by more than the slow one costs


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_interruptions_do_not_hide_work_that_no_peer_runs(tmp_path, seed):
    found = analyse(shared_job(tmp_path, factor=1.0, seed=seed, more=15))
    assert (found.suspects or found.candidates)[0].rank == 1
    assert found.suspects or seed == 2  # as above
    assert all(s.mechanism.name == "more_work" for s in found.suspects)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_interruptions_alone_accuse_no_rank(tmp_path, seed):
    found = analyse(shared_job(tmp_path, factor=1.0, seed=seed))
    assert found.verdict != "slow_rank", found.suspects


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(4))
def test_interruptions_do_not_hide_a_process_that_sleeps(tmp_path, seed):
    """Between operators the other ranks never stand still, though their sums vary by as much as the sleep."""
    found = analyse(shared_job(tmp_path, seed=seed, pause=15_000.0))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [1])
    assert found.suspects[0].cause == "host_stall"
    assert found.suspects[0].lost_ms_low <= 15.0

"""A mesh that nothing tells leaves the answer open, with the ranks that work longest as candidates."""

from dataclasses import replace

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.questions.answer import answer
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import MeshUnknownError

STEPS = 6


def nameless(folder, *, slow, world=8):
    """Ranks 0 to 3 of a job, whose operations name no group; two of them run a broadcast more than the others."""
    lines = []
    for rank in range(4):
        line = Timeline(rank)
        for step in range(STEPS):
            begin = 500.0 * step + 20 * (rank > 1)
            line.compute(300 if rank == slow else 100)
            line.finish(line.post(None, "allreduce"), 500.0 * (step + 1))
            if rank > 1:
                line.finish(line.post(None, "broadcast"), 500.0 * (step + 1) + 20)
            line.step(step, begin)
        lines.append(line)
    return replace(write_run(folder, lines, {}, {}, world), groups=())


@pytest.mark.parametrize("world", [8, 4, None])
def test_the_slow_rank_is_a_candidate(tmp_path, world):
    found = analyse(nameless(tmp_path, slow=2, world=world))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert "--mesh" in found.to_decide
    assert "mesh_unknown" in [q.kind for q in found.quality]
    assert all(c.coords == {} for c in found.candidates)
    assert found.candidates[0].rank == 2


def test_equal_ranks_of_an_unknown_mesh_are_not_healthy(tmp_path):
    found = analyse(nameless(tmp_path, slow=None))
    assert found.verdict == "inconclusive"


def test_questions_about_an_unknown_mesh_are_refused(tmp_path):
    with pytest.raises(MeshUnknownError, match="--mesh"):
        answer(nameless(tmp_path, slow=None))

"""A mesh that nothing tells leaves the answer open, with the ranks that work longest as candidates."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job
from tests.tables.rows import bare, events
from tests.what_if.tables import unnamed
from tracekit.analysis.questions.answer import answer
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import MeshUnknownError
from tracekit.inference.mesh.mesh_choice import check_rest, choose
from tracekit.matching.match import match
from tracekit.rank_events.operations import read_rank

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


def left_over(folder, messages):
    """Return a job of tp=2 in 8 ranks with its operations and mesh; dp groups are unnamed and so are peers.

    messages: their number in a step by rank.
    """
    made = unnamed(job(folder, grid(tp=2, dp=4), steps=4), "dp")
    run = replace(made, groups=tuple(group for group in made.groups if group.descs == ("mesh_tp",)))
    for record in run.ranks:
        path = run.folder / record.table
        rows = pq.read_table(path).to_pylist()
        begins = [row["ts"] / 1000 for row in rows if row["name"].startswith("ProfilerStep")]
        sent = [bare(at + 9 * n + 1, 5.0, 1) for at in begins for n in range(messages(record.rank))]
        pq.write_table(events([*rows, *sent]), path)
    ops = match([read_rank(run, record.rank) for record in run.ranks], run.groups)
    return run, ops, choose(run, ops, None, None)


def test_left_ranks_may_be_several_axes(tmp_path):
    run, ops, choice = left_over(tmp_path, lambda rank: 6 + rank // 2 % 2)
    assert (choice.rest, choice.mesh.sizes["pp"]) == (4, 4)
    with pytest.raises(MeshUnknownError, match=r"may be several axes.*--mesh"):
        check_rest(run, ops, choice)


def test_messages_of_ends_show_one_pipeline(tmp_path):
    check_rest(*left_over(tmp_path, lambda rank: 3 if rank in {0, 1, 6, 7} else 6))

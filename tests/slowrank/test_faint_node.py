"""A node whose ranks are all a little slower is no sign of health, though none of them is named."""

from dataclasses import replace

import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse

MESH = grid(tp=2, dp=16)
NODE = range(8, 16)


def placed(run):
    """`run` on nodes of eight ranks."""
    return replace(run, ranks=tuple(replace(r, host=f"node{r.rank // 8}") for r in run.ranks))


@pytest.mark.parametrize(("factor", "verdict"), [(1.015, "inconclusive"), (1.0, "healthy")])
@pytest.mark.quick(1)
def test_a_node_that_is_a_little_slower_is_told(tmp_path, factor, verdict):
    run = job(tmp_path, MESH, slow=dict.fromkeys(NODE, factor), steps=3, layers=4, jitter=0.02)
    found = analyse(placed(run))
    assert (found.verdict, {c.rank for c in found.candidates}) == (
        verdict, set(NODE) if verdict == "inconclusive" else set(),
    )  # fmt: skip
    assert ("all on one node" in found.reason) == (verdict == "inconclusive")

"""A slow link is a fault and goes before a stage that is long by design, as a slow rank does, if it costs enough."""

import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse

MESH = grid(tp=2, pp=2, dp=3)
STAGE = {r: 1.5 for r in range(12) if MESH.coords(r)["pp"] == 1}
LINK = MESH.line(max(STAGE), ["tp"])


@pytest.mark.quick(1)
@pytest.mark.parametrize(("factor", "verdict"), [(12.0, "slow_link"), (2.0, "imbalance")])
def test_a_slow_link_goes_before_a_long_stage(tmp_path, factor, verdict):
    found = analyse(job(tmp_path, MESH, slow=STAGE, link={LINK: factor}))
    named = {s.rank for s in found.suspects}
    assert (found.verdict, named) == (verdict, set(LINK) if verdict == "slow_link" else set(STAGE))
    assert ("in addition, pipeline stage 1 has more work" in found.reason) == (verdict == "slow_link")

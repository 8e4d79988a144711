"""Real hangs of the reference trainer, small: four ranks on Gloo. All kinds on all axes: tests.hang.real_hangs."""

import pytest

from tests.hang.real_hangs import KINDS, run

SMALL = {"step": 1, "timeout_s": 8.0}


@pytest.mark.parametrize(
    ("kind", "axis", "rank", "mesh"),
    [
        ("host_stall", "tp", 3, "tp=2,pp=2"),
    ],
)
def test_the_planted_rank_is_named(tmp_path, kind, axis, rank, mesh):
    outcome = run(tmp_path / "run", kind, axis, rank, mesh=mesh, **SMALL)
    assert outcome.named == [rank], outcome.reason
    assert set(outcome.kinds) <= KINDS[kind]

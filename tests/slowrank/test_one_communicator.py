"""Ranks that communicate on one stream alone are one group: else they would be several jobs."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.jobs import grid, job
from tests.tables.rows import comm, gemm, recorded, row
from tracekit.errors import MeshUnknownError
from tracekit.inference.groups.unnamed_groups import with_groups_of_streams

RANKS = range(8)


def reduced(steps, *, streams=(20,), together=((0, 1, 2, 3, 4, 5, 6, 7),)):
    """Ranks that reduce their gradients once a step on each stream, in groups that nobody names."""
    rng = np.random.default_rng(1)
    lines = {r: [] for r in RANKS}
    for step in range(steps):
        for at, stream in enumerate(streams):
            for group in together:
                begins = 10_000.0 * step + 3000 * at + rng.uniform(2000, 2300, len(group))
                for rank, begin in zip(group, begins.tolist(), strict=True):
                    end = begins.max() + 50 + rng.uniform(0, 1)
                    lines[rank] += [gemm(begin - 1900, 1890), comm(begin, end - begin, None, stream=stream)]
        for rank in RANKS:
            lines[rank].append(row("user_annotation", f"ProfilerStep#{step}", 10_000.0 * step, 9_999))
    return [recorded(r, *lines[r]) for r in RANKS]


def told(folder, ranks, sizes=None):
    run = replace(job(folder, grid(dp=8)), groups=())
    found, named = with_groups_of_streams(run, ranks, sizes, None)
    members = {g.group: g.ranks for g in found.groups}
    return {members[int(n)] for rank in named for n in rank.group if n >= 0}


def test_the_only_stream_carries_everybodys_group(tmp_path):
    assert told(tmp_path, reduced(2)) == {tuple(RANKS)}


@pytest.mark.parametrize(
    ("sizes", "groups"), [({"dp": 8, "tp": 1}, {tuple(RANKS)}), ({"dp": 4, "tp": 2}, set())]
)
def test_the_only_axis_given_has_its_stream(tmp_path, sizes, groups):
    """Tensor ranks may reduce by kernels that no profiler takes for communication."""
    assert told(tmp_path, reduced(2), {"cp": 1, "pp": 1, **sizes}) == groups


@pytest.mark.parametrize(
    "how",
    [
        {"steps": 1},
        {"steps": 2, "streams": (20, 24)},
        {"steps": 12, "together": ((0, 1, 2, 3), (4, 5, 6, 7))},
    ],
    ids=["less than two steps", "two communicators", "ends that contradict"],
)
def test_what_may_be_several_groups_is_not_everybodys(tmp_path, how):
    try:
        found = told(tmp_path, reduced(**how))
    except MeshUnknownError:
        return
    assert tuple(RANKS) not in found

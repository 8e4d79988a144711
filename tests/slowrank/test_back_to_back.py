"""Collectives that follow each other at once are projected one after the other."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared


def test_collectives_back_to_back_follow_each_other(tmp_path):
    lines = [Timeline(r) for r in range(4)]
    for step in range(3):
        begin = lines[0].at
        for line in lines:
            line.compute(1000)
        for _ in range(2):
            posts = [line.post(0) for line in lines]
            for line, post in zip(lines, posts, strict=True):
                line.finish(post, post[0] + 300)
        for line in lines:
            line.step(step, begin)
    case = prepared(write_run(tmp_path, lines, {0: (0, 1, 2, 3)}, {0: "mesh_dp"}, 4), grid(dp=4))
    assert case.model.recorded_ns == pytest.approx(1_600_000, rel=0.001)

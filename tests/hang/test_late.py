"""Late ranks in dumps with timing: who made the others wait, not who passed a delay on, and nobody by chance."""

import random

from tests.hang.simulate import make

MESH = {"tp": 2, "cp": 2, "pp": 1, "dp": 2}


def late(judge, durations):
    """Ranks listed when a call of `axis` on `rank` takes `durations(rank, axis)` ms."""
    case = make(1, None, "tp", MESH, timed=True)
    for rank, dump in case.dumps.items():
        rng = random.Random(rank)
        for entry in dump["entries"]:
            entry["duration_ms"] = durations(rank, entry["process_group"][1].split("_")[0]) + rng.random()
    return [int(q.detail.split()[1]) for q in judge(case).quality if q.kind == "late_rank"]


def test_the_awaited_rank_in_groups_of_two(judge):
    waits = {("TENSOR", 4), ("CONTEXT", 7), ("DATA", 1)}
    assert late(judge, lambda rank, axis: 9.0 if (axis, rank) in waits else 0.2) == [5]


def test_nobody_by_chance(judge):
    assert late(judge, lambda rank, axis: 1.0) == []


def test_a_rank_that_waited_elsewhere_passes_the_delay_on(judge):
    """Rank 6 is late; rank 4 waits for it in its CP group and so comes late to its TP group, where rank 5 waits."""

    def durations(rank, axis):
        waits = {("CONTEXT", 4), ("TENSOR", 5), ("TENSOR", 7), ("DATA", 2)}
        return 30.0 if (axis, rank) in waits else 0.2

    assert late(judge, durations) == [6]

"""The script of `tracekit next` separates a slow device, host and link, and blames none of them where all are alike."""

import pytest
import torch.distributed as dist

from reftrain.probe import TESTS, _check_world, main, pairs_of, report

GROUPS = {"tp": [[0, 1], [2, 3], [4, 5], [6, 7]], "dp": [[0, 2, 4, 6], [1, 3, 5, 7]]}
PLAN = {"suspects": [5], "groups": GROUPS, "hosts": {"5": "node1.local"}, "why": "slow_rank: rank 5"}


def measured(**slow):
    """Eight ranks that differ by a per cent; `slow` is {(rank, test): factor} and {group: factor}."""
    factors = slow.get("factors", {})
    every = []
    for rank in range(8):
        noise = 1 + 0.005 * (rank % 3)
        values = {
            t: (0.2 if t.startswith("no processor") else 10.0) * noise * factors.get((rank, t), 1)
            for t in TESTS
        }
        groups = {
            f"{axis} {m}": 2.0 * noise * factors.get(f"{axis} {m}", 1)
            for axis, members in GROUPS.items()
            for m in members
            if rank in m
        }
        sent = {f"{a} to {b}": 3.0 * noise * factors.get((a, b), 1) for a, b in pairs_of(PLAN) if b == rank}
        every.append({"host": f"node{rank // 4}", **values, "groups": groups, "messages": sent})
    return every


@pytest.mark.parametrize(
    ("factors", "conclusion"),
    [
        ({(5, TESTS[0]): 1.2}, "the device of rank 5 is slow alone"),
        ({(5, TESTS[1]): 1.5}, "the device of rank 5 is slow alone"),
        ({(5, TESTS[2]): 1.5}, "the host of rank 5 is slow alone"),
        ({(5, TESTS[3]): 400.0}, "the host of rank 5 is slow alone"),
        ({"tp [4, 5]": 1.6}, "the link of tp [4, 5] is slow"),
        (
            {(3, TESTS[0]): 1.3, "tp [0, 1]": 2.0},
            "the device of rank 3 is slow alone; the link of tp [0, 1] is slow",
        ),
        ({(4, 5): 2.0}, "the link from rank 4 to 5 is slow"),
        ({(5, 4): 2.0, (4, 5): 2.0}, "the link from rank 5 to 4, 4 to 5 is slow"),
        ({}, "no device, host or link of rank 5 is slow now: look at the work"),
        ({(5, TESTS[0]): 1.03}, "no device, host or link of rank 5 is slow now: look at the work"),
        (dict.fromkeys(((r, TESTS[3]) for r in range(8)), 3000.0), "the hosts are overloaded"),
    ],
)
def test_conclusion_of_a_probe(factors, conclusion):
    assert report(PLAN, measured(factors=factors))[-1].startswith(f"conclusion: {conclusion}")


def test_a_suspect_on_another_host_is_not_judged():
    lines = report({**PLAN, "hosts": {"5": "node7"}}, measured(factors={(5, TESTS[0]): 1.5}))
    assert lines[1] == "rank 5 runs on node1 here, and ran on node7 in the job"
    assert lines[-1].startswith("conclusion: none of the job's places")


def test_pairs_are_suspects_with_neighbours_and_other_groups():
    found = pairs_of(PLAN)
    assert found[:6] == [(3, 5), (4, 5), (5, 3), (5, 4), (5, 7), (7, 5)]
    assert {(0, 1), (1, 0), (2, 3), (6, 7), (0, 2)} < set(found)
    assert pairs_of({**PLAN, "groups": {"ep": [[5]]}}) == []


def test_fewer_ranks_than_planned_are_refused():
    _check_world(PLAN, 8)
    with pytest.raises(
        SystemExit, match=r"names rank 7, but 4 ranks were started: start all ranks of the job"
    ):
        _check_world(PLAN, 4)


def _probe(rank, world, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        return main({"suspects": [1], "hosts": {}, "groups": {"tp": [[0, 1], [2, 3]]}, "why": "slow_rank"})
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_probe_runs_on_real_ranks(ranks):
    first, *others = ranks.run(_probe, 4)
    assert others == [[], [], []]
    assert first[0] == "probe of 4 ranks: slow_rank"
    assert first[-1].startswith("conclusion: ")
    assert not [line for line in first if line.startswith("message") and "SLOW" not in line]

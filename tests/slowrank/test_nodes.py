"""A link between nodes is slower than one inside a node, and that is nobody's fault."""

from dataclasses import replace

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected.nodes import nodes_of, reach
from tracekit.matching.channels import Channel

STAGES, MESSAGE_US, LAYER_US = 4, 100.0, 1000.0


def pipeline(folder, replicas, slow=(), factor=5.0, devices=0, repeats=4, steps=5):
    """Stages hand on messages at once, `factor` times as slowly between the ranks of `slow`; the mesh is pp × dp.

    `devices` a node, which kernels name; 0 names none.
    """
    ranks = range(STAGES * replicas)
    lines = [Timeline(rank) for rank in ranks]
    groups = {r: tuple(rank for rank in ranks if rank % replicas == r) for r in range(replicas)}
    groups[replicas] = tuple(ranks)
    more = [{"device": rank % devices} if devices else {} for rank in ranks]
    for step in range(steps):
        begins = [line.at for line in lines]
        for turn in range(repeats):
            for line in lines:
                line.compute(LAYER_US * (1 + 0.002 * ((line.rank * 3 + turn + step) % 5)))
            for a, b in [(rank, rank + replicas) for rank in ranks if rank + replicas in ranks]:
                begin = max(lines[a].at, lines[b].at)
                end = begin + MESSAGE_US * (factor if (a, b) in slow else 1)
                for rank, op in ((a, "send"), (b, "recv")):
                    told = {"src_rank": a, "dst_rank": b, "in_nelems": 1 << 22, "dtype": "BFloat16"}
                    lines[rank].finish(lines[rank].post(a % replicas, op), end, **told, **more[rank])
        end = max(line.at for line in lines) + MESSAGE_US
        for line, begin in zip(lines, begins, strict=True):
            line.finish(line.post(replicas), end, **more[line.rank])
            line.step(step, begin)
    descs = dict.fromkeys(groups, "mesh_pp") | {replicas: "default_pg"}
    return write_run(folder, lines, groups, descs, len(ranks))


@pytest.mark.parametrize(
    ("replicas", "slow", "devices", "factor", "verdict"),
    [
        (2, [(2, 4), (3, 5)], 4, 5, "healthy"),  # a node ends there
        (2, [(2, 4), (3, 5)], 0, 5, "inconclusive"),  # nothing tells the nodes
        (
            2,
            [(2, 4), (3, 5)],
            0,
            50,
            "slow_link",
        ),  # no network is that much slower than what is inside a node
        (2, [(2, 4)], 0, 5, "slow_link"),  # the other replica's message is quick there
        (2, [(0, 2)], 4, 5, "slow_link"),  # inside a node
        (2, [(0, 2), (1, 3)], 4, 5, "slow_link"),  # both of that boundary, which lies inside a node
        (1, [(1, 2)], 2, 5, "inconclusive"),  # no other link between nodes
        (1, [(0, 1)], 2, 5, "slow_link"),
    ],
)
@pytest.mark.quick(2)
def test_links_are_compared_with_their_like(tmp_path, replicas, slow, devices, factor, verdict):
    found = analyse(pipeline(tmp_path, replicas, slow, factor, devices))
    assert found.verdict == verdict, found.reason
    named = {s.rank for s in found.suspects or found.candidates}
    assert named == ({rank for link in slow for rank in link} if verdict != "healthy" else set())


def test_health_states_what_links_could_hide(tmp_path):
    """Both links between the nodes are as slow, so that each has no peer but the other."""
    found = analyse(pipeline(tmp_path, 2, [(2, 4), (3, 5)], 5, 4))
    assert (found.verdict, found.suspects) == ("healthy", ())
    stated = [row.detail for row in found.quality if row.kind == "unproven_transfers"]
    assert len(stated) == 1
    assert "all pass nodes 0, 1, and a slow network there slows them alike" in stated[0]


def test_an_open_link_tells_why(tmp_path):
    slow = [(2, 4), (3, 5)]
    (tmp_path / "one").mkdir()
    unplaced, lone = (
        analyse(pipeline(tmp_path, 2, slow)),
        analyse(pipeline(tmp_path / "one", 1, [(1, 2)], devices=2)),
    )
    assert "do not name the nodes of the ranks" in unplaced.reason
    assert "tensorboard_trace_handler" in unplaced.to_decide
    assert "it alone connects two nodes along its axis" in lone.reason


def test_hosts_and_devices_tell_the_nodes(tmp_path):
    mesh = grid(dp=4)
    case = prepared(job(tmp_path, mesh), mesh)

    def told(hosts, devices):
        for rank, device in enumerate(devices):
            case.ops.per_rank[rank] = replace(case.ops.per_rank[rank], device=device)
        ranks = tuple(replace(r, host=h) for r, h in zip(case.run.ranks, hosts, strict=True))
        return dict(nodes_of(replace(case, run=replace(case.run, ranks=ranks))))

    none = [None] * 4
    assert told("aabb", [-1] * 4) == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert told(none, [0, 1, 0, 1]) == told("abcd", [0, 1, 0, 1]) == {0: 0, 1: 0, 2: 1, 3: 1}  # containers
    assert told("aaaa", [0, 1, 0, 1]) == {0: 0, 1: 0, 2: 1, 3: 1}  # all call themselves localhost
    assert told("aaaa", [0] * 4) == dict.fromkeys(range(4), "a")
    assert told(none, [0] * 4) == told(none, [0, 1, 1, 0]) == told("abcd", [-1] * 4) == {}
    nodes = {0: "a", 1: "a", 2: "a", 3: "b"}
    assert [reach(Channel(0, m, False, 0), nodes) for m in ((0, 1), (1, 3), (0, 1, 2, 3), (3, 4))] == [
        (2,), (1, 1), (3, 1), None
    ]  # fmt: skip

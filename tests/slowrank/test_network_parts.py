"""What slow transfers share: the smallest part of the network that all of them pass and no typical one does."""

import dataclasses

import pytest

import tracekit
from tests.simulate.case import setup_of, written
from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.answers.network_parts import Transfers, common_parts
from tracekit.placement import Place

PLACES = {rank: Place(f"h{rank // 2}", f"s{rank // 4}", str(rank % 2)) for rank in range(8)}
"""Four hosts of two ranks, two at each switch; a card for each rank."""
ALL = [(a, b) for a in range(8) for b in range(8) if a // 2 != b // 2]
"""All messages between hosts."""


def common(slow, pairs=ALL, places=PLACES, sound=10.0):
    found = common_parts(
        [Transfers(p, True, 0, 30.0 if slow(*p) else sound, slow(*p)) for p in pairs], places
    )
    return [(kind, *name) for kind, name in found]


@pytest.mark.parametrize(
    ("slow", "part"),
    [
        (lambda a, b: (a, b) == (2, 4), ("way", 2, 4)),
        (lambda a, b: {a, b} == {2, 4}, ("pair", 2, 4)),
        (lambda a, b: a == 3, ("send", 3)),
        (lambda a, b: b == 3, ("receive", 3)),
        (lambda a, b: 3 in {a, b}, ("card", "h1", "1")),
        (lambda a, b: {a // 2, b // 2} == {0, 3}, ("hosts", "h0", "h3")),
        (lambda a, b: 2 in {a // 2, b // 2}, ("host", "h2")),
        (lambda a, b: 1 in {a % 2, b % 2}, ("rail", "1")),
        (lambda a, b: 1 in {a // 4, b // 4}, ("switch", "s1")),
    ],
)
def test_one_part_is_named_where_all_messages_were_seen(slow, part):
    assert common(slow) == [part]


def test_without_places_ranks_and_pairs_are_left():
    assert common(lambda a, b: 3 in {a, b}, places={}) == [("rank", 3)]
    assert common(lambda a, b: 1 in {a % 2, b % 2}, places={}) == []


def test_parts_that_nothing_separates_are_all_listed():
    line = [(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)]
    found = common(lambda a, b: (a, b) in {(2, 4), (3, 5)}, line)
    assert found == [("hosts", "h1", "h2")]  # other messages clear both hosts
    assert common(lambda a, b: (a, b) == (4, 6), line[:3]) == [
        ("pair", 4, 6), ("card", "h3", "0"), ("hosts", "h2", "h3"), ("host", "h3"),
    ]  # fmt: skip


def test_two_faults_share_nothing():
    assert common(lambda a, b: (a, b) in {(0, 2), (5, 7)}) == []


def test_a_little_longer_clears_nothing():
    """Transfers that are neither slow nor typical are no evidence for or against a part."""
    clear = [p for p in ALL if 3 not in p]
    longer = [Transfers(p, True, 0, 10.0, False) for p in clear]
    longer += [Transfers(p, True, 0, 30.0 if p[0] == 3 else 24.0, p[0] == 3) for p in ALL if 3 in p]
    assert common_parts(longer, PLACES) == (("card", ("h1", "1")),)


def test_families_that_all_pass_a_part_clear_none():
    """Groups over all hosts are slow alike where one host is: they show no usual time."""
    messages = [Transfers(p, True, 0, 30.0 if 1 in p else 10.0, 1 in p) for p in ((1, 2), (3, 4), (5, 6))]
    groups = [Transfers(members, False, 1, 50.0, False) for members in ((0, 2, 4), (1, 3, 5))]
    alone = dict(enumerate(map(Place, "aabbcc"))) | {6: Place("d")}
    found = [kind for kind, _ in common_parts([*messages, *groups], alone)]
    assert "host" in found


def test_the_answer_names_what_a_slow_group_shares(tmp_path):
    run = job(tmp_path, grid(tp=2, dp=3), link={(1, 3, 5): 20.0})
    hosts = tmp_path / "hosts"
    hosts.write_text("rank,host,rail\n" + "".join(f"{r},h{r // 2},{r % 2}\n" for r in range(6)))
    found = tracekit.slowrank(run, hosts=hosts)
    assert (found.verdict, {s.rank for s in found.suspects}) == ("slow_link", {1, 3, 5})
    assert [(p.kind, p.ranks) for p in found.network_parts] == [
        ("card", (1,)), ("card", (3,)), ("card", (5,)), ("rail", (1, 3, 5)),
    ]  # fmt: skip
    assert found.reason.endswith(
        "they share the card of host h0 on rail 1 (rank 1), the card of host h1 on rail 1 (rank 3), the card of "
        "host h2 on rail 1 (rank 5) or rail 1, which these transfers do not separate"
    )
    assert tracekit.slowrank(run).reason == found.reason.partition("; they share")[0]


MESHES = {
    "rail": ({"tp": 4, "pp": 4, "dp": 2}, "slow_rail:rank=1,delay_ms=3", "rail r1"),
    "switch": ({"tp": 4, "pp": 4, "dp": 2}, "slow_switch:rank=5,delay_ms=3", "switch s0"),
    "host": ({"tp": 4, "pp": 4, "dp": 2}, "slow_switch:rank=5,delay_ms=3,hosts=1", "the network of host n1"),
    "direction": ({"tp": 2, "pp": 4, "dp": 2}, "slow_send:rank=2,delay_ms=5", "the sending side of rank 2"),
    "group": ({"tp": 4, "dp": 4}, "slow_rail:rank=1,delay_ms=20", "rail r1"),
}


def simulated(folder, mesh, *faults, lost=(), node_size=4):
    """What is said of a simulated job on hosts of `node_size` ranks, two hosts at a switch."""
    setup, config = setup_of(mesh, *faults)
    setup = dataclasses.replace(setup, hardware=dataclasses.replace(setup.hardware, node_size=node_size))
    world = setup.grid.world
    written(folder, setup, config, ranks=[r for r in range(world) if r not in lost])
    rows = [f"{r},n{r // node_size},s{r // node_size // 2},r{r % node_size}" for r in range(world)]
    (folder / "hosts").write_text("\n".join(["rank,host,switch,rail", *rows]))
    return tracekit.slowrank(tracekit.load([folder / "trace"]), hosts=folder / "hosts")


def node_size(kind):
    return 2 if kind == "direction" else 4


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.slow
def test_the_planted_part_is_named(tmp_path, kind):
    mesh, fault, part = MESHES[kind]
    found = simulated(tmp_path, mesh, fault, node_size=node_size(kind))
    assert found.verdict == "slow_link"
    assert part in [p.name for p in found.network_parts]
    if kind != "group":  # one group may be slow by each of its cards
        assert len(found.network_parts) == 1
        assert found.reason.endswith(f"; they share only {part}")


@pytest.mark.parametrize("lost", [(1,), (5,), (9, 13), (2, 6), (7,)])
@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.slow
def test_lost_ranks_blame_no_innocent(tmp_path, kind, lost):
    mesh, fault, part = MESHES[kind]
    found = simulated(tmp_path, mesh, fault, lost=lost, node_size=node_size(kind))
    assert not found.network_parts or part in [p.name for p in found.network_parts]


@pytest.mark.parametrize("mesh", [{"tp": 4, "pp": 4, "dp": 2}, {"tp": 4, "dp": 4}])
@pytest.mark.slow
def test_a_healthy_network_has_no_slow_part(tmp_path, mesh):
    found = simulated(tmp_path, mesh)
    assert found.verdict == "healthy"
    assert found.network_parts == ()


@pytest.mark.slow
def test_a_slow_sender_delays_its_experts_alone(tmp_path):
    """All-to-alls of equal splits show the group, whose members they do not separate."""
    model = {"model": {"experts": 8, "layers": 4}}
    setup, config = setup_of({"tp": 2, "dp": 8, "ep": 4}, "slow_send:rank=5,delay_ms=3", tables=model)
    setup = dataclasses.replace(setup, hardware=dataclasses.replace(setup.hardware, node_size=4))
    written(tmp_path, setup, config)
    found = tracekit.slowrank(tracekit.load([tmp_path / "trace"]))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_link", [1, 3, 5, 7])
    assert found.network_parts == ()
    assert "whether a sender, a receiver or a path is slow" in found.reason

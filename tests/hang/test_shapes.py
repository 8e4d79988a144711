"""Dumps of other shapes: coalesced calls, groups in groups, long run-ahead, several groups stuck at once."""

import random

import pytest

from tests.hang import simulate
from tests.hang.simulate import AXES, Case, Rank, make, plant, program, run
from tests.marks import quick_first, quick_if, quick_nth

MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
KINDS = {
    "host_stall": ("host_stalled",),
    "skip": ("host_stalled", "mismatched_call"),  # the second where the calls of its peers repeat
    "device_unseen": ("device_stalled",),
    "wrong_size": ("mismatched_call",),
    "wrong_op": ("mismatched_call",),
}


def named(finding, case):
    """Asserts that the culprit of `case` alone is named, with a kind that its fault allows."""
    assert [c.rank for c in finding.culprits] == [case.culprit], finding.reason
    assert finding.culprits[0].kind in KINDS[case.fault], finding.reason


def coalesced(case):
    """Each call as part of a coalesced one: its parts keep the state in which they were recorded.

    A collective has two parts. A receive and a send that stand together are one batch, as in batch_isend_irecv.
    """
    dumps = {}
    for rank, dump in case.dumps.items():
        entries, batch = [], []
        numbers = {}
        for place, entry in enumerate(dump["entries"]):
            part = {
                **entry, "state": "scheduled", "retired": False,
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            }  # fmt: skip
            following = dump["entries"][place + 1] if place + 1 < len(dump["entries"]) else None
            together = following is not None and following["is_p2p"] and entry["is_p2p"]
            if entry["is_p2p"]:
                batch.append(part)
                if together and following["retired"] == entry["retired"] and len(batch) < 2:
                    continue
                numbers[entry["pg_id"]] = numbers.get(entry["pg_id"], 0) + 1
                parts = [{**p, "p2p_seq_id": numbers[entry["pg_id"]]} for p in batch]
                batch = []
            else:
                half = [[n // 2 for n in s] for s in entry["input_sizes"]]
                parts = [part, {**part, "input_sizes": half}]
            whole = {**entry, "profiling_name": "nccl:coalesced", "input_sizes": [], "output_sizes": []}
            whole["p2p_seq_id"] = parts[0]["p2p_seq_id"]
            entries += [*parts, whole]
        entries = [{**e, "record_id": i} for i, e in enumerate(entries)]
        dumps[rank] = {**dump, "entries": entries}
    return Case(case.sizes, case.fault, case.axis, case.culprit, case.timed, dumps)


@pytest.mark.parametrize("axis", quick_if(lambda axis: axis in {"tp", "pp"}, AXES))
@pytest.mark.parametrize("fault", quick_nth(2, ["host_stall", "skip", "device_unseen", "wrong_size"]))
def test_coalesced_calls(judge, fault, axis):
    for seed in range(2):
        case = make(seed, fault, axis, MESH, timed=False)
        finding = judge(coalesced(case))
        if (
            fault == "device_unseen" and not finding.culprits
        ):  # a pair's only call: a dead link looks the same
            assert "1 of 2 members" in finding.reason
            assert MESH[axis] == 2
            continue
        named(finding, case)


@pytest.mark.parametrize("axis", quick_first(1, ["tp", "cp", "dp"]))
@pytest.mark.parametrize("size", quick_first(1, [4, 3]))
def test_a_device_of_a_larger_group_is_named(judge, axis, size):
    """Of a pair a dead link may look the same; where most members have done the call, nothing else does."""
    for seed in range(3):
        case = make(seed, "device_unseen", axis, {**MESH, "pp": 1, axis: size}, timed=False)
        finding = judge(coalesced(case))
        assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "device_stalled")], (
            finding.reason
        )


def test_a_message_batch_ends_with_its_coalesced_call(judge):
    finding = judge(coalesced(make(1, None, "tp", MESH, timed=False)))
    assert (finding.verdict, finding.culprits) == ("none", ())


@pytest.mark.parametrize("axis", quick_first(3, ["tpcp", "twin", "tp", "cp", "pp", "dp"]))
@pytest.mark.parametrize("fault", ["host_stall", "skip", "device_unseen", "wrong_size", "wrong_op"])
@pytest.mark.quick(4)
def test_nested_groups_and_two_groups_of_equal_members(judge, fault, axis):
    case = make(3, fault, axis, MESH, nested=True)
    finding = judge(case)
    named(finding, case)
    desc = finding.culprits[0].group.desc
    assert desc == simulate.DESCS[axis]
    names = {g.group.name for g in finding.groups if g.group.ranks == finding.culprits[0].group.ranks}
    assert finding.first_group in names or axis == "pp"


@pytest.mark.quick(2)
@pytest.mark.parametrize("fault", ["host_stall", "skip", "wrong_size", "wrong_op", "device_unseen"])
@pytest.mark.parametrize("window", quick_first(1, [60, 600]))
def test_hosts_may_run_ahead_by_hundreds_of_calls(judge, fault, window):
    case = make(0, fault, "tp", {"tp": 2, "cp": 2, "pp": 1, "dp": 2}, shape=(2, 24, 3), window=window)
    finding = judge(case)
    named(finding, case)
    assert finding.culprits[0].group.dim == "tp"


@pytest.mark.parametrize("axis", quick_nth(2, AXES))
@pytest.mark.quick(1)
def test_clocks_do_not_change_the_call_named(judge, axis):
    for seed in range(6):
        case = make(seed, "host_stall", axis, MESH)
        dumps = {}
        for rank, dump in case.dumps.items():  # clocks of hosts differ by up to an hour
            skew = random.Random(rank * 97 + seed).randrange(-1800, 1800) * 10**9
            moved = [
                {**e, **{k: v + skew for k, v in e.items() if k.startswith("time_") and v}}
                for e in dump["entries"]
            ]
            dumps[rank] = {**dump, "entries": moved}
        finding = judge(Case(MESH, "host_stall", axis, case.culprit, case.timed, dumps))
        assert [(c.rank, c.group.dim) for c in finding.culprits] == [(case.culprit, axis)], finding.reason
        last = max(
            (e["p2p_seq_id"] if e["is_p2p"] else e["collective_seq_id"])
            for e in case.dumps[case.culprit]["entries"]
            if e["process_group"][1] == simulate.DESCS[axis]
        )
        assert finding.culprits[0].collective.seq == last + 1


def two_stalls(seed):
    """A job in which two hosts stop; their ranks, and whether both came to their last call with nothing open."""
    rng = random.Random(seed)
    ranks = [Rank(r, program(MESH, r, 3, 2, 2)) for r in range(16)]
    first = plant(ranks, "host_stall", "tp", rng)
    others = [r for r in ranks if r.rank // 2 != first // 2]
    far = ranks[first].stop
    second = rng.choice([r for r in others if r.program[min(far, len(r.program) - 1)].axis == "tp"] or others)
    second.stop = min(far + rng.randrange(3), len(second.program) - 1)
    run(ranks, 5)
    stopped = [ranks[first], second]
    idle = all(r.at == r.stop and all(o.done for o in r.issued) for r in stopped)
    dumps = {r.rank: simulate.dump(r, MESH, 2000, False, False, True, rng) for r in ranks}
    return Case(MESH, "host_stall", "tp", None, False, dumps), {first, second.rank}, idle


@pytest.mark.slow
def test_hosts_stopped_in_different_groups_are_both_named(judge):
    both = 0
    for seed in range(30):
        case, culprits, idle = two_stalls(seed)
        finding = judge(case)
        named = {c.rank for c in finding.culprits}
        assert named
        assert named <= culprits, finding.reason
        if idle:
            assert named == culprits, finding.reason
            assert {c.kind for c in finding.culprits} == {"host_stalled"}
        both += idle
    assert both >= 5


@pytest.mark.parametrize("seed", quick_first(2, range(6)))
def test_an_odd_message_size_shows_both_ends_and_usual(judge, seed):
    case = make(seed, "wrong_size", "pp", MESH)
    finding = judge(case)
    (culprit,) = finding.culprits
    assert (culprit.rank, culprit.kind, culprit.group.dim) == (case.culprit, "mismatched_call", "pp")
    assert culprit.collective.op.startswith(("send", "recv"))
    assert culprit.collective.input_sizes == ((4096 * 3 + 1,),)
    assert len(culprit.sides) == 3
    assert {len(s.ranks) for s in culprit.sides} == {0, 1}
    assert finding.verdict == "mismatch"


@pytest.mark.parametrize("seed", quick_first(2, range(4)))
def test_without_replicas_earlier_messages_tell_an_odd_size(judge, seed):
    case = make(seed, "wrong_size", "pp", {"tp": 1, "cp": 1, "pp": 4, "dp": 1})
    finding = judge(case)
    assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "mismatched_call")], finding.reason


def test_unlike_messages_without_past_or_replicas_blame_neither_end(judge):
    case = make(0, "wrong_size", "pp", {"tp": 1, "cp": 1, "pp": 2, "dp": 1})
    dumps = {}
    for rank, dump in case.dumps.items():  # as if the very first message of the job had been another
        open_ = next(e for e in dump["entries"] if not e["retired"])
        dumps[rank] = {**dump, "entries": [{**open_, "record_id": 0, "p2p_seq_id": 1}], "pg_status": {}}
    finding = judge(Case(case.sizes, case.fault, "pp", None, False, dumps))
    assert finding.culprits == ()
    assert finding.verdict == "inconclusive"
    assert "ranks 0 and 1 send and receive different sizes" in finding.reason


@pytest.mark.parametrize("seed", quick_first(2, range(6)))
def test_gloo_calls_without_noted_end_are_no_stalled_device(judge, seed):
    case = make(seed, "host_stall", "tp", MESH, timed=False)
    rng = random.Random(seed)
    forgetful = set(rng.sample([r for r in case.dumps if r != case.culprit], 5))
    dumps = {}
    for rank, dump in case.dumps.items():
        entries = [
            {**e, "profiling_name": e["profiling_name"].replace("nccl:", "gloo:")} for e in dump["entries"]
        ]
        world = [i for i, e in enumerate(entries) if e["process_group"][1] == "default_pg" and e["retired"]]
        if rank in forgetful:
            entries[world[-1]] |= {
                "state": "scheduled",
                "retired": False,
                "time_discovered_completed_ns": None,
            }
        dumps[rank] = {**dump, "entries": entries}
    finding = judge(Case(MESH, "host_stall", "tp", case.culprit, False, dumps))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "host_stalled")], finding.reason

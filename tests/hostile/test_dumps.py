"""A number that no job has costs a dump its entry, never the process and never the verdict."""

import copy
import json
import os
import pickle
import time

import pytest

from tests.hang.simulate import make
from tests.hostile.job import DAMAGED
from tests.marks import quick_first
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

SIZES = {"tp": 2, "cp": 1, "pp": 2, "dp": 2}
HUGE = (-(2**63), -1, 2**31, 2**40, 2**62, 2**63 - 1, 10**40)
SECONDS = 20.0
NUMBERS = (
    "record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns", "time_discovered_started_ns",
    "time_discovered_completed_ns", "timeout_ms", "retired", "is_p2p",
)  # fmt: skip


def case(seed=6, ring=25):
    return make(
        seed, fault=("host_stall", "crash", "wrong_size")[seed % 3], sizes=SIZES, ring=ring, timed=True
    )


def innocent(found):
    return next(r for r in found.dumps if r != found.culprit)


def answer(folder, dumps):
    folder.mkdir()
    for rank, dump in dumps.items():
        (folder / f"dump_{rank}").write_bytes(dump if isinstance(dump, bytes) else pickle.dumps(dump))
    return analyse(load_dumps([str(folder)]))


def judged(finding):
    return finding.verdict, [c.rank for c in finding.culprits]


def with_entry(found, at, **fields):
    dumps = copy.deepcopy(found.dumps)
    entry = dumps[innocent(found)]["entries"][at]
    entry.update({k: v for k, v in fields.items() if k in entry})
    return dumps


@pytest.mark.quick(2)
@pytest.mark.parametrize("place", [0, 10, -1])
@pytest.mark.parametrize("seed", quick_first(2, [7, 11, 3, 0, 6, 9, 12, 15]))
def test_a_sequence_that_leaps_accuses_nobody_else(tmp_path, seed, place):
    found = case(seed)
    whole = judged(answer(tmp_path / "whole", found.dumps))
    number = {"collective_seq_id": 2**31, "p2p_seq_id": 2**31}
    verdict, culprits = judged(answer(tmp_path / "leap", with_entry(found, place, **number)))
    assert (verdict, culprits) == whole or verdict == "inconclusive"


def test_a_job_that_counts_far_is_answered(tmp_path):
    found, base = case(7), 2**33
    for entry in (e for d in found.dumps.values() for e in d["entries"]):
        entry["collective_seq_id"] += base if not entry["is_p2p"] else 0
    for status in (s for d in found.dumps.values() for s in d.get("pg_status", {}).values()):
        for key in status:
            status[key] += base
    assert judged(answer(tmp_path / "far", found.dumps)) == ("hang", [found.culprit])


@pytest.mark.parametrize("value", quick_first(3, HUGE))
@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.quick(4)
def test_a_wild_number_names_no_innocent(tmp_path, key, value):
    found = case()
    finding = answer(tmp_path / "x", with_entry(found, 12, **{key: value}))
    assert {c.rank for c in finding.culprits} <= {found.culprit}
    assert finding.verdict != "none"


@pytest.mark.parametrize(
    "ranks", ["[0, 1000000000]", "[0, 16000000]", "[-9223372036854775808]", "[" * 5000, list(range(9))]
)
def test_a_group_beyond_all_jobs_is_no_group(tmp_path, ranks):
    found = case()
    dumps = copy.deepcopy(found.dumps)
    config = dumps[innocent(found)]["pg_config"]
    config["99"] = {"name": "99", "desc": "x", "ranks": ranks}
    finding = answer(tmp_path / "x", dumps)
    assert {c.rank for c in finding.culprits} <= {found.culprit}
    assert finding.ranks.expected <= 9


@pytest.mark.parametrize("claim", [2**31 - 1, 2**63 - 1, -1, 10**40, True, "7" * 5000])
def test_a_wild_claim_of_a_rank_is_not_believed(tmp_path, claim):
    found = case()
    dumps = {r: {**d, "rank": claim} if r == innocent(found) else d for r, d in found.dumps.items()}
    finding = answer(tmp_path / "x", dumps)
    assert finding.ranks.expected == 8
    assert {c.rank for c in finding.culprits} <= {found.culprit}


def tree(depth, leaf=()):
    node = [list(leaf), list(leaf)]
    for _ in range(depth):
        node = [node, node]
    return node


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "key", ["input_sizes", "output_dtypes", "frames", "process_group", "pg_id", "profiling_name"]
)
@pytest.mark.parametrize("depth", [40, 2000])
def test_lists_that_share_their_parts_cost_no_time(tmp_path, key, depth):
    found = case()
    dumps = copy.deepcopy(found.dumps)
    for entry in dumps[innocent(found)]["entries"]:
        entry[key] = tree(40) if depth == 40 else [[1] * depth] * depth
    begin = time.perf_counter()
    finding = answer(tmp_path / "x", dumps)
    assert time.perf_counter() - begin < SECONDS
    assert {c.rank for c in finding.culprits} <= {found.culprit}


@pytest.mark.parametrize("place", ["version", "pg_config", "ranks", "rank", "hostname"])
def test_a_shared_tree_anywhere_costs_no_time(tmp_path, place):
    found = case()
    dumps = copy.deepcopy(found.dumps)
    dump = dumps[innocent(found)]
    if place == "ranks":
        for group in dump["pg_config"].values():
            group["ranks"] = tree(40)
    elif place == "pg_config":
        dump[place] = {str(k): {"name": tree(40), "desc": tree(40), "ranks": "[0, 1]"} for k in range(20)}
    else:
        dump[place] = tree(40)
    begin = time.perf_counter()
    answer(tmp_path / "x", dumps)
    assert time.perf_counter() - begin < SECONDS


def everywhere(**fields):
    def damage(dump):
        for entry in dump["entries"]:
            entry.update(fields)

    return damage


def newest(**fields):
    return lambda dump: dump["entries"][-1].update(fields)


def in_status(key, value):
    """Every group in turn would take long: the first is that of all ranks, in which most damage shows."""

    def damage(dump):
        status = dump["pg_status"]["0"] if "0" in dump["pg_status"] else dump["pg_status"][0]
        status[f"last_{key}_collective"] = value(status["last_enqueued_collective"])

    return damage


def done_beyond(dump):
    for key in ("enqueued", "completed"):
        in_status(key, lambda _: 12)(dump)


def first_of_each_group(value):
    def damage(dump):
        for group in {e["pg_id"] for e in dump["entries"]}:
            entry = next(e for e in dump["entries"] if e["pg_id"] == group)
            entry["collective_seq_id"] = value(entry["collective_seq_id"])

    return damage


def one_id_for_two_groups(dump):
    one, other = (
        dump["entries"][-1],
        next(e for e in dump["entries"] if e["pg_id"] != dump["entries"][-1]["pg_id"]),
    )
    one["pg_id"] = other["pg_id"]


def one_name_twice(dump):
    first, second, *_ = dump["pg_config"].values()
    first["name"] = second["name"]


CONTRADICTIONS = {
    "done that is not a truth value": everywhere(retired={"a": 1}),
    "a newest call done by a number": newest(retired=-1),
    "a message by a number": newest(is_p2p=-(2**63)),
    "a state of no name": newest(state="finished"),
    "an end without its state": newest(time_discovered_completed_ns=2**62 - 1),
    "issued beyond the ring": in_status("enqueued", lambda last: 2**31 + last),
    "issued one beyond the ring": in_status("enqueued", lambda last: last + 1),
    "done that the ring holds open": in_status("completed", lambda last: last),
    "done beyond what the ring holds open": done_beyond,
    "numbers that fall": first_of_each_group(lambda seq: 2 * seq),
    "numbers far ahead": first_of_each_group(lambda seq: 2**31),
    "one name for two groups": one_name_twice,
    "one id for two groups": one_id_for_two_groups,
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
@pytest.mark.parametrize("seed", quick_first(1, [8, 3, 5, 6, 2, 0, 7]))
@pytest.mark.quick(4)
def test_a_dump_that_contradicts_itself_flips_nothing(tmp_path, seed, name):
    found = case(seed)
    whole = judged(answer(tmp_path / "whole", found.dumps))
    for rank in sorted(found.dumps.keys() - {found.culprit})[:: 3 if seed else 1]:
        dumps = copy.deepcopy(found.dumps)
        CONTRADICTIONS[name](dumps[rank])
        verdict, culprits = judged(answer(tmp_path / str(rank), dumps))
        assert (verdict, culprits) == whole or (verdict, culprits) == ("inconclusive", [])


@pytest.mark.parametrize("left", [False, True], ids=["no calls", "no call of the group"])
@pytest.mark.parametrize("seed", quick_first(1, [5, 3, 8, 6]))
def test_a_status_alone_that_leaps_accuses_nobody(tmp_path, seed, left):
    found = case(seed)
    dumps = copy.deepcopy(found.dumps)
    lone = innocent(found)
    in_status("enqueued", lambda last: 2**31 + last)(dumps[lone])
    if left:  # the calls of that group are damaged alone
        for entry in dumps[lone]["entries"]:
            entry["pg_id"] = 1 if entry["process_group"][0] == "0" else entry["pg_id"]
    else:
        del dumps[lone]["entries"]
    finding = answer(tmp_path / "x", dumps)
    assert {c.rank for c in finding.culprits} <= {found.culprit}
    assert finding.verdict != "none"


def test_a_damaged_status_is_paired_with_no_group(tmp_path):
    """One row and another group's members are lost: what is left is as many of both, and no longer in order."""
    found = case(0)
    dumps = copy.deepcopy(found.dumps)
    in_status("enqueued", lambda _: 10**200)(dumps[DAMAGED])
    list(dumps[DAMAGED]["pg_config"].values())[2]["ranks"] = "9" * 5000
    dumps[DAMAGED]["entries"] = "none"
    finding = answer(tmp_path / "x", dumps)
    assert {c.rank for c in finding.culprits} <= {found.culprit, DAMAGED}
    assert finding.verdict != "none"


MISNAMED = [
    (3, 5, {"10": {"name": "1"}}, "none"),
    (8, 6, {"7": {"name": 1}}, "none"),
    (8, 4, {"3": {"name": "9"}, "9": {"name": [[]]}}, None),
]


@pytest.mark.parametrize(("seed", "lone", "names", "calls"), MISNAMED)
def test_a_group_under_another_name_is_no_group(tmp_path, seed, lone, names, calls):
    """The recorder writes each group under its name: else its status or its calls seem those of another."""
    found = case(seed)
    dumps = copy.deepcopy(found.dumps)
    dumps[lone] |= {"entries": calls or dumps[lone]["entries"]}
    for name, row in names.items():
        dumps[lone]["pg_config"][name] |= row
    finding = answer(tmp_path / "x", dumps)
    assert {c.rank for c in finding.culprits} <= {found.culprit, lone}
    assert finding.verdict != "none"


def test_a_group_given_as_text_is_no_group(tmp_path):
    found = case()
    dumps = copy.deepcopy(found.dumps)
    entry = dumps[innocent(found)]["entries"][-1]
    entry["process_group"] = "".join(entry["process_group"])
    answered = answer(tmp_path / "fr", dumps)
    assert innocent(found) not in {c.rank for c in answered.culprits}


def test_a_pipe_among_dumps_is_listed(tmp_path):
    found = case()
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / "dump_99")
    for rank, dump in found.dumps.items():
        (tmp_path / "x" / f"dump_{rank}").write_text(json.dumps(dump))
    assert any("pipe" in r.reason for r in load_dumps([str(tmp_path / "x")]).rejected)

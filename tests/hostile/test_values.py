"""A number that no job has costs its value, never the process and never the answer."""

import json
import os
import random
import time

import pytest

from tests.hostile.job import DAMAGED, answer, documents, one_parsed, write
from tests.marks import quick_first, quick_if
from tracekit.ingest import load
from tracekit.ingest.kineto import event_array

HUGE = (-(2**63), -1, 2**31 - 1, 2**31, 10**9, 2**62, 2**63 - 1, 2**64, 10**40)
ARGUMENTS = (
    "Process Group Ranks", "Group size", "Global rank start", "Global rank stride", "Dst Rank", "Src Rank", "Rank",
    "Seq", "In msg nelems", "Out msg nelems", "stream", "correlation", "device", "External id", "Comms Id",
)  # fmt: skip


def events(trace):
    return [e for e in trace["traceEvents"] if isinstance(e, dict)]


def everywhere(key, value):
    def damage(trace):
        for event in events(trace):
            if key in event.get("args", {}):
                event["args"][key] = value

    return damage


def in_head(*path, value):
    def damage(trace):
        place = trace
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return damage


def renamed_steps(trace):
    for event in events(trace):
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = "ProfilerStep#2147483647"


def with_events(*new):
    def damage(trace):
        for place, event in enumerate(new):
            trace["traceEvents"].insert(5 * place, event)

    return damage


def of_event(**changed):
    def damage(trace):
        trace["traceEvents"][9].update(changed)

    return damage


DAMAGE = {
    **{f"{key} {value}": everywhere(key, value) for key in ARGUMENTS for value in (-(2**63), 2**63 - 1)},
    **{f"rank {value}": in_head("distributedInfo", "rank", value=value) for value in HUGE},
    **{f"world {value}": in_head("distributedInfo", "world_size", value=value) for value in HUGE},
    **{
        f"base {value}": in_head("baseTimeNanoseconds", value=value)
        for value in (*HUGE, 2**62 - 1, 1 - 2**62)
    },
    "a group of two far apart": everywhere("Process Group Ranks", "[0, 1000000000]"),
    "a listed group far apart": in_head(
        "distributedInfo", "pg_config", value=[{"pg_name": "0", "ranks": [0, 10**9]}]
    ),
    "a peer beyond the world": everywhere("Dst Rank", 10**6),
    "a step that overflows a key": renamed_steps,
    "null among events": with_events(None, None),
    "lists and texts among events": with_events([], "x", 5, [[[]]], {}),
    "a long key": in_head("k" * 5000, value={"9" * 5000: 1}),
    "no number for a time": of_event(ts=float("nan")),
    "a time beyond all": of_event(ts=1e300),
    "a time before all": of_event(ts=-9.2e15),
    "a long duration": of_event(dur=9e15),
    "a number of 4000 digits": of_event(pid=10**4000),
    "deep arguments": of_event(args=json.loads("[" * 900 + "]" * 900)),
    "a number for a name": of_event(name=5),
}


@pytest.mark.parametrize("name", quick_if(lambda name: sorted(DAMAGE).index(name) % 20 == 0, DAMAGE))
@pytest.mark.quick(1)
def test_a_wild_value_changes_no_answer(tmp_path, name):
    traces = one_parsed()
    DAMAGE[name](traces[DAMAGED])
    found = answer(write(tmp_path, traces))
    assert found.verdict in {"slow_rank", "inconclusive"}
    assert {s.rank for s in found.suspects} <= {6}
    assert 6 in {s.rank for s in (*found.suspects, *found.candidates)} or found.verdict == "inconclusive"
    assert found.ranks.expected == 8


def test_a_file_of_nothing_but_nulls_is_rejected(tmp_path):
    traces = one_parsed()
    traces[DAMAGED]["traceEvents"] = [None] * 3000
    found = answer(write(tmp_path, traces))
    assert [r.rank for r in found.ranks.rejected] == [DAMAGED]
    assert {s.rank for s in found.suspects} <= {6}


@pytest.mark.parametrize("window", quick_first(1, [1 << 20, 3000, 400]))
@pytest.mark.slow
def test_null_in_front_of_a_block_is_skipped(tmp_path, monkeypatch, window):
    monkeypatch.setattr(event_array, "WINDOW", window)
    monkeypatch.setattr(event_array, "SMALL", 100)
    traces = one_parsed()
    draw = random.Random(5).random
    listed = traces[DAMAGED]["traceEvents"]
    traces[DAMAGED]["traceEvents"] = [e for x in listed for e in ([None, x] if draw() < 0.2 else [x])]
    found = answer(write(tmp_path, traces))
    assert found.ranks.rejected == ()
    assert [s.rank for s in found.suspects] == [6]


FILES = (500, 2000)


@pytest.mark.slow
def test_tiny_files_take_linear_time(tmp_path):
    """Many cut files beside a whole job cost each the same, and every one of them is listed."""
    took = []
    for count in FILES:
        folder = write(tmp_path / str(count), documents())
        for number in range(count):
            (folder / f"cut{number}.json").write_text('{"traceEvents": [{"ph":')
        begin = time.process_time()
        run = load([str(folder)])
        took.append(time.process_time() - begin)
        assert len(run.rejected) == count
    assert took[1] < 2 * FILES[1] / FILES[0] * took[0] + 1


def test_a_pipe_and_a_circle_of_links_are_passed(tmp_path):
    folder = write(tmp_path, documents())
    os.mkfifo(folder / "rank9.json")
    (folder / "more").mkdir()
    (folder / "more" / "up").symlink_to(folder)
    found = answer(folder)
    assert ["pipe" in r.reason for r in found.ranks.rejected] == [True]
    assert [s.rank for s in found.suspects] == [6]

"""Files are what a profiler would write: calls nest, kernels of a stream follow each other, seeds keep their jobs."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.marks import quick_if
from tests.shapes.case import make, save
from tests.shapes.draw import MEASURED, drawn_case
from tests.shapes.fault import CAUSES, NEWER
from tests.shapes.newer_shapes import SHAPES
from tests.shapes.partly import SUBSETS
from tests.shapes.rocm import COLLECTIVE
from tests.shapes.vote import vote

SEEDS = (33, 1022, 98, 35, 70, 81, 1004, 1030, 2055, 25, 64, 1058, *range(3000, 3018), 3021)
"""Tensor groups, messages, rings, documents, experts, ZeRO-3; torch 2.3 to 2.12; from 3000 on every newer shape."""
QUICK = (33, 1022, 3003)
"""Those that are always looked at, with CUDA graphs and Triton's launches."""
NEWER_SEEDS = range(3000, 3180)
STEP_MS = {
    33: 13.154411126891029,
    1022: 20.96380272815439,
    98: 19.324105679351312,
    2055: 22.40653602901302,
    3000: 9.059962167325944,
    3003: 20.123777001470163,
    3012: 21.407100209159783,
    3013: 16.516921761173485,
    3021: 78.78768127594427,
}
"""Steps of some seeds as first drawn, in ms: whoever changes a job makes the figures in docs/ meaningless."""
ROUNDED_US = 0.001
"""By how much times may overlap, being numbers of 64 bits here: 1 ns, or nothing where they are whole µs."""
NEVER_ENDED = "nccl:coalesced"
"""A title that torch ended late up to 2.8."""
Trace = dict[str, Any]


def traces(seed: int, folder: Path) -> list[Trace]:
    save(make(drawn_case(seed)), folder / "traces")
    return [load(path) for path in sorted((folder / "traces").iterdir())]


def load(path: Path) -> Trace:
    data = path.read_bytes()
    found: Trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def events_of(trace: Trace, *categories: str) -> dict[Any, list[Trace]]:
    """By thread or stream, events in the order in which they begin, longer ones first."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["cat"] in categories and event["name"] != NEVER_ENDED:
            found[event["tid"]].append(event)
    return {place: sorted(events, key=lambda e: (e["ts"], -e["dur"])) for place, events in found.items()}


@pytest.fixture(scope="module", params=quick_if(lambda seed: seed in QUICK, SEEDS))
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """All traces of a job."""
    return traces(request.param, tmp_path_factory.mktemp("shapes"))


def slack(trace: Trace) -> float:
    """How far times are rounded."""
    return ROUNDED_US if "baseTimeNanoseconds" in trace else 0.0


@pytest.mark.slow
def test_kernels_of_a_stream_follow_each_other(recorded: list[Trace]) -> None:
    for trace in recorded:
        streams = events_of(trace, "kernel", "gpu_memcpy")
        assert streams
        for events in streams.values():
            for before, after in pairwise(events):
                assert after["ts"] >= before["ts"] + before["dur"] - slack(trace)


@pytest.mark.quick(2)
def test_calls_of_a_thread_nest(recorded: list[Trace]) -> None:
    for trace in recorded:
        near = slack(trace)
        for events in events_of(trace, "cpu_op", "cuda_runtime", "cuda_driver", "user_annotation").values():
            around: list[float] = []
            for event in events:
                while around and around[-1] <= event["ts"] + near:
                    around.pop()
                assert not around or event["ts"] + event["dur"] <= around[-1] + near
                around.append(event["ts"] + event["dur"])


def test_kernels_have_one_launch(recorded: list[Trace]) -> None:
    """Those that were launched before the window have none, and come first."""
    for trace in recorded:
        launches = events_of(trace, "cuda_runtime", "cuda_driver")
        calls = [event for events in launches.values() for event in events]
        launched = {event["args"]["correlation"]: event["ts"] for event in calls}
        assert len(launched) == len(calls)
        for events in events_of(trace, "kernel", "gpu_memcpy").values():
            known = [event["args"]["correlation"] in launched for event in events]
            assert known == sorted(known)
            for event in events[known.count(False) :]:
                assert event["ts"] >= launched[event["args"]["correlation"]] - slack(trace)


def test_ranks_tell_who_they_are(recorded: list[Trace]) -> None:
    told = [trace["distributedInfo"] for trace in recorded]
    assert sorted({info["rank"] for info in told}) == list(range(told[0]["world_size"]))
    for info in told:
        assert all(info["rank"] in group["ranks"] for group in info.get("pg_config", []))


def test_a_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        save(make(drawn_case(98)), tmp_path / name / "traces")
    first, second = (sorted((tmp_path / name / "traces").iterdir()) for name in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second]
    assert [load(path)["traceEvents"] for path in first] == [load(path)["traceEvents"] for path in second]


@pytest.mark.parametrize("seed", STEP_MS)
@pytest.mark.quick(3)
def test_a_seed_keeps_its_job(seed: int) -> None:
    assert make(drawn_case(seed)).step_us / 1e3 == pytest.approx(STEP_MS[seed], rel=1e-9)


def test_the_measured_seeds_have_every_fault() -> None:
    cases = [drawn_case(seed) for seed in MEASURED]
    assert len(cases) == len({case.seed for case in cases}) == 249
    assert {case.kind for case in cases} == {*CAUSES, "none"}
    assert all(set(case.culprits) <= set(range(case.world)) for case in cases)


def test_newer_seeds_have_every_shape_and_fault() -> None:
    cases = [drawn_case(seed) for seed in NEWER_SEEDS]
    assert {case.name for case in cases} == set(SHAPES)
    assert {case.kind for case in cases} >= {*NEWER, "none"}
    assert {around.kind for case in cases if (around := case.background)} == {"first_step", "collecting"}
    assert all(set(case.culprits) <= set(range(case.world)) for case in cases)


def test_seeds_from_4000_record_some_ranks() -> None:
    cases = [drawn_case(seed) for seed in range(4000, 4060)]
    assert {case.subset for case in cases} == set(SUBSETS)
    assert all(case.recorded and set(case.recorded) <= set(range(case.world)) for case in cases)
    missing = [case for case in cases if case.subset == "without the culprit" and case.fault]
    assert missing
    assert not any(set(case.culprits) & set(case.recorded) for case in missing)


@pytest.mark.slow
def test_two_captures_are_two_files(tmp_path: Path) -> None:
    made = make(drawn_case(3005))
    save(made, tmp_path / "traces")
    marks = [
        {event["name"] for event in load(path)["traceEvents"] if event["name"].startswith("ProfilerStep")}
        for path in (tmp_path / "traces").iterdir()
    ]
    assert len(marks) == 2 * made.case.world
    assert {frozenset(steps) for steps in marks} == {
        frozenset(f"ProfilerStep#{step}" for step in steps) for steps in made.case.cycles
    }


def test_a_graph_has_one_launch(tmp_path: Path) -> None:
    trace = traces(3003, tmp_path)[0]
    kernels = [event for event in trace["traceEvents"] if "graph id" in event.get("args", {})]
    assert len(kernels) == 8 * len({event["args"]["correlation"] for event in kernels})


@pytest.mark.slow
def test_amd_devices_tell_less(tmp_path: Path) -> None:
    trace = traces(3004, tmp_path)[0]
    calls = events_of(trace, "cuda_runtime")
    assert all(event["name"].startswith("hip") for events in calls.values() for event in events)
    kernels = [event for events in events_of(trace, "kernel").values() for event in events]
    assert all("grid" not in event["args"] for event in kernels)
    assert {event["name"] for event in kernels if "nccl" in event["name"]} == {COLLECTIVE}


def test_the_vote_finds_a_rank_that_is_waited_for() -> None:
    made = make(drawn_case(64))
    assert made.slowdown > 0.1
    assert vote(made) == made.case.culprits[0]
    assert made.groups == 1

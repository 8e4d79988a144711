"""What a step could take: jobs made worse in one way on paper, and parts that always add up to the step."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.breakdown.runs import made, stages
from tests.floor.jobs import GEMM_US, LAYERS, RANKS, TRANSFER_US, alike
from tests.slowrank.jobs import grid, job
from tests.what_if.tables import ingested, replicas
from tracekit.analysis.floor import waterfall
from tracekit.analysis.floor.work import RankWork
from tracekit.errors import InputError, UsageError
from tracekit.report.floor import floor_text

PEAK = 1.0
"""TFLOP/s of a device on paper: a millisecond is 1e9 FLOPs."""


def parts(finding):
    return {p.part: p for p in finding.parts}


def limits(finding):
    return {limit.limit: limit.step_ms for limit in finding.limits}


def unknown(finding):
    return {u.part for u in finding.unknown}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return tracekit.floor(alike(tmp_path_factory.mktemp("healthy"), again=100.0))


WORSE = {
    "small_kernels": ({"small": 100}, LAYERS * 100 * 0.002),
    "launch_gaps": ({"late": 400.0}, None),
    "allocator_calls": ({"late": 400.0, "call": "cudaFree"}, LAYERS * 0.38),
    "recomputation": ({"again": 700.0}, LAYERS * 0.7),
    "dp transfer": ({"transfer": 9.0}, LAYERS * 9 * TRANSFER_US / 1000),
    "slow_kernels": ({"slow": (1, 1.8, 1.8)}, None),
}
"""What makes a job worse, and the ms a step that its part takes then."""


@pytest.mark.parametrize("part", WORSE)
def test_the_part_made_worse_grows(part, healthy, tmp_path):
    worse, expected = WORSE[part]
    found = tracekit.floor(alike(tmp_path, **{"again": 100.0} | worse))
    grown = {p: mine.mean_ms - parts(healthy)[p].mean_ms for p, mine in parts(found).items()}
    assert max(grown, key=grown.get) == part
    longer = found.step_ms - healthy.step_ms + parts(healthy)[part].brings_ms
    assert parts(found)[part].brings_ms == pytest.approx(longer, rel=0.25)
    if expected is not None:
        assert parts(found)[part].mean_ms == pytest.approx(expected, rel=0.05)


def test_a_few_micro_batches_are_a_bubble(tmp_path):
    found = tracekit.floor(made(tmp_path, stages(), axis="pp"), mesh={"pp": 2})
    bubble = parts(found)["bubble"]
    assert bubble.ns + parts(found)["imbalance"].ns == sum(
        (p.bubble_ns + p.waiting_ns)
        for p in (c.parts for c in tracekit.breakdown(made_again(tmp_path)).cells)
    )
    assert bubble.brings_ms > 0.1
    assert "micro-batches" in bubble.remedy


def made_again(folder):
    return made(folder, stages(), axis="pp")


def test_no_part_brings_more_than_the_step(tmp_path, monkeypatch):
    """Where begins of steps were not recorded, the parts add up to less than the steps as `slowrank` counts them."""
    run = alike(tmp_path, late=8000.0)
    whole = tracekit.floor(run)
    cut = waterfall.steps_of

    def shorter(case, rank, known):
        found = cut(case, rank, known)
        cells = (replace(c, parts=replace(c.parts, step_ns=c.parts.step_ns // 2)) for c in found.cells)
        return replace(found, cells=tuple(cells))

    monkeypatch.setattr(waterfall, "steps_of", shorter)
    half = tracekit.floor(run)
    assert half.step_ms == pytest.approx(whole.step_ms / 2)
    assert half.step_ms < parts(whole)["launch_gaps"].brings_ms
    assert 0 < parts(half)["launch_gaps"].brings_ms < half.step_ms


def test_a_slow_rank_is_imbalance(tmp_path):
    slow, even = job(tmp_path, grid(dp=4), slow={3: 1.3}, jitter=0), 3 * 1.05
    found = tracekit.floor(slow)
    assert found.step_ms == pytest.approx(3 * 1.35, rel=0.01)
    assert limits(found)["no_waiting"] == limits(found)["best_kernels"] == pytest.approx(even, rel=0.01)
    assert parts(found)["imbalance"].brings_ms == pytest.approx(3 * 0.3, rel=0.02)


def test_a_long_stage_gives_work_to_the_others(tmp_path):
    found = tracekit.floor(job(tmp_path, grid(pp=3, dp=2), slow={2: 1.6, 5: 1.6}, jitter=0))
    even = tracekit.floor(job(tmp_path, grid(pp=3, dp=2), slow=dict.fromkeys(range(6), 1.2), jitter=0))
    assert limits(found)["no_waiting"] == pytest.approx(even.step_ms, rel=0.02)


def test_peak_and_flops_end_the_waterfall(tmp_path):
    run = alike(tmp_path)
    useful = LAYERS * GEMM_US / 1000  # ms
    found = tracekit.floor(run, flops=useful * RANKS * 1e9, peak_tflops=PEAK)
    assert parts(found)["model"].mean_ms == limits(found)["roofline"] == pytest.approx(useful)
    assert found.mfu == pytest.approx(useful / found.step_ms)
    assert parts(found)["other_work"].mean_ms == pytest.approx(useful / 2, rel=0.01)
    assert list(parts(found))[-1] == "model"
    assert "model" not in unknown(found)
    with pytest.raises(UsageError, match="correct FLOPs or peak"):
        tracekit.floor(run, flops=2 * useful * RANKS * 1e9, peak_tflops=PEAK)


def works(spent):
    """What ranks computed in a class of kernel: ns by rank and step."""
    none = np.zeros(len(spent[0]), np.int64)
    return [
        RankWork(rank, list(range(len(own))), True, None, {"attention": np.array(own)},
                 {"attention": none + 8}, np.array(own), none, none, none, none)
        for rank, own in enumerate(spent)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spent", "slow"),
    [
        (
            [[10_000, 17_000, 8000], [13_000, 9000, 21_000], [8000, 16_000, 12_000], [18_000, 11_000, 7000]],
            set(),
        ),
        (
            [
                [10_000, 10_100, 9900],
                [14_000, 14_100, 13_900],
                [10_100, 10_000, 9900],
                [9900, 10_100, 10_000],
            ],
            {1},
        ),
        ([[10_000], [14_000], [10_000], [10_000]], {1}),
    ],
    ids=["documents differ", "one rank is slow", "a single step"],
)
def test_kernels_that_follow_documents_are_not_slow(spent, slow):
    best = waterfall.at_best(SimpleNamespace(mesh=grid(dp=4)), works(spent))
    assert {rank for rank, ns in best.slow.items() if ns.any()} == slow


def test_one_rank_does_not_show_what_can_be_hidden(tmp_path):
    """Its exposed communication may be waits for ranks that come late, which nothing hides."""
    alone = alike(tmp_path).without([1, 2], "not given")
    (hidden,) = (x for x in tracekit.floor(alone).limits if x.limit == "hidden_communication")
    assert hidden.step_ms is None
    assert hidden.needs.startswith("traces of more ranks")


def test_hidden_communication_takes_its_own_time(tmp_path):
    hidden, bound = (
        limits(tracekit.floor(alike(tmp_path, transfer=factor)))["hidden_communication"] for factor in (1, 50)
    )
    assert hidden == pytest.approx(LAYERS * 1.5 * GEMM_US / 1000, rel=0.01)
    assert bound == pytest.approx(LAYERS * 50 * TRANSFER_US / 1000, rel=0.01)


def test_what_is_not_recorded_is_unknown(tmp_path):
    bare = tracekit.floor(job(tmp_path, grid(dp=3)))  # kernels without launches or operators
    assert "recomputation" in unknown(bare)
    assert not {"recomputation", "model", "other_work"} & set(parts(bare))
    assert limits(bare)["roofline"] is limits(bare)["plan"] is None
    assert "needs operators inside the nodes of autograd" in floor_text(bare)


def test_one_rank_alone_has_no_peers(tmp_path):
    found = tracekit.floor(job(tmp_path, grid(tp=3), lost={1, 2}))
    assert {"imbalance", "slow_kernels"} <= unknown(found)
    assert limits(found)["no_waiting"] is limits(found)["best_kernels"] is None
    either = parts(found)["tp either"]
    assert either.remedy.startswith("record every rank")
    assert either.brings_ms is None
    assert "without tp either" not in floor_text(found)


def test_a_table_has_no_kernels(tmp_path):
    found = tracekit.floor(ingested(tmp_path, replicas([1, 1, 1.5])))
    assert {"small_kernels", "recomputation", "launch_gaps", "allocator_calls"} <= unknown(found)
    assert limits(found)["no_waiting"] == pytest.approx(found.step_ms - 30, rel=0.01)
    assert sum(p.ns for p in found.parts) == found.total_ns


def plan_of(folder, gpus=3, **more):
    mesh = {"tp": 1, "cp": 1, "pp": 1, "dp": gpus}
    choices = [
        {"mesh": mesh, "step_s": 2.0, "schedule": "flexible"},
        {"mesh": mesh | {"tp": 3, "dp": 1}, "step_s": 1.5},
    ]
    answer = {"schema": "reftrain.plan/1", "gpus": gpus, "taken": choices[1]["mesh"], "choices": choices}
    (folder / "plan.json").write_text(json.dumps(answer | more))
    return str(folder / "plan.json")


def test_a_plan_shortens_by_what_it_projects(tmp_path):
    run = alike(tmp_path)
    found = tracekit.floor(run, plan=plan_of(tmp_path))
    assert limits(found)["plan"] == pytest.approx(0.75 * found.step_ms)
    assert "tp=3" in next(limit.meaning for limit in found.limits if limit.limit == "plan")


@pytest.mark.parametrize("more", [{"schema": "other/1"}, {"choices": []}, {"choices": 7}, {"gpus": "3"}])
def test_what_is_no_plan_is_refused(tmp_path, more):
    with pytest.raises(InputError, match="plan"):
        tracekit.floor(alike(tmp_path), plan=plan_of(tmp_path, **more))


def test_a_plan_of_other_devices_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--gpus 3"):
        tracekit.floor(alike(tmp_path), plan=plan_of(tmp_path, gpus=6))


@given(
    st.fixed_dictionaries({
        "small": st.integers(0, 3), "late": st.floats(0, 900), "again": st.floats(0, 900),
        "transfer": st.floats(0.1, 20), "slow": st.lists(st.floats(0.5, 2), min_size=3, max_size=3),
    }),
    st.floats(0.01, 0.5),
)  # fmt: skip
@settings(max_examples=6)
def test_parts_add_up_to_the_step(tmp_path_factory, worse, share):
    run = alike(tmp_path_factory.mktemp("run"), **worse)
    found = tracekit.floor(run, flops=share * LAYERS * RANKS * 1e9, peak_tflops=PEAK)
    whole = tracekit.breakdown(run).total.step_ns
    assert sum(p.ns for p in found.parts) == found.total_ns == whole
    assert all(p.ns >= 0 for p in found.parts)
    assert all(0 <= p.brings_ms <= found.step_ms for p in found.parts if p.brings_ms is not None)
    assert all(0 <= step <= found.step_ms for step in limits(found).values() if step is not None)


def test_recorded_shapes_give_the_flops(tmp_path):
    product = round(GEMM_US * 1e6 / 2)  # half the time of a product at peak
    found = tracekit.floor(alike(tmp_path, late=50.0, again=100.0, flops=product), peak_tflops=PEAK)
    assert (found.flops_from, found.flops) == ("shapes", LAYERS * RANKS * product)
    assert parts(found)["model"].mean_ms == pytest.approx(LAYERS * GEMM_US / 2000)

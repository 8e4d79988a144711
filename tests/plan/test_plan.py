"""The planner: every mesh answered, the right one first, with honest reasons."""

import json
from dataclasses import replace

import pytest

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import ModelConfig
from reftrain.cost.hardware import load_hardware
from reftrain.cost.memory import MemoryModel
from reftrain.errors import ConfigError
from reftrain.plan.choose import TIE, Planner, decide
from reftrain.plan.meshes import Workload, all_meshes, impossible
from reftrain.plan.plan_report import document, mesh_text, svg, table, warnings
from reftrain.plan.projection import project
from reftrain.plan.steady import whole_rounds
from tracekit.axes import AXES

H100 = load_hardware("h100")


def workload(preset, gpus, seq_len=8192, sequences=64):
    return Workload(ModelConfig(preset=preset, **MODEL_PRESETS[preset]), gpus, seq_len, sequences)


@pytest.fixture(scope="module")
def small():
    return Planner(workload("8b", 16), H100).plan()


@pytest.mark.parametrize(("gpus", "count"), [(1, 1), (2, 4), (12, 40), (64, 84), (16384, 680)])
def test_all_meshes_are_enumerated(gpus, count):
    meshes = list(all_meshes(gpus))
    assert len(meshes) == len(set(meshes)) == count
    assert all(tp * cp * pp * dp == gpus for tp, cp, pp, dp in meshes)


def test_every_mesh_is_chosen_or_rejected_once(small):
    answered = [choice.mesh for choice in small.choices] + [row.mesh for row in small.rejected]
    assert sorted(answered) == sorted(all_meshes(16))
    assert all(row.reason for row in small.rejected)


def test_choices_are_ordered_by_time_and_fit(small):
    times = [choice.projection.step_s for choice in small.choices]
    assert times == sorted(times)
    for choice in small.choices:
        assert MemoryModel(choice.job).peak() == choice.memory_bytes <= H100.usable_bytes
        assert project(choice.job, H100).step_s == choice.projection.step_s


def test_nothing_faster_was_thrown_away(small):
    """Only a tie may be faster than the mesh taken, and bounds of the rejected lie above it."""
    taken, fastest = small.taken.projection.step_s, small.choices[0].projection.step_s
    assert taken <= (1 + TIE) * fastest
    assert all(choice.tie for choice in small.choices if choice.projection.step_s <= taken)
    assert all(row.step_s is None or row.step_s > taken for row in small.rejected)


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ((3, 1, 1, 1), "3 does not divide 32 heads"),
        ((64, 1, 1, 1), "tp 64 does not divide 32 heads"),
        ((1, 3, 1, 1), "cp 3"),
        ((1, 1, 35, 1), "pp 35"),
        ((1, 1, 1, 128), "no micro-batch for every rank"),
        ((1, 1, 1, 3), "dp 3"),
        ((32, 512, 1, 1), "cannot split"),
        ((8, 2, 4, 2), None),
    ],
)
def test_shapes_that_cannot_be(mesh, says):
    got = impossible(workload("8b", 16), mesh)
    assert (got is None) if says is None else says in got


def test_a_model_too_large_is_refused_showing_the_leanest():
    with pytest.raises(ConfigError, match=r"leanest.* needs .* GiB of 76.0 GiB usable"):
        Planner(workload("405b", 8, sequences=8), H100).plan()


def test_shapes_that_suit_no_mesh_are_refused():
    with pytest.raises(ConfigError, match="suits the shapes"):
        Planner(workload("8b", 131, sequences=1), H100).plan()


@pytest.mark.slow
def test_less_memory_never_makes_the_step_faster(small):
    tight = Planner(workload("8b", 16), H100.with_constant("device.memory_gib", 24.0)).plan()
    fastest = min(row.step_s for row in [*small.rejected] if row.step_s) if small.rejected else 1e9
    fastest = min(fastest, small.choices[0].projection.step_s)
    assert min(c.projection.step_s for c in tight.choices) >= 0.9 * fastest
    assert all(c.memory_bytes <= 20 * (1 << 30) for c in tight.choices)


def at(choice, mesh, seconds, sent):
    tp, cp, pp, dp = mesh
    job = replace(choice.job, mesh=replace(choice.job.mesh, tp=tp, cp=cp, pp=pp, dp=dp))
    projection = replace(choice.projection, step_s=seconds, network_bytes=sent)
    return replace(choice, job=job, projection=projection)


def test_ties_prefer_fewer_axes_then_less_traffic(small):
    one = small.choices[0]
    rows = [
        at(one, (4, 2, 2, 2), 1.00, 1e9),  # fastest, but four axes
        at(one, (8, 1, 2, 2), 1.05, 9e9),  # fewer axes, more traffic
        at(one, (8, 1, 4, 1), 1.09, 5e9),  # fewest axes and a tie
        at(one, (16, 1, 2, 1), 1.2, 1e9),  # beyond the tie
    ]
    choices, taken = decide(rows)
    assert taken.mesh == (8, 1, 4, 1)
    assert [(c.mesh, c.tie, c.note[:8]) for c in choices] == [
        ((4, 2, 2, 2), True, "has 4 ax"),
        ((8, 1, 2, 2), True, "has 3 ax"),
        ((8, 1, 4, 1), True, ""),
        ((16, 1, 2, 1), False, ""),
    ]
    choices, taken = decide([at(one, (8, 1, 2, 2), 1.0, 9e9), at(one, (2, 1, 2, 8), 1.05, 5e9)])
    assert taken.mesh == (2, 1, 2, 8)
    assert "sends 9.0 GB" in choices[0].note
    assert decide(rows, "time")[1].mesh == (4, 2, 2, 2)


def test_wide_groups_and_small_batches_are_said(small):
    one = at(small.choices[0], (16, 1, 1, 1), 1.0, 0.0)
    assert warnings(replace(small, taken=one)) == ["tp 16 reaches beyond a node of 8 devices"]
    deep = replace(
        one, job=replace(one.job, mesh=replace(one.job.mesh, tp=1, pp=16), micro_batches=4, virtual=1)
    )
    assert "batch of 64 sequences is small for 16 devices" in warnings(replace(small, taken=deep))[0]
    assert "! tp reaches beyond a node" in table(replace(small, choices=(one,), taken=one))


@pytest.mark.parametrize(
    ("pp", "micro_batches", "k"), [(4, 16, 4), (15, 512, 16), (48, 2048, 50), (4, 3, None), (2, 13, None)]
)
def test_no_round_is_shorter_than_the_pipeline(pp, micro_batches, k):
    assert whole_rounds(pp, micro_batches) == k


@pytest.mark.parametrize("gpus", [12, 15])
@pytest.mark.slow
def test_odd_numbers_of_devices_are_planned(gpus):
    """Rounds shorter than the pipeline once made the search of a warm-up take minutes."""
    told = []
    plan = Planner(workload("8b", gpus), H100).plan(progress=lambda done, of: told.append((done, of)))
    assert plan.taken.tie
    assert told[-1][0] == told[-1][1]


def test_a_clear_winner_is_taken_whatever_it_sends(small):
    one = small.choices[0]
    choices, taken = decide([at(one, (4, 2, 2, 2), 1.0, 9e9), at(one, (8, 1, 2, 2), 1.2, 1e9)])
    assert [c.tie for c in choices] == [True, False]
    assert taken.mesh == (4, 2, 2, 2)


def test_reports(small):
    made = document(small)
    assert made["schema"] == "reftrain.plan/1"
    json.dumps(made)
    first = made["choices"][0]
    assert set(first["mesh"]) == {"tp", "cp", "pp", "dp"}
    assert {"schedule", "tflops_per_gpu", "step_s", "memory_gib", "bubble", "exposed"} <= set(first)
    assert len(made["choices"]) + len(made["rejected"]) == len(list(all_meshes(16)))
    assert made["taken"] == dict(zip(AXES, small.taken.mesh, strict=True))
    assert made["kernels"] == "fused"
    assert f">  {mesh_text(small.taken.mesh)}" in table(small)
    assert "memory of fused kernels" in table(small)
    assert svg(small).count("<circle") == len(small.choices) + 1


def test_the_same_question_has_the_same_answer(small):
    again = document(Planner(workload("8b", 16), H100).plan())
    assert json.dumps(again) == json.dumps(document(small))


@pytest.mark.slow
@pytest.mark.parametrize(("seq_len", "mesh"), [(8192, (8, 1, 16, 128)), (131072, (8, 16, 16, 8))])
def test_llama_3s_meshes_are_chosen_among_all(seq_len, mesh):
    plan = Planner(workload("405b", 16384, seq_len, (1 << 24) // seq_len), H100).plan()
    assert plan.taken.mesh == mesh
    assert len(plan.choices) + len(plan.rejected) == 680

"""Shapes against the published model, and the operations of a layer against counts of work and traffic."""

from dataclasses import replace

import pytest

from reftrain.config.presets import MODEL_PRESETS
from reftrain.config.run import MeshConfig, ModelConfig
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import load_hardware
from reftrain.cost.kernels import matmul, total
from reftrain.cost.shapes import Shapes, StageShape, layer_counts, stage_shapes
from reftrain.model.flops import flops_per_token

H100 = load_hardware("h100")
MODEL = ModelConfig(preset="405b", **MODEL_PRESETS["405b"])


def costs(seq_len=8192, **mesh):
    return CostModel(H100, MODEL, MeshConfig(**mesh), seq_len=seq_len)


@pytest.mark.parametrize(("preset", "billions"), [("8b", 8.03), ("70b", 70.55), ("405b", 405.85)])
def test_parameters_of_the_published_models(preset, billions):
    model = ModelConfig(preset=preset, **MODEL_PRESETS[preset])
    count = Shapes(model, 1).stage_parameters(model.layers, first=True, last=True)
    assert count / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_tensor_ranks_share_the_matrices(tp):
    """Keys and values are copied where tp is more than the heads."""
    copies = max(tp // MODEL.kv_heads, 1)
    keys_values = 2 * MODEL.dim * MODEL.kv_heads * MODEL.head_dim
    assert (
        tp * Shapes(MODEL, tp).layer_matrices == Shapes(MODEL, 1).layer_matrices + (copies - 1) * keys_values
    )


@pytest.mark.parametrize("mesh", [{}, {"tp": 8}, {"tp": 4, "cp": 2}])
def test_work_of_a_step_is_the_published_count(mesh):
    """6 a matrix element and 12·h·S a layer, of which causal attention is half; backward 2.5 instead of 2."""
    job = costs(**mesh)
    shape = StageShape(MODEL.layers, first=True, last=True)
    flops = sum(o.flops for phase in ("forward", "backward") for o in job.stage(shape, phase))
    whole = flops * mesh.get("tp", 1) * mesh.get("cp", 1) / 8192
    attention = 12 * MODEL.layers * MODEL.dim * 8192
    causal = attention / 2 * (1 + 1 / 8192) * 3.5 / 3
    assert whole == pytest.approx(flops_per_token(MODEL, 8192) - attention + causal, rel=1e-4)


def test_traffic_of_a_tensor_parallel_layer():
    """Two gathers and two reduce-scatters of b·s·h forward, the same backward (Korthikanti et al. 2022)."""
    whole = 8192 * MODEL.dim * 2
    for phase in ("forward", "backward"):
        calls = [o for o in costs(tp=8).layer(phase) if o.is_collective]
        assert sorted(o.op for o in calls) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
        assert {(o.axis, o.nbytes) for o in calls} == {("tp", whole)}


def test_traffic_without_sequence_parallelism():
    mesh = {"tp": 8, "sequence_parallel": False}
    for phase in ("forward", "backward"):
        assert [o.op for o in costs(**mesh).layer(phase) if o.is_collective] == ["all_reduce"] * 2


def test_context_parallelism_gathers_keys_and_values_once():
    forward = [o for o in costs(tp=8, cp=4).layer("forward") if o.axis == "cp"]
    backward = [o for o in costs(tp=8, cp=4).layer("backward") if o.axis == "cp"]
    assert [o.op for o in forward + backward] == ["all_gather", "reduce_scatter"]
    assert forward[0].nbytes == 2 * 8192 * 128 * 2  # K and V of one head, whole sequence


@pytest.mark.parametrize(
    "shape", [StageShape(2, first=True, last=False), StageShape(1, first=False, last=True)]
)
def test_a_split_backward_is_a_whole_one(shape):
    job = costs(tp=8)
    parts = job.stage_seconds(shape, "input") + job.stage_seconds(shape, "weight")
    assert parts == pytest.approx(job.stage_seconds(shape, "backward"))
    assert job.stage_seconds(shape, "backward") == pytest.approx(total(job.stage(shape, "backward")))


def test_full_recomputation_adds_a_forward():
    plain, again = costs(tp=8), CostModel(H100, MODEL, MeshConfig(tp=8), seq_len=8192, recompute="full")
    extra = total(again.layer("backward")) - total(plain.layer("backward"))
    assert extra == pytest.approx(total(plain.layer("forward")))


def test_the_ring_of_backward_order_is_reversed():
    names = [o.name for o in costs(tp=8).layer("forward")]
    back = [o.name for o in costs(tp=8).layer("backward")]
    assert names[0] == "attention.qkv"
    assert back[-1] == "attention.qkv.grad"


@pytest.mark.parametrize(
    ("rows", "columns", "waves"), [(256 * 132, 128, 1), (256 * 132 + 1, 128, 2), (256, 128, 1)]
)
def test_a_product_runs_in_whole_waves(rows, columns, waves):
    seconds = matmul(H100, "x", rows, 1024, columns).seconds - H100.host.kernel_us * 1e-6
    tile = 2 * 256 * 128 * 1024 * 132 / (H100.flops_per_s * H100.efficiency.matmul)
    assert seconds == pytest.approx(waves * tile)


def test_without_units_there_are_no_waves():
    device = replace(H100.device, units=0)
    plain = replace(H100, device=device)
    assert matmul(plain, "x", 3, 5, 7).seconds == pytest.approx(
        2 * 3 * 5 * 7 / (H100.flops_per_s * H100.efficiency.matmul) + 3e-6
    )


def test_layers_are_dealt_to_stages_like_the_trainer():
    assert layer_counts(126, 128, balanced=True) == (0, *[1] * 126, 0)
    assert layer_counts(10, 4, balanced=False) == (3, 3, 2, 2)
    shapes = stage_shapes((1, 2))
    assert [(s.first, s.last) for s in shapes] == [(True, False), (False, True)]


def test_messages_and_data_parallel_transfers():
    job = costs(tp=8, pp=16, dp=128)
    assert job.message_bytes == 1024 * MODEL.dim * 2  # sequence-parallel: 8192 / 8 tokens
    assert job.message_seconds == pytest.approx(15e-6 + job.message_bytes / 40e9)
    layer = StageShape(1, first=False, last=False)
    parameters = job.shapes.layer_parameters
    assert job.gather_weights(layer).nbytes == 2 * parameters
    assert (job.reduce_gradients(layer).op, job.reduce_gradients(layer).nbytes) == (
        "reduce_scatter",
        4 * parameters,
    )
    replicated = costs(tp=8, pp=16, dp=128, zero=0)
    assert replicated.reduce_gradients(layer).op == "all_reduce"

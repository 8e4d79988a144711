"""What the ZeRO stages and the pipeline promise besides right numbers: when they communicate and what they keep."""

import pytest

from reftrain.config.file import load
from tests.reftrain import workers

MODEL = {"layers": 2}
GROUPS = 3  # FSDP2 units: two layers, and the stage itself


def collectives(ranks, zero, policy="fp32", micro_batches=3, **mesh):
    config = load(
        None,
        {
            "mesh": {"dp": 2, "zero": zero, **mesh},
            "model": MODEL,
            "data": {"batch_size": 2 * micro_batches},
            "numerics": {"policy": policy},
        },
    )
    results = ranks.run(workers.communication, config.mesh.world_size, config)
    assert all(result == results[0] for result in results)
    return results[0]


def count(seen, operation):
    return sum(n for (name, _), n in seen.items() if operation in name)


@pytest.mark.parametrize(
    ("zero", "gathers", "reductions"),
    [
        (1, GROUPS, GROUPS),  # once a step
        (2, GROUPS, 3 * GROUPS),  # gradients after every run of k = 1 micro-batches
        (3, None, 3 * GROUPS),
    ],
)
def test_zero_stages_communicate_as_they_should(ranks, zero, gathers, reductions):
    seen = collectives(ranks, zero)
    assert count(seen, "reduce_scatter") == reductions
    if gathers is not None:
        assert count(seen, "allgather") == gathers
    else:  # weights come for every forward and every backward that no longer holds them
        assert 3 * GROUPS < count(seen, "allgather") <= 2 * 3 * GROUPS


def test_zero_0_reduces_everything_once(ranks):
    seen = collectives(ranks, 0)
    assert count(seen, "allreduce") >= GROUPS
    assert count(seen, "allreduce") == count(collectives(ranks, 0, micro_batches=1), "allreduce")


def test_gradients_reduce_in_fp32_and_weights_gather_in_bf16(ranks):
    seen = collectives(ranks, 2, "bf16")
    assert {kind for (name, kind) in seen if "reduce_scatter" in name} == {"torch.float32"}
    assert {kind for (name, kind) in seen if "allgather" in name} == {"torch.bfloat16"}
    pure = collectives(ranks, 2, "bf16_pure")
    assert {kind for (name, kind) in pure if "reduce_scatter" in name} == {"torch.bfloat16"}


def test_sent_outputs_are_released(ranks):
    """Of a sent output only its place in the graph is kept; only the last stage's loss is still there."""
    config = load(None, {"mesh": {"pp": 2}, "model": MODEL, "data": {"batch_size": 6}})
    first, last = ranks.run(workers.outputs_in_backward, 2, config)
    assert set(last.values()) == {1}
    assert len(first) == 6
    assert set(first.values()) == {0}

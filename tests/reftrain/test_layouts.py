"""Gradients, loss and norm of every layout equal one process; a 16-rank step repeats in every bit."""

import numpy as np
import pytest
import torch

from reftrain.config.file import load
from reftrain.data.batches import IGNORED, Loader
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.memory_peaks import peak_receive_buffers
from tests.marks import quick_but, quick_first
from tests.reftrain import workers
from tests.reftrain.layouts import FOUR_D, LAYOUTS, TOLERANCE, configuration, measure

SLOW = (
    "tp2",
    "tp4",
    "tp2 bias, qk norm, fused",
    "pp2 tied",
    "dp4 ZeRO-1",
    "dp4 ZeRO-2",
    "tp2 bias, qk norm, fused, no SP",
    "pp2",
    "pp2 GPipe",
    "pp2 1F1B, dp2 ZeRO-3",
    "pp4 interleaved k=5",
    "pp3 v2, k=3 of m=4",
    "cp2",
    "cp4 all-gather",
    "cp2 dp2 ZeRO-0",
    "cp2 dp4 HSDP 2x2 (shards of 4)",
    "dp4 ZeRO-3",
    "accumulation 3",
    "tp3 padded vocabulary, smoothing",
    "pp2 balanced, v2, tied, ZeRO-2",
    "4D ZeRO-1",
    "4D ZeRO-2",
    "4D ZeRO-3",
    "tp4 without SP",
    "cp4 ring",
    "pp4 all forward all backward",
    "tp2 cp2 selective recomputation",
)
"""Layouts whose every part stands in another one as well."""


@pytest.mark.parametrize("name", quick_but(SLOW, LAYOUTS))
@pytest.mark.quick(3)
def test_layout_equals_one_process(ranks, name):
    distance = measure(ranks, name)
    print(f"{name}: worst gradient {distance.worst} {distance.gradient:.1e}, loss {distance.loss:.1e}")
    assert distance.gradient < TOLERANCE
    assert distance.loss < TOLERANCE
    assert distance.norm < TOLERANCE


def test_receive_buffers_are_reused(ranks):
    """The free list makes as many buffers as the schedule's live set needs, not one a message."""
    config = configuration("pp4 interleaved")
    distance = measure(ranks, "pp4 interleaved")
    schedule = lower(make_schedule("flexible", 4, 2, config.micro_batches, config.consecutive), 1)
    needed = max(peak_receive_buffers(schedule, rank) for rank in range(4))
    assert distance.buffers == needed
    assert needed < sum(a.kind.value.startswith("R") and a.kind != "R" for a in schedule.actions[1])


@pytest.mark.parametrize("policy", quick_first(1, ["bf16", "fp32"]))
@pytest.mark.slow
def test_sixteen_ranks_repeat_in_every_bit(ranks, policy):
    config = load(
        None, {"mesh": {**FOUR_D, "zero": 2}, "numerics": {"policy": policy}, "model": {"layers": 2}}
    )
    first, second = (workers.assemble(ranks.run(workers.parameters_after, 16, config, 2)) for _ in range(2))
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name


@pytest.mark.slow
def test_bf16_trains_close_to_fp32(ranks):
    """The default policy computes in BF16: near FP32, and not FP32 under another name."""
    tables = {"mesh": {"tp": 2, "dp": 2}, "model": {"layers": 2}}
    runs = {
        policy: ranks.run(workers.gradients, 4, load(None, {**tables, "numerics": {"policy": policy}}))
        for policy in ("fp32", "bf16", "bf16_pure", "fp64")
    }
    exact = workers.assemble(runs["fp64"])
    errors = {
        policy: max(
            float(np.linalg.norm(got - exact[name]) / np.linalg.norm(exact[name]))
            for name, got in workers.assemble(results).items()
        )
        for policy, results in runs.items()
    }
    assert errors["fp32"] < 1e-5
    assert 1e-4 < errors["bf16"] < 5e-2
    assert 1e-4 < errors["bf16_pure"] < 1e-1


def test_layouts_see_a_mean_of_means():
    """Micro-batches, ranks and chunks have uneven counts, so that dividing by a local count would show."""
    config = configuration("dp3")
    counts = [
        [batch.valid for batch in Loader(config.data, config.model.vocab_size, 3, rank).step(0)]
        for rank in range(3)
    ]
    assert len({sum(of_rank) for of_rank in counts}) == 3
    assert all(len(set(of_rank)) > 1 for of_rank in counts)
    targets = torch.cat([b.targets for b in Loader(config.data, config.model.vocab_size, 1, 0).step(0)])
    halves = (targets != IGNORED).view(12, 4, -1).sum(dim=(0, 2))
    assert len(set(halves.tolist())) > 1, "chunks of the sequence have uneven counts too"

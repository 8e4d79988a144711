"""The replay equals the real run in every bit: a part of the table that `python -m tests.numerics.matched` prints."""

import pytest

from tests.marks import quick_but
from tests.numerics import matched, real_ranks

CASES = [
    ("tp2·cp2, attention by documents", "bf16"),
    ("tp4", "bf16"),
    ("tp2+SP", "fp32"),
    ("dp4 ZeRO-2", "bf16"),
    ("pp4 interleaved k=5 of 6", "bf16_pure"),
    ("cp4 head-tail", "fp32"),
    ("ring cp3", "bf16"),
    ("tp2·cp2·pp2·dp2", "bf16"),
    ("tp2·dp3", "bf16_pure"),
    ("tp4 copied kv heads, bias, qk norm", "fp32"),
    ("tp3 padded vocabulary, smoothing", "bf16_pure"),
    ("dp4 ZeRO-0", "fp32"),
    ("dp3 in buckets", "bf16"),
    ("cp2 dp4 HSDP 2x2", "fp32"),
    ("pp2 balanced, v2, tied, ZeRO-2", "fp32"),
    ("pp2 GPipe", "bf16"),
    ("order dp,cp,tp,pp", "fp32"),
    ("no document mask", "fp32"),
    ("uneven shards dp5", "bf16"),
    ("tp4", "bf16"),
    ("tp3 padded vocabulary, smoothing", "bf16_pure"),
    ("tp2·pp3·dp2 zb_h1", "bf16"),
    ("pp2 dualpipe_v", "fp32"),
    ("pp3·dp2 gems", "fp32"),
    ("tp2·pp4 chimera", "bf16_pure"),
]


SLOW = [
    ("tp2·pp3·dp2 zb_h1", "bf16"),
    ("pp2 dualpipe_v", "fp32"),
    ("pp3·dp2 gems", "fp32"),
    ("tp2·pp4 chimera", "bf16_pure"),
    ("tp2·cp2, attention by documents", "bf16"),
    ("tp2+SP", "fp32"),
    ("cp4 head-tail", "fp32"),
    ("tp2·dp3", "bf16_pure"),
    ("dp4 ZeRO-0", "fp32"),
    ("dp4 ZeRO-2", "bf16"),
    ("cp2 dp4 HSDP 2x2", "fp32"),
    ("dp3 in buckets", "bf16"),
    ("no document mask", "fp32"),
    ("pp2 balanced, v2, tied, ZeRO-2", "fp32"),
    ("pp2 GPipe", "bf16"),
    ("order dp,cp,tp,pp", "fp32"),
    ("uneven shards dp5", "bf16"),
    ("tp4", "bf16"),
    ("tp3 padded vocabulary, smoothing", "bf16_pure"),
]
"""What another case has as well, in another format or on another axis."""


@pytest.mark.parametrize(("name", "policy"), quick_but(SLOW, CASES))
@pytest.mark.quick(1)
def test_three_steps_equal_in_every_bit(ranks, name, policy):
    config = matched.configuration((matched.LAYOUTS | matched.MORE)[name], policy)
    real = ranks.run(real_ranks.trained, config.mesh.world_size, config, matched.STEPS)
    found = matched.match(real, matched.replayed(config))
    assert found.equal == found.compared, str(found)


@pytest.mark.slow
def test_the_order_matters(ranks):
    """Without the run's order of sums hardly anything is equal, so that equality above says something."""
    config = matched.configuration(matched.LAYOUTS["tp2·dp3"], "fp32")
    real = ranks.run(real_ranks.trained, config.mesh.world_size, config, matched.STEPS)
    found = matched.naive_match(real, config)
    assert found.equal < found.compared / 2


@pytest.mark.slow
def test_fp64_is_replayed_too(ranks):
    config = matched.configuration(matched.LAYOUTS["tp2·dp3"], "fp64")
    real = ranks.run(real_ranks.trained, config.mesh.world_size, config, 1)
    found = matched.match(real, matched.replayed(config, 1))
    assert found.equal == found.compared, str(found)

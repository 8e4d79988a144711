"""The ring's order: chunks cover the buffer, and sums equal Gloo's own in every bit."""

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from reftrain.replay.ring import chunk_bounds, ring_sum
from tests.marks import quick_first

SIZES = (1, 2, 7, 64, 1000, 4099, 70_001, 400_000)


def addend(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + size)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def gloo_sums(rank: int, world: int, store: str, name: str) -> list[bytes]:
    """Sums of buffers of all sizes, as Gloo makes them."""
    dtype = getattr(torch, name)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        out = []
        for size in SIZES:
            tensor = addend(rank, size, dtype)
            dist.all_reduce(tensor)
            out.append(tensor.view(torch.uint8).numpy().tobytes())
        return out
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", quick_first(1, [3, 2, 7, 4]))
@pytest.mark.parametrize("name", quick_first(2, ["float32", "bfloat16", "float64"]))
def test_sums_equal_gloo(ranks, world, name):
    dtype = getattr(torch, name)
    for real in ranks.run(gloo_sums, world, name):
        for size, found in zip(SIZES, real, strict=True):
            expected = ring_sum([addend(rank, size, dtype) for rank in range(world)])
            assert found == expected.view(torch.uint8).numpy().tobytes(), (size, world)


def test_the_order_shows_in_the_bits():
    """Another order gives other bits, else the test above could not fail."""
    parts = [addend(rank, 4099, torch.float32) for rank in range(4)]
    assert not torch.equal(ring_sum(parts), ring_sum(parts[::-1]))


@given(st.integers(0, 10_000_000), st.sampled_from([1, 2, 4, 8]), st.integers(2, 64))
def test_chunks_cover_the_buffer_once(elements, size, ranks):
    bounds = chunk_bounds(elements, size, ranks)
    assert len(bounds) == ranks
    assert bounds[0][0] == 0
    assert bounds[-1][1] == elements
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(first <= end for first, end in bounds)


def test_one_rank_sums_nothing():
    tensor = torch.arange(6.0).view(2, 3)
    out = ring_sum([tensor])
    assert torch.equal(out, tensor)
    assert out.data_ptr() != tensor.data_ptr()

"""The fingerprint: additive over any cut of a tensor, and blind to nothing that changes a bit or a place."""

import math
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.errors import CaptureError
from numerics.record.fingerprint import fingerprint
from numerics.record.pieces import pieces
from numerics.record.recorder import Recorder
from numerics.record.small_tensors import fingerprints, small_one
from numerics.schema import Box, format_boxes, format_shape, parse_boxes, parse_shape, whole

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def of(value: torch.Tensor):
    return fingerprint(value, value.shape, whole(value.shape))


@st.composite
def cut_tensors(draw):
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]))
    value = (torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 50).to(
        dtype
    )
    dim = draw(st.integers(0, len(shape) - 1))
    cuts = sorted({0, shape[dim], *draw(st.lists(st.integers(0, shape[dim]), max_size=3))})
    return value, dim, cuts


@given(cut_tensors())
@settings(max_examples=80, deadline=None)
def test_parts_of_any_cut_add_up_to_the_whole(case):
    value, dim, cuts = case
    boxes = []
    for start, end in pairwise(cuts):
        offsets, sizes = [0] * value.dim(), list(value.shape)
        offsets[dim], sizes[dim] = start, end - start
        boxes.append(Box(tuple(offsets), tuple(sizes)))
    parts = [fingerprint(value.narrow(dim, b.offsets[dim], b.sizes[dim]), value.shape, [b]) for b in boxes]
    total = of(value)
    assert sum(p.digest for p in parts) % 2**64 == total.digest
    assert sum(p.digest_nz for p in parts) % 2**64 == total.digest_nz
    assert sum(p.numel for p in parts) == total.numel
    for place in range(8):
        assert sum(p.sketch[place] for p in parts) == pytest.approx(total.sketch[place], rel=1e-9, abs=1e-6)


def test_head_tail_chunks_and_2d_cuts_add_up():
    value = torch.randn(4, 12, 6)
    pieces_of = {0: (0, 9), 1: (3, 6)}  # rank: first rows of its head and tail chunk of three
    total = 0
    for head, tail in pieces_of.values():
        local = torch.cat([value[:, head : head + 3], value[:, tail : tail + 3]], 1)
        boxes = [Box((0, head, 0), (4, 3, 6)), Box((0, tail, 0), (4, 3, 6))]
        total += fingerprint(local, value.shape, boxes).digest
    assert total % 2**64 == of(value).digest
    quarters = [
        fingerprint(value[r : r + 2, :, c : c + 3], value.shape, [Box((r, 0, c), (2, 12, 3))]).digest
        for r in (0, 2)
        for c in (0, 3)
    ]
    assert sum(quarters) % 2**64 == of(value).digest


def test_padding_and_flat_shards_are_mapped():
    value = torch.randn(5, 3)
    padded = torch.cat([value[3:], torch.full((1, 3), math.nan)])
    first = fingerprint(value[:3], value.shape, [Box((0, 0), (3, 3))])
    second = fingerprint(padded, value.shape, [Box((3, 0), (2, 3))])
    assert (first.digest + second.digest) % 2**64 == of(value).digest
    assert second.non_finite == 0
    flat = value.reshape(-1)  # elements 0 to 6 and 7 to 14: ranges of a flat buffer as boxes
    left = fingerprint(flat[:7], value.shape, [Box((0, 0), (2, 3)), Box((2, 0), (1, 1))])
    right = fingerprint(flat[7:], value.shape, [Box((2, 1), (1, 2)), Box((3, 0), (2, 3))])
    assert (left.digest + right.digest) % 2**64 == of(value).digest


@pytest.mark.parametrize("dtype", FLOATS)
def test_sees_swaps_signs_and_single_bits(dtype):
    value = torch.randn(32, 16).to(dtype)
    base = of(value).digest
    swapped = value.clone()
    swapped[[3, 4]] = value[[4, 3]]
    signs = value.clone()
    signs[5:7] = -signs[5:7]
    nudged = value.clone()
    bits = nudged.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[value.element_size()])
    bits[7, 7] += 1
    assert (
        len({base, of(swapped).digest, of(signs).digest, of(nudged).digest, of(value.T.contiguous()).digest})
        == 5
    )


def test_an_even_number_of_sign_flips_is_seen():
    for dtype in FLOATS:
        for count in (2, 4, 8, 64):
            value = torch.randn(64, generator=torch.Generator().manual_seed(count)).to(dtype)
            flipped = value.clone()
            flipped[:count] = -flipped[:count]
            assert of(value).digest != of(flipped).digest


@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zero_is_told_apart(dtype):
    plus, minus = torch.zeros(6, dtype=dtype), torch.zeros(6, dtype=dtype)
    minus[2] = -0.0
    assert of(plus).digest != of(minus).digest
    assert of(plus).digest_nz == of(minus).digest_nz == of(plus).digest


def test_statistics_are_exact_and_skip_non_finite_values():
    found = of(torch.tensor([1.0, -3.0, math.nan, math.inf, 2.0]))
    assert (found.sum, found.sum_squares, found.abs_max) == (0.0, 14.0, 3.0)
    assert (found.min, found.max, found.non_finite, found.numel) == (-3.0, 2.0, 2, 5)
    assert of(torch.full((2,), math.nan)).abs_max is None


def test_lowbits_says_whether_bfloat16_holds_every_value():
    value = torch.randn(100)
    assert not of(value).lowbits
    assert of(value.bfloat16().float()).lowbits
    assert of(value.bfloat16().double()).lowbits
    assert not of(torch.arange(4)).lowbits


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool])
def test_small_tensors_together_are_as_alone(dtype):
    odd = [torch.randn(4, 6) * 9, torch.zeros(4, 6), -torch.zeros(4, 6), torch.full((4, 6), math.inf)]
    values = [
        v.to(dtype)
        for v in [*odd, torch.randn(7), torch.ones(())]
        if dtype.is_floating_point or v.isfinite().all()
    ]
    boxes = [Box((1, *(0 for _ in v.shape)), (1, *v.shape)) for v in values]
    shapes = [(3, *v.shape) for v in values]
    made = [small_one(v[None], s, [b]) for v, s, b in zip(values, shapes, boxes, strict=True)]
    for found, v, s, b in zip(fingerprints(made), values, shapes, boxes, strict=True):
        alone = fingerprint(v[None], s, [b])
        assert (found.digest, found.digest_nz, found.min, found.max) == (
            alone.digest,
            alone.digest_nz,
            alone.min,
            alone.max,
        )
        assert (found.numel, found.lowbits, found.non_finite) == (
            alone.numel,
            alone.lowbits,
            alone.non_finite,
        )
        assert found.sum == pytest.approx(alone.sum)
        assert found.sum_squares == pytest.approx(alone.sum_squares)
        assert found.sketch == pytest.approx(alone.sketch, rel=1e-5, nan_ok=True)


def test_a_small_tensor_is_copied_when_recorded(tmp_path):
    value = torch.ones(3)
    with Recorder(tmp_path, 0, 1) as to:
        to.record("x", value, step=0, phase="forward", kind="input")
        value.zero_()
    assert pq.read_table(tmp_path / "capture" / "rank00000.parquet")["sum"].to_pylist() == [3.0]


def test_sketch_is_linear_and_measures_distance():
    a, b = torch.randn(64, 64, dtype=torch.float64), torch.randn(64, 64, dtype=torch.float64)
    got, one, two = (torch.tensor(of(t).sketch) for t in (2 * a - b, a, b))
    torch.testing.assert_close(got, 2 * one - two, check_dtype=False)
    many = [torch.tensor(of(torch.randn(64, 64)).sketch).square().mean().item() for _ in range(40)]
    assert 0.7 < sum(many) / len(many) / 4096 < 1.4


def test_refuses_what_it_cannot_place():
    with pytest.raises(CaptureError, match="complex"):
        of(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(CaptureError, match="box"):
        pieces(torch.ones(2, 2), [Box((0, 0), (3, 2))])
    with pytest.raises(CaptureError):
        pieces(torch.ones(4, 2), [Box((0, 0), (3, 2)), Box((6, 0), (3, 2))])
    with pytest.raises(CaptureError):
        pieces(torch.ones(5), [Box((0, 0), (3, 2))])


def test_shapes_and_boxes_are_written_and_read_back():
    boxes = (Box((0, 4), (2, 8)), Box((0, 60), (2, 4)))
    assert parse_boxes(format_boxes(boxes)) == boxes
    assert parse_shape(format_shape((2, 64))) == (2, 64)
    assert parse_shape(format_shape(())) == ()
    for text in ("3", "a+b", "1+2,3", "-1+2"):
        with pytest.raises(ValueError, match=r"not a list|invalid"):
            parse_boxes(text)
    with pytest.raises(ValueError, match=r"not a shape|invalid"):
        parse_shape("3x-1")


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bool,
        torch.int8,
    ],
)
def test_rare_formats_have_fingerprints(dtype):
    plain = torch.arange(5000) % 2
    found = of(plain.to(dtype))
    assert (found.min, found.max, found.numel) == (0.0, 1.0, 5000)
    assert found.digest != of(plain.flip(0).to(dtype)).digest

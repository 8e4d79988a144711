"""Tables that recorder and replay both read, against examples worked out by hand: small worlds, uneven sizes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from numerics.schema import Box
from reftrain.config.file import load
from reftrain.layout.capture_rows import joined_mask, message_name
from reftrain.layout.declaration import Declaration, shard_rows
from reftrain.layout.grid import Grid, Seat
from reftrain.layout.placement import Placements
from reftrain.layout.settings import local_settings
from reftrain.record.ring_bounds import ring_bounds
from reftrain.replay.ring import chunk_bounds

HEADS = {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "vocab_size": 260, "pad_vocab": True}

# 10 FP32 on 3 ranks: 40 bytes in 2·3 segments of 7, rounded to 8 bytes; two segments, 4 elements, a rank.
# 2 BF16 on 4 ranks: 4 bytes in 8 segments of 1, rounded to 2; rank 0 has both elements.
# 700 000 FP64 on 3 ranks: 5.6 MB in 6 segments (6 MiB hold it) of 933 334, rounded to 933 336; 233 334 elements.
# 1 000 000 FP64 on 3 ranks: 8 MB need 8 segments of 1 MiB, rounded to 9, of 888 896 bytes; 333 336 elements.
# 5 FP32 on 7 ranks: 20 bytes in 14 segments of 2, rounded to 4; two elements a rank, and none from rank 3 on.
BOUNDS = {
    (10, 4, 3): [(0, 4), (4, 8), (8, 10)],
    (2, 2, 4): [(0, 2), (2, 2), (2, 2), (2, 2)],
    (700_000, 8, 3): [(0, 233_334), (233_334, 466_668), (466_668, 700_000)],
    (1_000_000, 8, 3): [(0, 333_336), (333_336, 666_672), (666_672, 1_000_000)],
    (5, 4, 7): [(0, 2), (2, 4), (4, 5), (5, 5), (5, 5), (5, 5), (5, 5)],
}


@pytest.mark.parametrize("derived", [ring_bounds, chunk_bounds])
@pytest.mark.parametrize("buffer", BOUNDS, ids=str)
def test_ring_chunks_as_gloo_cuts_them(derived, buffer):
    assert derived(*buffer) == BOUNDS[buffer]


@given(st.integers(0, 10_000_000), st.sampled_from([1, 2, 4, 8]), st.integers(2, 64))
def test_recorder_and_replay_derive_the_same_chunks(elements, size, ranks):
    assert ring_bounds(elements, size, ranks) == chunk_bounds(elements, size, ranks)


@pytest.fixture(scope="module")
def three_by_three():
    """tp 3 and dp 3; 260 tokens padded to 3·87, two sequences of 48 tokens for each data-parallel rank."""
    data = {"seq_len": 48, "batch_size": 6, "micro_batch_size": 1}
    return Placements(load(None, {"model": HEADS, "mesh": {"tp": 3, "dp": 3}, "data": data}))


@pytest.mark.parametrize(
    ("name", "seat", "offsets", "sizes", "replica"),
    [
        ("tok_embeddings.weight", Seat(0, 0, 0, 1), (87, 0), (29, 48), 0),
        ("tok_embeddings.weight", Seat(2, 0, 0, 2), (232, 0), (28, 48), 0),  # the padded row is left out
        ("layers.0.attention_norm.weight", Seat(1, 0, 0, 2), (16,), (16,), 2),  # all tensor ranks hold it
        ("layers.0.attention.wo.weight", Seat(1, 0, 0, 2), (16, 32), (16, 16), 0),
        ("layers.0.attention.qkv.wk.weight", Seat(2, 0, 0, 1), (14, 0), (2, 48), 0),  # 8 rows as 3, 3 and 2
        (
            "layers.0.feed_forward.w1.weight",
            Seat(0, 0, 0, 2),
            (64, 0),
            (11, 48),
            0,
        ),  # 32 rows as 11, 11 and 10
    ],
)
def test_shards_of_parameters(three_by_three, name, seat, offsets, sizes, replica):
    found = three_by_three.parameter(name, seat)
    assert found.boxes == (Box(offsets, sizes),)
    assert found.replica == replica


@pytest.mark.parametrize(
    ("name", "offsets", "sizes", "partial"),
    [
        ("layers.0.attention.out", (3, 32, 0), (1, 16, 48), None),  # a third of the tokens
        ("layers.0.attention.wo.out", (3, 0, 0), (1, 48, 48), "tp=2"),  # an addend of all tokens
        ("layers.0.feed_forward.w1.out", (3, 0, 64), (1, 48, 32), None),
        ("layers.0.attention.qkv.queries", (3, 4, 0, 0), (1, 2, 48, 8), None),  # heads 4 and 5
        ("output.logits", (3, 0, 174), (1, 48, 86), None),
    ],
)
def test_places_of_activations(three_by_three, name, offsets, sizes, partial):
    """Micro-batch 1 of data-parallel rank 1 is sequence 3 of the step; on tensor rank 2."""
    found = three_by_three.activation(name, Seat(1, 0, 0, 2), 1)
    assert found.boxes == (Box(offsets, sizes),)
    assert found.partial == partial
    assert found.shape[0] == 6


def test_context_ranks_hold_an_early_and_a_late_chunk():
    """36 tokens in six chunks of 6: context rank 1 of 3 holds chunks 1 and 4, tensor rank 1 of 3 their middle."""
    data = {"seq_len": 36, "batch_size": 1, "micro_batch_size": 1}
    places = Placements(load(None, {"model": HEADS, "mesh": {"tp": 3, "cp": 3}, "data": data}))
    seat = Seat(0, 0, 1, 1)
    assert places.given("tokens", seat, 0).boxes == (Box((0, 6), (1, 6)), Box((0, 24), (1, 6)))
    found = places.activation("layers.0.attention.out", seat, 0).boxes
    assert found == (Box((0, 10, 0), (1, 2, 48)), Box((0, 24, 0), (1, 2, 48)))


def test_key_heads_fewer_than_tensor_ranks_are_copied():
    """2 key heads on tp 4: tensor ranks 2 and 3 hold head 1, rank 3 the second copy."""
    model = {"heads": 8, "kv_heads": 2, "dim": 64}
    places = Placements(load(None, {"model": model, "mesh": {"tp": 4}}))
    name, seat = "layers.0.attention.qkv.wk.weight", Seat(0, 0, 0, 3)
    found = places.parameter(name, seat)
    assert (found.boxes, found.replica) == ((Box((8, 0), (8, 64)),), 1)
    assert places.local_gradient(name, seat).partial == "tp=3"


def test_hybrid_sharding_repeats_shards():
    """Data-parallel ranks 2 and 3 are the second replica, and cut 64 features in two."""
    config = load(None, {"mesh": {"dp": 4, "dp_shard": 2, "zero": 2}, "data": {"batch_size": 4}})
    groups = Grid(config.mesh).shard_groups(0, 0)
    assert [[seat.dp for seat in group] for group in groups] == [[0, 1], [2, 3]]
    found = Placements(config).parameter("layers.0.attention_norm.weight", Seat(3, 0, 0, 0))
    assert (found.boxes, found.replica) == ((Box((32,), (32,)),), 1)


@pytest.mark.parametrize(
    ("layers", "balanced", "expected"),
    [(5, False, [range(2), range(2, 4), range(4, 5)]), (6, True, [range(2), range(2, 5), range(5, 6)])],
)
def test_layers_on_three_stages(layers, balanced, expected):
    tables = {"model": {"layers": layers}, "mesh": {"pp": 3}, "pipeline": {"balanced": balanced}}
    assert Declaration(load(None, tables)).stages() == expected


def test_rows_of_uneven_shards():
    assert [shard_rows(10, 4, index) for index in range(4)] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert [shard_rows(2, 4, index) for index in range(4)] == [(0, 1), (1, 1), (2, 0), (2, 0)]


def test_ranks_are_numbered_from_the_inner_axis():
    mesh = {"tp": 3, "dp": 2, "order": ["dp", "tp", "cp", "pp"]}
    config = load(None, {"model": HEADS, "mesh": mesh, "data": {"seq_len": 48}})
    grid = Grid(config.mesh)
    assert grid.rank(Seat(dp=1, pp=0, cp=0, tp=2)) == 5
    assert [(seat.dp, seat.tp) for seat in grid.seats()] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("label", "tensor"),
    [
        ("SA0.3", "stages.1.in"),
        ("RA1.3", "stages.1.in"),
        ("SG1.2", "stages.0.out.grad"),
        ("RG0.2", "stages.0.out.grad"),
    ],
)
def test_both_ends_of_a_message_name_one_tensor(label, tensor):
    assert message_name(label) == tensor


def test_masks_of_a_ring_join_in_token_order():
    """4 tokens on cp 2: rank 0 holds tokens 0 and 3, rank 1 tokens 1 and 2; queries of rank 0, causal."""
    of_rank_0 = [[True, False], [True, True]]  # keys 0 and 3
    of_rank_1 = [[False, False], [True, True]]  # keys 1 and 2
    by_source = torch.tensor([of_rank_0, of_rank_1]).view(2, 1, 1, 1, 2, 2)
    assert joined_mask(by_source).tolist() == [[[[True, False, False, False], [True, True, True, True]]]]


def test_settings_of_a_rank():
    model, mesh = {**HEADS, "dim": 48}, {"tp": 3, "cp": 2}
    found = local_settings(load(None, {"model": model, "mesh": mesh, "data": {"seq_len": 48}}))
    assert (found["tp"], found["cp"], found["sequence_parallel"]) == ("3", "2", "True")
    assert (found["cp_method"], found["backward"]) == ("all_gather", "whole")

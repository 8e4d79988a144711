"""Relations between tensors, places of differences, distances: literal in, literal out."""

import math

import numpy as np
import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.blind_spots import blind_spots
from numerics.comparison.explanations.missing_addends import grouped, partial_words
from numerics.comparison.joins.dataflow import _sorted, layer_of
from numerics.comparison.joins.linear_relations import addends, factor, named_factor, named_logarithm
from numerics.comparison.joins.value_distance import ordered, value_distance
from numerics.keys import join, keys_of, occurrence
from numerics.local.array_differences import few_places, moved, places_in_words
from numerics.store import open_capture
from tests.numerics.synthetic import Plan, write

SIZES = {"tp": 2, "cp": 3, "pp": 1, "dp": 4, "micro-batches": 6}
rng = np.random.default_rng(3)


def test_factor_and_its_residual():
    b = rng.normal(size=100)
    exact = factor(3 * b, b)
    assert (exact.value, exact.residual) == (pytest.approx(3), pytest.approx(0, abs=1e-12))
    assert factor(rng.normal(size=100), b).residual > 0.5
    assert factor(b, np.zeros(100)) is None
    assert factor(np.full(3, math.nan), np.ones(3)) is None


@pytest.mark.parametrize(
    ("value", "words", "axis"),
    [
        (3.0, "3, the size of cp", "cp"),
        (0.25, "1/4, the size of dp", "dp"),
        (math.sqrt(2), "sqrt(2), the size of tp", "tp"),
        (8.0, "8, the size of tp and dp", "tp and dp"),
        (-1.0, "-1: its sign is turned", None),
        (1.37, None, None),
    ],
)
def test_factors_are_named_by_what_they_equal(value, words, axis):
    found = named_factor(value, SIZES, 1e-6)
    assert found == (None if words is None else (words, [axis] if axis else []))


def test_of_several_sizes_the_likely_one_wins():
    sizes = {"tp": 2, "dp": 2}
    assert named_factor(2.0, sizes, 1e-6) == ("2, the size of tp or dp", ["tp", "dp"])
    assert named_factor(2.0, sizes, 1e-6, "dp") == ("2, the size of dp", ["dp"])
    assert named_logarithm(-math.log(2), sizes, 1e-3, "tp") == ("- log 2, the size of tp", "tp")
    assert named_logarithm(0.5, sizes, 1e-3) is None


def test_addends_are_found_and_the_fewest_win():
    parts = [rng.normal(size=50) for _ in range(4)]
    assert addends(-parts[2], parts, 1e-6) == pytest.approx((0, 0, -1, 0))
    assert addends(parts[0] - parts[3], parts, 1e-6) == pytest.approx((1, 0, 0, -1))
    assert addends(-(parts[0] + parts[1] + parts[3]), parts, 1e-6) == pytest.approx((-1, -1, 0, -1), abs=1e-9)
    assert addends(rng.normal(size=50), parts, 1e-3) is None
    assert addends(np.zeros(50), parts, 1e-3) is None
    assert addends(rng.normal(size=3), parts[:0], 1e-3) is None


def test_names_of_addends_in_words():
    assert partial_words("dp=1,micro-batch=2") == "dp rank 1, micro-batch 2"
    names = [f"dp={d},micro-batch={m}" for d in range(2) for m in range(3)]
    assert grouped(names[3:], names) == "dp rank 1"
    assert grouped([names[0], names[3]], names) == "micro-batch 0"
    assert grouped([names[1]], names) == "dp rank 0, micro-batch 1"


def test_moves_are_told():
    b = rng.normal(size=(6, 4)).astype(np.float32)
    assert moved(b[[1, 0, 2, 3, 4, 5]], b) == "rows 0 and 1 along dimension 0 are swapped"
    assert moved(b[[3, 4, 5, 0, 1, 2]], b) == "its 2 blocks along dimension 0 are in the order 1, 0"
    assert moved(np.roll(b, 1, 0), b) == "shifted by -1 along dimension 0"
    assert moved(b[:, [1, 0, 2, 3]], b) == "rows 0 and 1 along dimension 1 are swapped"
    assert moved(b[[0, 0, 2, 3, 4, 5]], b) == "1 rows along dimension 0 hold copies of other rows"
    assert moved(b[[5, 3, 1, 0, 2, 4]], b) == "the rows along dimension 0 are permuted"
    assert moved(b + 1, b) is None
    assert moved(b[:3], b) is None


def test_few_places_are_told():
    b = np.arange(40.0).reshape(4, 10)
    a = b.copy()
    a[:, 9] += 1
    assert few_places(a, b) == (1, [9])
    assert places_in_words([9], 10, 1) == "only at index 9 (the last) of 10 along dimension 1"
    assert places_in_words([2, 3], 10, 1) == "only at indices 2 to 3 of 10 along dimension 1"
    assert places_in_words([1, 4, 7], 10, 0) == "only at every 3th index along dimension 0, from 1"
    assert places_in_words([1, 4, 8], 10, 0) == "only at 3 of 10 indices along dimension 0, from 1 to 8"
    assert few_places(b + 1, b) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps_count_numbers_between(dtype):
    a = np.array([1.0, -1.0, 0.0, 2.5], dtype)
    assert value_distance(np.nextafter(a, dtype(10)), a).max_ulp == 1
    assert ordered(np.array([-0.0, 0.0], dtype)).tolist() == [0, 0]
    found = value_distance(2 * a, a)
    assert (found.ratio, found.rel, found.cosine) == (2.0, 1.0, pytest.approx(1.0))


def test_ulps_of_bfloat16_and_what_has_none():
    a = torch.randn(64).bfloat16()
    up = (a.view(torch.int16) + 1).view(torch.bfloat16)
    assert value_distance(up.float().numpy(), a.float().numpy(), bfloat16=True).max_ulp == 1
    assert value_distance(np.array([1, 2]), np.array([1, 3])).max_ulp is None
    assert value_distance(np.zeros(2), np.zeros(2)).rel is None


def test_keys_join_and_count():
    left = keys_of(np.array([1, 2, 3]), np.array([0, 0, 1]))
    right = keys_of(np.array([3, 1]), np.array([1, 0]))
    assert join(left, right).tolist() == [1, -1, 0]
    assert join(left, right[:0]).tolist() == [-1, -1, -1]
    assert occurrence(np.array([5, 7, 5, 5], np.uint64), np.array([3, 0, 1, 2])).tolist() == [2, 0, 0, 1]


def test_order_of_layers_and_of_ranks_that_disagree():
    assert layer_of("layers.12.attention") == 12
    assert layer_of("3.mlp") == 3
    assert layer_of("norm") == -1
    chain = [{1}, {2}, set()]
    assert _sorted(chain, [0, 1, 1], [(0, 0, 0)] * 3) == [0, 1, 2]
    cycle = [{1}, {0}, set()]  # ranks disagree on 0 and 1: the one met first goes first
    assert _sorted(cycle, [1, 1, 0], [(-9, 5, 0), (0, 3, 0), (1, 9, 0)]) == [2, 1, 0]


def test_blind_spots_follow_the_run(tmp_path):
    small = read_columns(open_capture(write(tmp_path / "a", Plan(tp=2, steps=1, micro_batches=1))), Names())
    text = "; ".join(blind_spots(small))
    for words in ("order effects on tp: world size 2", "dp is 1", "one step", "one micro-batch"):
        assert words in text
    large = read_columns(open_capture(write(tmp_path / "b", Plan(dp=4, steps=2))), Names())
    text = "; ".join(blind_spots(large))
    assert "dp" not in text.replace("dp rank", "")
    assert "one step" not in text


def test_blind_spots_read_the_manifest(tmp_path):
    import json

    run = write(tmp_path / "a", Plan(tp=4, config=None))
    manifest = {
        "schema": "reftrain.run/1",
        "model": {"bias": False, "vocab_size": 260, "kv_heads": 4, "dim": 64, "tied_embeddings": True},
        "data": {"padding": 0},
        "numerics": {"recompute": "none", "policy": "bf16"},
        "faults": [{"kind": "P02"}],
    }
    (run / "run.json").write_text(json.dumps(manifest))
    capture = open_capture(run)
    assert "faults" not in capture.config  # the truth is for nobody who judges
    text = "; ".join(blind_spots(read_columns(capture, Names())))
    for words in (
        "no padding",
        "260 tokens divide evenly over tp 4",
        "biases",
        "nothing is recomputed",
        "no copies",
    ):
        assert words in text
    assert "tied" not in text

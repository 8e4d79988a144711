"""Sums between replicas: announced to the hooks, and for ZeRO-0 in buckets like DistributedDataParallel's."""

from collections import Counter

import numpy as np
import pytest

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.execute.replicated import buckets
from tests.reftrain import workers

MODEL = {"layers": 2}


def config(mesh, **tables):
    return load(None, {"mesh": mesh, "model": MODEL, "data": {"batch_size": 8}, **tables})


@pytest.mark.parametrize(
    ("sizes", "most", "cuts"),
    [
        ([], 4, []),
        ([1, 1, 1], 4, [(0, 3)]),
        ([3, 1, 1], 4, [(0, 2), (2, 3)]),
        ([9, 1], 4, [(0, 1), (1, 2)]),
        ([1, 9, 1], 4, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_buckets_are_filled_in_order(sizes, most, cuts):
    assert [(run.start, run.stop) for run in buckets(sizes, most)] == cuts


def announced(ranks, made):
    notes = ranks.run(workers.diary, made.mesh.world_size, made)
    return [
        Counter((n[1], n[2], n[3]) for n in of_rank if n[0] == "collective_begin" and n[2] == "all_reduce")
        for of_rank in notes
    ]


UNITS = {"layers.0.grad", "layers.1.grad", "stage.grad"}


@pytest.mark.parametrize(
    ("mesh", "axis"),
    [
        ({"dp": 2, "zero": 0}, "dp_cp"),
        ({"dp": 2, "cp": 2, "zero": 0}, "dp_cp"),
        ({"dp": 4, "dp_shard": 2}, "dp"),
    ],
)
def test_sums_between_replicas_are_announced_unit_by_unit(ranks, mesh, axis):
    for seen in announced(ranks, config(mesh)):
        assert {label for where, _, label in seen if where == axis and label in UNITS} == UNITS
        assert all(seen[axis, "all_reduce", unit] == 1 for unit in UNITS), "once a step"


def test_without_replicas_nothing_is_announced(ranks):
    for seen in announced(ranks, config({"dp": 2, "zero": 1})):
        assert not any(label in UNITS for _, _, label in seen)


def test_buckets_hold_what_the_limit_allows(ranks):
    kib = 24
    for seen in announced(ranks, config({"dp": 2, "zero": 0, "bucket_mb": kib / 1024})):
        labels = [label for _, _, label in seen if label.startswith("bucket")]
        assert not any(label in UNITS for _, _, label in seen)
        whole = 2 * (64 * 8 * 16 + 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 260 * 64 + 64  # elements, FP32
        assert len(labels) >= 4 * whole / (kib * 1024) / 2
        assert labels == [f"bucket{number}.grad" for number in range(len(labels))]
    for seen in announced(ranks, config({"dp": 2, "zero": 0, "bucket_mb": 25.0})):
        assert [label for _, _, label in seen if "bucket" in label] == ["bucket0.grad"]


@pytest.mark.parametrize("mesh", [{"dp": 3}, {"dp": 2, "cp": 2, "pp": 2}])
@pytest.mark.quick(1)
def test_gradients_in_buckets_are_those_of_one_rank(ranks, mesh):
    tables = {"model": MODEL, "data": {"batch_size": 12}, "numerics": {"policy": "fp64"}}
    made = load(None, {**tables, "mesh": {**mesh, "zero": 0, "bucket_mb": 0.01}})
    got = workers.assemble(ranks.run(workers.gradients, made.mesh.world_size, made))
    alone = workers.assemble(ranks.run(workers.gradients, 1, load(None, tables)))
    for name, values in alone.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-9, err_msg=name)


def test_buckets_need_replicas():
    with pytest.raises(ConfigError, match=r"mesh\.bucket_mb: zero = 1 reduces layer by layer"):
        config({"dp": 2, "bucket_mb": 25.0})

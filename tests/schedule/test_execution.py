"""Every scheme run by real processes equals one process; torch's runtime agrees with every table it can express."""

import numpy as np
import pytest

from reftrain.errors import ConfigError, ScheduleError
from reftrain.schedule.csv_form import to_csv, torch_cannot
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES
from tests.marks import quick_first, quick_if
from tests.reftrain import plain
from tests.reftrain.workers import assemble
from tests.schedule import workers
from tests.schedule.execution import (
    ASYNCHRONOUS,
    TOLERANCE,
    VARIANTS,
    Distance,
    compare_gradients,
    configuration,
    measure,
)

REFUSED = {
    ("interleaved", 2): {1, 5},
    ("interleaved", 4): {1, 9},
    ("chimera 4 pipelines", 2): {1, 2, 5},
    ("dualpipe_v", 2): {1, 2},
    ("dualpipe_v", 4): {1, 4},
    ("pipedream_2bw", 2): {1},
    ("pipedream_2bw", 4): {1},
}


SYNCHRONOUS = [(variant, p) for variant in VARIANTS if variant not in ASYNCHRONOUS for p in (2, 4)]
QUICK = [
    ("chimera 4 pipelines", 4),
    *((variant, 2) for variant in ("interleaved", "gems", "zb_h1", "dualpipe_v")),
]
"""A scheme of each kind: alone, of two directions, of four pipelines, with split backwards, folded."""
OTHER_AXES = [
    {"mesh": {"dp": 2, "zero": 2}, "data": {"batch_size": 6}},
    {"mesh": {"dp": 2, "zero": 3}, "data": {"batch_size": 6}},
    {"mesh": {"dp": 2, "zero": 0}, "data": {"batch_size": 6}},
    {"mesh": {"tp": 2}},
    {"model": {"tied_embeddings": True}},
    {"numerics": {"recompute": "full"}},
    {"pipeline": {"replica_sync": "lazy"}},
]


def test_every_scheme_is_executed():
    assert {variant.split(" ")[0] for variant in VARIANTS} == set(SCHEMES)


@pytest.mark.parametrize(
    ("variant", "p"),
    quick_if(QUICK.__contains__, SYNCHRONOUS),
)
@pytest.mark.quick(2)
def test_synchronous_schemes_equal_one_process(ranks, variant, p):
    found = measure(ranks, variant, p, [1, p, 2 * p + 1])
    assert {m for m, d in found.items() if isinstance(d, ScheduleError)} == REFUSED.get((variant, p), set())
    for m, distance in found.items():
        if isinstance(distance, Distance):
            assert distance.error < TOLERANCE, (m, distance)
            assert max(distance.loss, distance.norm) < TOLERANCE, (m, distance)


@pytest.mark.parametrize("p", quick_first(1, [2, 4]))
@pytest.mark.parametrize("variant", ASYNCHRONOUS)
@pytest.mark.quick(1)
def test_asynchronous_schemes_equal_the_emulation_with_stale_weights(ranks, variant, p):
    """Four steps give the same parameters within 1e-5; the newest weights would give others by 1e-3 and more."""
    found = measure(ranks, variant, p, [1, p, 2 * p + 1])
    assert {m for m, d in found.items() if isinstance(d, ScheduleError)} == REFUSED.get((variant, p), set())
    ran = [d for d in found.values() if isinstance(d, Distance)]
    assert len(ran) >= 2
    for distance in ran:
        assert distance.error < TOLERANCE, distance
        assert distance.fresh > 1e-3, distance


@pytest.mark.parametrize(
    ("variant", "tables"),
    quick_if(
        lambda case: (
            case[0] == "chimera direct"
            or case[1] in ({"mesh": {"tp": 2}}, {"numerics": {"recompute": "full"}})
        ),
        [(variant, tables) for variant in ("chimera direct", "zb_h1") for tables in OTHER_AXES],
    ),
)
@pytest.mark.slow
def test_with_the_other_axes(ranks, variant, tables):
    if variant == "zb_h1" and "numerics" in tables:
        with pytest.raises(ConfigError, match="zb_h1 splits backwards"):
            configuration(variant, 2, 3, **tables)
        return
    config = configuration(variant, 2, 3, **tables)
    results = [r[0] for r in ranks.run(workers.gradients, config.mesh.world_size, [config])]
    if config.model.tied_embeddings:
        shapes = {n: s for r in results for n, s in r.shapes.items()}
        expected = plain.loss_and_gradients(config, shapes)[2]
        got = assemble(results)
        assert all(np.linalg.norm(got[n] - g) < TOLERANCE * np.linalg.norm(g) for n, g in expected.items())
    else:
        assert compare_gradients(config, results).error < TOLERANCE


@pytest.mark.parametrize(
    "variant", quick_first(3, ["1f1b", "flexible", "zb_h1", "gpipe", "interleaved", "breadth_first", "afab"])
)
@pytest.mark.quick(1)
def test_torchs_runtime_agrees(ranks, tmp_path, variant):
    """torch runs our tables from their CSV with our stages: the same gradients as by our own executor."""
    p, configs = 2, [configuration(variant, 2, m) for m in (2, 4)]
    for i, config in enumerate(configs):
        table = make_schedule(
            config.pipeline.schedule, p, config.pipeline.virtual_stages, config.micro_batches, p
        )
        assert torch_cannot(lower(table, 1)) is None
        (tmp_path / f"{i}.csv").write_text(to_csv(table))
    theirs = ranks.run(workers.torch_runtime, p, configs, str(tmp_path))
    ours = ranks.run(workers.gradients, p, configs)
    for i in range(len(configs)):
        by_torch, by_us = assemble([r[i] for r in theirs]), assemble([r[i] for r in ours])
        assert set(by_torch) == set(by_us)
        for name, values in by_us.items():
            assert np.linalg.norm(by_torch[name] - values) <= 1e-6 * np.linalg.norm(values), name


@pytest.mark.parametrize(
    ("table", "values", "words"),
    [
        ("optimizer", {"clip_norm": 1.0}, "optimizer.clip_norm: stages of pipedream"),
        ("model", {"tied_embeddings": True}, "model.tied_embeddings: stages of pipedream"),
        ("checkpoint", {"every": 1}, "checkpoint.every: stages of pipedream"),
    ],
)
def test_what_needs_a_flush_is_refused(table, values, words):
    with pytest.raises(ConfigError) as refused:
        configuration("pipedream", 2, 2, **{table: values})
    assert words in str(refused.value)

"""Trainer against inference: captures of an engine beside whole forwards, healthy and wrong, by the local proof."""

import dataclasses
from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from reftrain.infer.capture import FORWARDS, plain_model
from reftrain.infer.engine import Workload
from reftrain.infer.serve import prepared
from tests.infer import workers
from tests.infer.test_engine import configuration

WORK = Workload(requests=3, prompt=8, generate=4, slots=3)


def captured(ranks, folder, work=WORK, **tables):
    """Capture an engine's forwards with values into a folder; with `forced`, on these answers."""
    config = configuration(None, run={"out": str(folder)}, **tables)
    ranks.run(workers.served, 1, prepared(config, work, traced=False), work, "tensors")
    return folder / FORWARDS


@pytest.fixture(scope="module")
def answers(ranks):
    """Finished requests, as the plain engine answers them in FP32."""
    found = ranks.run(workers.answers, 1, configuration(), WORK)[0]
    return tuple(tuple(found[number][0]) for number in sorted(found))


@pytest.fixture(scope="module")
def trained(ranks, answers, tmp_path_factory):
    """One forward of the whole sequences, as the trainer computes them."""
    work = dataclasses.replace(WORK, forced=answers, whole=True)
    return captured(ranks, tmp_path_factory.mktemp("trained") / "run", work)


def judged(run, baseline):
    model = plain_model(configuration())
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=None)))


HEALTHY = {
    "a cache, one request at a time": (dataclasses.replace(WORK, slots=1), {}),
    "a cache, three at once": (WORK, {}),
    "another attention kernel": (WORK, {"numerics": {"attention": "math"}}),
    "BF16": (WORK, {"numerics": {"policy": "bf16"}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_engine_is_no_bug(ranks, tmp_path, answers, trained, name):
    work, tables = HEALTHY[name]
    run = captured(ranks, tmp_path / "run", dataclasses.replace(work, forced=answers), **tables)
    found = judged(run, trained)
    assert found.verdict in {"identical", "drift", "rounding"}, found.reason


WRONG = {
    "position": "layers.0.attention.qkv",
    "stale": "layers.0.attention",
    "scale": "layers.0.attention",
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_engine_is_named(ranks, tmp_path, answers, trained, wrong):
    work = dataclasses.replace(WORK, wrong=wrong, forced=answers)
    found = judged(captured(ranks, tmp_path / "run", work), trained)
    assert found.verdict == "bug", found.reason
    assert found.first_divergence.tensor.startswith(WRONG[wrong]), found.first_divergence

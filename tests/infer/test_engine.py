"""Prefill and decode with a cache give the training forward's logits and the same greedy tokens, on any layout."""

import numpy as np
import pytest

from reftrain.config.file import load
from reftrain.infer.engine import Workload
from tests.infer import workers
from tests.marks import quick_first

BASE = {
    "model": {
        "layers": 2,
        "dim": 48,
        "heads": 12,
        "kv_heads": 4,
        "ffn_dim": 96,
        "vocab_size": 261,
        "pad_vocab": True,
    },
    "numerics": {"policy": "fp32"},
    "data": {"batch_size": 12},
}
WORK = Workload(requests=6, prompt=12, generate=4, slots=3)
LAYOUTS = {
    "one rank": {},
    "tp2": {"tp": 2},
    "tp4 with two replicas": {"tp": 4, "dp": 2},
    "three replicas": {"dp": 3},
    "2-D, data 2, model 2": {"tp": 2, "dp": 2, "zero": 3, "sharding": "spmd_2d"},
}


def configuration(mesh=None, **tables):
    merged = {table: {**values} for table, values in BASE.items()}
    for table, values in {"mesh": mesh or {}, **tables}.items():
        merged.setdefault(table, {}).update(values)
    return load(None, merged)


def answered(ranks, config, work):
    """Tokens and logits of every request; tensor ranks of a replica agree in their bits."""
    found = {}
    for of_rank in ranks.run(workers.answers, config.mesh.world_size, config, work):
        for number, (tokens, logits) in of_rank.items():
            if number in found:
                assert found[number][0] == tokens
                assert np.array_equal(found[number][1], logits)
            found[number] = tokens, logits
    return found


@pytest.mark.parametrize("name", quick_first(1, LAYOUTS))
@pytest.mark.quick(1)
def test_greedy_tokens_are_those_of_whole_forwards(ranks, name):
    work = WORK if name != "three replicas" else Workload(requests=6, prompt=12, generate=4, slots=2)
    got = answered(ranks, configuration(LAYOUTS[name]), work)
    (trained,) = ranks.run(
        workers.training_logits, 1, configuration(), [t for t, _ in (got[n] for n in sorted(got))]
    )
    for number in sorted(got):
        tokens, logits = got[number]
        expected = trained[number, : len(logits), :261]
        assert len(tokens) == work.length
        assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
        start = len(tokens) - (len(tokens) - _prompt(work, configuration(LAYOUTS[name]), number))
        assert tokens[start:] == expected[start - 1 : len(tokens) - 1].argmax(-1).tolist()


def _prompt(work, config, number):
    return work.prompt_tokens(number // config.mesh.dp)


def test_steps_prefill_when_a_slot_is_free():
    steps = Workload(requests=3, prompt=6, generate=2, slots=2).steps(1)
    assert steps[:3] == [("prefill", [0]), ("prefill", [1]), ("decode", [0, 1])]
    assert [kind for kind, turns in steps if 2 in turns].count("prefill") == 1
    taken = {turn: sum(turn in turns for _, turns in steps) for turn in range(3)}
    assert taken == {0: 2, 1: 5, 2: 7}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["position", "stale", "scale"])
def test_a_wrong_engine_has_other_logits(ranks, wrong):
    right = answered(ranks, configuration(), WORK)
    other = answered(
        ranks, configuration(), Workload(requests=6, prompt=12, generate=4, slots=3, wrong=wrong)
    )
    prompt = _prompt(WORK, configuration(), 0)
    assert not np.allclose(right[0][1][prompt], other[0][1][prompt], rtol=1e-4)

"""Every layout that must equal one process, and how far it is from it: `python -m tests.reftrain.layouts`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reftrain.config.file import load
from reftrain.config.run import RunConfig
from tests.ranks.pool import RankPool
from tests.reftrain import plain, workers

TOLERANCE = 1e-5
BASE = {"numerics": {"policy": "fp32"}, "data": {"batch_size": 12, "seq_len": 48}, "model": {"layers": 2}}
FOUR_D = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
DEEP = {"layers": 8, "dim": 32, "ffn_dim": 64}
PAIRS = {"micro_batch_size": 2}
EXTRAS = {"bias": True, "qk_norm": True, "fused_qkv": True}

LAYOUTS: dict[str, dict[str, dict[str, object]]] = {
    "one process": {},
    "accumulation 3": {"data": {"micro_batch_size": 4}},
    "tp2": {"mesh": {"tp": 2}, "data": PAIRS},
    "tp2 without SP": {"mesh": {"tp": 2, "sequence_parallel": False}},
    "tp4": {"mesh": {"tp": 4}, "data": PAIRS},
    "tp4 without SP": {"mesh": {"tp": 4, "sequence_parallel": False}},
    "tp4 copied kv heads": {"mesh": {"tp": 4}, "model": {"kv_heads": 2}},
    "tp2 bias, qk norm, fused": {"mesh": {"tp": 2}, "model": EXTRAS},
    "tp2 bias, qk norm, fused, no SP": {"mesh": {"tp": 2, "sequence_parallel": False}, "model": EXTRAS},
    "tp3 padded vocabulary, smoothing": {
        "mesh": {"tp": 3},
        "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
        "numerics": {"label_smoothing": 0.1},
    },
    "dp3": {"mesh": {"dp": 3}},
    "dp4 ZeRO-0": {"mesh": {"dp": 4, "zero": 0}},
    "dp4 ZeRO-1": {"mesh": {"dp": 4, "zero": 1}},
    "dp4 ZeRO-2": {"mesh": {"dp": 4, "zero": 2}},
    "dp4 ZeRO-3": {"mesh": {"dp": 4, "zero": 3}},
    "dp4 HSDP 2x2": {"mesh": {"dp": 4, "zero": 3, "dp_shard": 2}},
    "pp2": {"mesh": {"pp": 2}},
    "pp2 1F1B, dp2 ZeRO-3": {"mesh": {"pp": 2, "dp": 2, "zero": 3}, "pipeline": {"schedule": "1f1b"}},
    "pp2 GPipe": {"mesh": {"pp": 2}, "pipeline": {"schedule": "gpipe"}},
    "pp2 tied": {"mesh": {"pp": 2}, "model": {"tied_embeddings": True}},
    "pp4 interleaved": {"mesh": {"pp": 4}, "model": DEEP, "pipeline": {"virtual_stages": 2}},
    "pp4 interleaved k=5": {
        "mesh": {"pp": 4},
        "model": DEEP,
        "pipeline": {"virtual_stages": 2, "consecutive": 5},
    },
    "pp3 v2, k=3 of m=4": {
        "mesh": {"pp": 3},
        "model": DEEP,
        "data": {"micro_batch_size": 3},
        "pipeline": {"virtual_stages": 2, "consecutive": 3},
    },
    "pp4 all forward all backward": {
        "mesh": {"pp": 4},
        "model": DEEP,
        "pipeline": {"virtual_stages": 2, "consecutive": 2},
    },
    "pp2 balanced, v2, tied, ZeRO-2": {
        "mesh": {"pp": 2, "dp": 2, "zero": 2},
        "model": {"tied_embeddings": True},
        "pipeline": {"virtual_stages": 2, "balanced": True, "consecutive": 3},
    },
    "cp2": {"mesh": {"cp": 2}},
    "cp4 all-gather": {"mesh": {"cp": 4}, "data": PAIRS},
    "cp4 ring": {"mesh": {"cp": 4}, "numerics": {"cp_method": "ring"}, "data": PAIRS},
    "cp3 ring recomputed": {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring", "recompute": "selective"}},
    "cp2 dp4 HSDP 2x2 (shards of 4)": {"mesh": {"cp": 2, "dp": 4, "zero": 2, "dp_shard": 2}},
    "cp2 dp2 ZeRO-0": {"mesh": {"cp": 2, "dp": 2, "zero": 0}},
    "tp2 cp2 selective recomputation": {"mesh": {"tp": 2, "cp": 2}, "numerics": {"recompute": "selective"}},
    "tp2 cp2 full recomputation ZeRO-3": {
        "mesh": {"tp": 2, "cp": 2, "zero": 3},
        "numerics": {"recompute": "full"},
    },
    "4D ZeRO-1": {"mesh": {**FOUR_D, "zero": 1}, "data": PAIRS},
    "4D ZeRO-2": {"mesh": {**FOUR_D, "zero": 2}},
    "4D ZeRO-3": {"mesh": {**FOUR_D, "zero": 3}},
    "4D order tp,dp,cp,pp": {"mesh": {**FOUR_D, "order": ["tp", "dp", "cp", "pp"]}},
}


@dataclass(frozen=True)
class Distance:
    """How far a layout is from one process; relative errors are of Euclidean norms."""

    loss: float
    norm: float
    worst: str
    gradient: float
    buffers: int


def configuration(name: str) -> RunConfig:
    tables: dict[str, dict[str, object]] = {}
    for source in (BASE, LAYOUTS[name]):
        for table, values in source.items():
            tables.setdefault(table, {}).update(values)
    return load(None, tables)


_references: dict[str, tuple[float, int, dict[str, npt.NDArray[Any]]]] = {}


def reference(config: RunConfig, shapes: dict[str, tuple[int, ...]]):
    """Loss, count and gradients of the plain model, computed once for all layouts of one model."""
    key = repr((config.model, config.data.seq_len, config.numerics.label_smoothing))
    if key not in _references:
        _references[key] = plain.loss_and_gradients(config, shapes)
    return _references[key]


def measure(ranks: RankPool, name: str) -> Distance:
    """Run one step of a layout and compare it with the plain model."""
    config = configuration(name)
    results = ranks.run(workers.gradients, config.mesh.world_size, config)
    shapes = {n: s for result in results for n, s in result.shapes.items()}
    loss, valid, expected = reference(config, shapes)
    got = workers.assemble(results)
    assert set(got) == set(expected)
    assert {r.valid_tokens for r in results} == {valid}
    assert len({(r.loss, r.norm) for r in results}) == 1, "ranks disagree on loss or norm"
    errors = {n: float(np.linalg.norm(got[n] - g) / np.linalg.norm(g)) for n, g in expected.items()}
    worst = max(errors, key=errors.__getitem__)
    counted = [g for n, g in expected.items() if not (config.model.tied_embeddings and n == "output.weight")]
    norm = float(np.sqrt(sum(np.square(g).sum() for g in counted)))
    first = results[0]
    return Distance(
        abs(first.loss / loss - 1),
        abs(first.norm / norm - 1),
        worst,
        errors[worst],
        max(r.buffers for r in results),
    )


def main() -> None:
    pool = RankPool()
    for name in LAYOUTS:
        d = measure(pool, name)
        print(f"| {name} | {d.gradient:.1e} | {d.worst} | {d.loss:.1e} | {d.norm:.1e} |", flush=True)
    pool.close()


if __name__ == "__main__":
    main()

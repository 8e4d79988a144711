"""The matched baseline against the real run, all layouts and formats: `python -m tests.numerics.matched`.

Equal means equal in every bit: the loss, every gradient of three steps on every rank's shard, the norm, and the
parameters after three AdamW steps. Beside it stands the naive baseline: one process, no emulated order.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np
import torch

from reftrain.config.file import load
from reftrain.config.run import MeshConfig, PipelineConfig, RunConfig
from reftrain.layout.pipeline import Pipeline
from reftrain.layout.placement import Placements
from reftrain.replay.engine import Replay
from reftrain.replay.formats import StageOrder
from tests.numerics import real_ranks
from tests.numerics.real_ranks import Bits, TrainedRank, bits, same
from tests.ranks.pool import RankPool

STEPS = 3
BASE = {
    "model": {"layers": 2, "dim": 64, "ffn_dim": 128},
    "data": {"batch_size": 12, "seq_len": 48, "micro_batch_size": 2},
}
DEEP = {"layers": 8, "dim": 32, "ffn_dim": 64}

LAYOUTS: dict[str, dict[str, dict[str, object]]] = {
    "tp2": {"mesh": {"tp": 2, "sequence_parallel": False}},
    "tp4": {"mesh": {"tp": 4, "sequence_parallel": False}},
    "tp2+SP": {"mesh": {"tp": 2}},
    "dp3": {"mesh": {"dp": 3}},
    "dp4 ZeRO-1": {"mesh": {"dp": 4, "zero": 1}, "data": {"micro_batch_size": 1}},
    "dp4 ZeRO-2": {"mesh": {"dp": 4, "zero": 2}, "data": {"micro_batch_size": 1}},
    "dp4 ZeRO-3": {"mesh": {"dp": 4, "zero": 3}, "data": {"micro_batch_size": 1}},
    "pp2": {"mesh": {"pp": 2}},
    "pp4 interleaved k=5 of 6": {
        "mesh": {"pp": 4},
        "model": DEEP,
        "pipeline": {"virtual_stages": 2, "consecutive": 5},
    },
    "cp2": {"mesh": {"cp": 2}},
    "cp4 head-tail": {"mesh": {"cp": 4}},
    "ring cp3": {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}},
    "tp2·dp3": {"mesh": {"tp": 2, "dp": 3}},
    "tp2·cp2·dp2": {"mesh": {"tp": 2, "cp": 2, "dp": 2}},
    "tp2·cp2·pp2·dp2": {"mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2}},
}
EXTRAS = {"bias": True, "qk_norm": True, "fused_qkv": True}
MORE: dict[str, dict[str, dict[str, object]]] = {
    "tp4+SP": {"mesh": {"tp": 4}},
    "tp4 copied kv heads": {"mesh": {"tp": 4}, "model": {"kv_heads": 2}},
    "tp4 copied kv heads, bias, qk norm": {
        "mesh": {"tp": 4},
        "model": {"kv_heads": 1, "bias": True, "qk_norm": True},
    },
    "tp2 bias, qk norm, fused": {"mesh": {"tp": 2}, "model": EXTRAS},
    "tp4 bias, qk norm, fused, no SP": {"mesh": {"tp": 4, "sequence_parallel": False}, "model": EXTRAS},
    "tp3 padded vocabulary, smoothing": {
        "mesh": {"tp": 3},
        "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
        "numerics": {"label_smoothing": 0.1},
    },
    "dp4 ZeRO-0": {"mesh": {"dp": 4, "zero": 0}, "data": {"micro_batch_size": 1}},
    "cp2 dp2 ZeRO-0": {"mesh": {"cp": 2, "dp": 2, "zero": 0}},
    "dp4 HSDP 2x2": {"mesh": {"dp": 4, "zero": 3, "dp_shard": 2}, "data": {"micro_batch_size": 1}},
    "cp2 dp4 HSDP 2x2": {
        "mesh": {"cp": 2, "dp": 4, "zero": 2, "dp_shard": 2},
        "data": {"micro_batch_size": 1},
    },
    "pp2 GPipe": {"mesh": {"pp": 2}, "pipeline": {"schedule": "gpipe"}},
    "pp2 interleaved": {
        "mesh": {"pp": 2},
        "model": {"layers": 4},
        "pipeline": {"schedule": "interleaved", "virtual_stages": 2},
    },
    "pp2 breadth first": {
        "mesh": {"pp": 2, "dp": 2, "zero": 2},
        "model": {"layers": 4},
        "data": {"micro_batch_size": 1},
        "pipeline": {"schedule": "breadth_first", "virtual_stages": 2},
    },
    "pp2 tied": {"mesh": {"pp": 2, "dp": 2}, "model": {"tied_embeddings": True}},
    "pp2 balanced, v2, tied, ZeRO-2": {
        "mesh": {"pp": 2, "dp": 2, "zero": 2},
        "data": {"micro_batch_size": 1},
        "model": {"tied_embeddings": True, "layers": 4},
        "pipeline": {"virtual_stages": 2, "balanced": True, "consecutive": 3},
    },
    "pp2 zb_h1": {"mesh": {"pp": 2}, "pipeline": {"schedule": "zb_h1"}},
    "tp2·pp3·dp2 zb_h1": {
        "mesh": {"tp": 2, "pp": 3, "dp": 2},
        "model": {"layers": 3},
        "data": {"micro_batch_size": 1},
        "pipeline": {"schedule": "zb_h1"},
    },
    "pp2 dualpipe_v": {
        "mesh": {"pp": 2, "dp": 2},
        "model": {"layers": 4},
        "data": {"micro_batch_size": 1},
        "pipeline": {"schedule": "dualpipe_v", "virtual_stages": 2},
    },
    "pp2 gems": {"mesh": {"pp": 2}, "pipeline": {"schedule": "gems"}},
    "pp3·dp2 gems": {"mesh": {"pp": 3, "dp": 2}, "model": {"layers": 3}, "pipeline": {"schedule": "gems"}},
    "pp2 chimera": {"mesh": {"pp": 2, "dp": 2}, "pipeline": {"schedule": "chimera"}},
    "tp2·pp4 chimera": {
        "mesh": {"tp": 2, "pp": 4},
        "model": {"layers": 4},
        "pipeline": {"schedule": "chimera", "pipelines": 4},
    },
    "pp2 uneven stages": {
        "mesh": {"pp": 2},
        "model": {"layers": 3},
        "pipeline": {"layers_per_stage": [2, 1]},
    },
    "cp3 ring recomputed": {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring", "recompute": "selective"}},
    "tp2·cp2 recomputed": {"mesh": {"tp": 2, "cp": 2}, "numerics": {"recompute": "full"}},
    "order tp,dp,cp,pp": {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "order": ["tp", "dp", "cp", "pp"]},
    },
    "order dp,cp,tp,pp": {"mesh": {"tp": 2, "cp": 2, "dp": 3, "order": ["dp", "cp", "tp", "pp"]}},
    "no document mask": {"mesh": {"dp": 3}, "numerics": {"document_mask": False}},
    "one rank, ZeRO-2": {"mesh": {"zero": 2}, "data": {"micro_batch_size": 1}},
    "fused AdamW, dp3": {"mesh": {"dp": 3}, "optimizer": {"implementation": "fused"}},
    "dp3 in buckets": {"mesh": {"dp": 3, "zero": 0, "bucket_mb": 0.02}},
    "tp4, sums in FP32": {"mesh": {"tp": 4}, "numerics": {"tp_reduce": "fp32"}},
    "tp2, math attention": {"mesh": {"tp": 2}, "numerics": {"attention": "math"}},
    "tp2·cp2, attention by documents": {"mesh": {"tp": 2, "cp": 2}, "numerics": {"attention": "documents"}},
    "uneven shards dp5": {"mesh": {"dp": 5}, "data": {"batch_size": 10}},
}
POLICIES = ("fp32", "bf16", "bf16_pure")


@dataclass(frozen=True)
class Match:
    """How many of the compared tensors are equal in every bit, and the first that is not."""

    compared: int
    equal: int
    first: str

    def __str__(self) -> str:
        return f"{self.equal}/{self.compared}" + (f" (first: {self.first})" if self.first else "")


def configuration(tables: dict[str, dict[str, object]], policy: str, **mesh: int) -> RunConfig:
    merged: dict[str, dict[str, object]] = {}
    for source in (BASE, tables, {"numerics": {"policy": policy}}):
        for table, values in source.items():
            merged.setdefault(table, {}).update(values)
    if mesh:
        merged["mesh"] = dict(mesh)
        merged.pop("pipeline", None)
    merged.setdefault("run", {})["steps"] = STEPS
    return load(None, merged)


def orders(config: RunConfig) -> dict[tuple[int, int], StageOrder]:
    """Order of accumulation as the schedule has it."""
    pipeline = Pipeline(config)
    places = [(stage, pp) for stage in range(config.stages) for pp in pipeline.owners(stage)]
    return {at: StageOrder(pipeline.added(*at), frozenset(pipeline.reduced_after(*at))) for at in places}


def replayed(config: RunConfig, steps: int = STEPS) -> list[TrainedRank]:
    """The same as `real_ranks.trained` of every rank, by the replay."""
    torch.set_num_threads(1)
    replay = Replay(config, orders(config))
    ranks = [TrainedRank() for _ in replay.grid.seats()]
    for step in range(steps):
        result = replay.gradients(step)
        for out, seat in zip(ranks, replay.grid.seats(), strict=True):
            out.losses.append(result.loss)
            out.norms.append(float(result.norm))
            out.gradients.append({name: bits(g) for name, g in result.gradients[seat].items()})
        replay.apply(step, result)
    for out, seat in zip(ranks, replay.grid.seats(), strict=True):
        out.parameters = {name: bits(p) for name, p in replay.shards[seat].items()}
    return ranks


def tensors(rank: TrainedRank) -> dict[str, Bits]:
    """Everything that is compared of a rank, by name."""
    out = {}
    for step, (loss, norm) in enumerate(zip(rank.losses, rank.norms, strict=True)):
        out[f"step {step} loss"] = bits(torch.tensor(loss, dtype=torch.float64))
        out |= {f"step {step} {name}.grad": g for name, g in rank.gradients[step].items()}
        out[f"step {step} norm"] = bits(torch.tensor(norm, dtype=torch.float64))
    return out | {f"{name} after step {STEPS - 1}": p for name, p in rank.parameters.items()}


def match(real: list[TrainedRank], other: list[TrainedRank]) -> Match:
    """Compare rank by rank, shard by shard."""
    compared, equal, first = 0, 0, ""
    for number, (one, two) in enumerate(zip(real, other, strict=True)):
        mine, theirs = tensors(one), tensors(two)
        if mine.keys() != theirs.keys():
            raise AssertionError(f"rank {number}: {sorted(mine.keys() ^ theirs.keys())[:4]} on one side only")
        for name in mine:
            compared += 1
            if same(mine[name], theirs[name]):
                equal += 1
            elif not first:
                first = f"rank {number} {name}"
    return Match(compared, equal, first)


def whole(ranks: list[TrainedRank], config: RunConfig) -> dict[str, Bits]:
    """Global tensors by name, put together from all ranks' shards."""
    places = Placements(config)
    out: dict[str, Bits] = {}
    for rank, seat in zip(ranks, places.grid.seats(), strict=True):
        for name, local in tensors(rank).items():
            parameter = name.removeprefix(f"step {name[5:6]} ").removesuffix(f" after step {STEPS - 1}")
            parameter = parameter.removesuffix(".grad")
            if parameter not in places.parameters:
                out[name] = local
                continue
            place = places.parameter(parameter, seat)
            box = place.boxes[0]
            target = out.setdefault(name, np.zeros(place.shape, local.dtype))
            inside = local[tuple(slice(0, n) for n in box.sizes)]
            target[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))] = inside
    return out


def naive(config: RunConfig) -> tuple[list[TrainedRank], RunConfig]:
    """One process with the run's micro-batches in their order, and nothing else of the run."""
    single = replace(
        config,
        mesh=MeshConfig(),
        pipeline=PipelineConfig(),
        numerics=replace(config.numerics, cp_method="all_gather"),
    )
    return replayed(single), single


def naive_match(real: list[TrainedRank], config: RunConfig) -> Match:
    """Compare global tensors with the naive baseline's."""
    other, single = naive(config)
    mine, theirs = whole(real, config), whole(other, single)
    equal = [name for name in mine if same(mine[name], theirs[name])]
    return Match(len(mine), len(equal), next((n for n in mine if n not in equal), ""))


def main() -> None:
    print(
        "| layout | policy | matched: equal of compared, rank by rank | naive: equal of all whole tensors |"
    )
    print("|---|---|---|---|")
    wanted = sys.argv[1:]
    pool = RankPool()
    try:
        for name, tables in (LAYOUTS | MORE).items():
            if wanted and not any(name.startswith(w) for w in wanted):
                continue
            for policy in POLICIES:
                config = configuration(tables, policy)
                real = pool.run(real_ranks.trained, config.mesh.world_size, config, STEPS)
                row = f"| {name} | {policy} | {match(real, replayed(config))} |"
                other = naive_match(real, config)
                print(f"{row} {other.equal}/{other.compared} |", flush=True)
    finally:
        pool.close()


if __name__ == "__main__":
    main()

"""What the pooled ranks do for tests of the engine."""

from pathlib import Path

import numpy as np
import torch

from reftrain.config.run import RunConfig
from reftrain.infer.engine import Engine, Workload
from reftrain.infer.serve import serve_rank
from reftrain.rank.hooks import HookList
from reftrain.rank.mesh import Mesh
from reftrain.rank.world import World
from tests.reftrain.workers import trainer

Answer = dict[int, tuple[list[int], np.ndarray]]
"""Tokens of a request and the logits at each of their positions, by number."""


def answers(rank: int, world: int, store: str, config: RunConfig, work: Workload) -> Answer:
    """Answer all requests of this rank's replica."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        hooks, device = HookList(), torch.device("cpu")
        engine = Engine(config, work, hooks, Mesh(config.mesh, device, hooks, 60.0), device)
        done = engine.run()
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return {r.number: (r.tokens, torch.stack(r.logits).double().numpy()) for r in done}


def training_logits(
    rank: int, world: int, store: str, config: RunConfig, tokens: list[list[int]]
) -> np.ndarray:
    """Logits of the trainer's own forward on whole sequences, as its hooks see them: (sequences, tokens, words)."""
    from reftrain.data.batches import IGNORED, MicroBatch
    from reftrain.rank.hooks import Hooks

    seen: list[torch.Tensor] = []

    class Logits(Hooks):
        def value(self, name, value):
            if name == "output.logits":
                seen.append(value.detach().double())

    with trainer(rank, world, store, config, HookList([Logits()])) as made:
        whole = torch.tensor(tokens)
        targets = torch.full_like(whole, IGNORED)
        batch = MicroBatch(whole, targets, torch.zeros_like(whole))
        with torch.no_grad():
            made.stages[0].module(None, made.cutter.cut(batch))
    return seen[0].view(*whole.shape, -1).numpy()


def served(rank: int, world: int, store: str, config: RunConfig, work: Workload, capture: str = "") -> None:
    """Everything `reftrain infer` does on a rank."""
    Path(config.out).mkdir(parents=True, exist_ok=True)
    serve_rank(config, work, World(rank, rank, world, f"file://{store}"), capture)

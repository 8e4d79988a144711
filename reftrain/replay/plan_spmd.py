"""Declared sums over the model axis of SPMD 2-D sharding, and those of the loss, which every tensor axis makes.

Source: "Llama 2 with PyTorch/XLA SPMD", table 2: products of column-cut weights leave as addends, cut by features.
"""

from collections.abc import Sequence

import torch

from reftrain.layout.grid import Seat
from reftrain.replay.plan_writer import PlanWriter


def loss_sums(writer: PlanWriter, seats: Sequence[Seat], every: Sequence[int]) -> None:
    """Declare the maximum and the sums over vocabulary shards, once a micro-batch."""
    config, wide = writer.config, writer.formats.wide
    tokens = config.data.micro_batch_size * config.data.seq_len // config.mesh.cp
    rows = 3 if config.numerics.label_smoothing else 2
    writer.add("loss.max", "tp", "all_reduce", "forward", wide, seats, every, tokens, reduction="max")
    writer.add("loss.sums", "tp", "all_reduce", "forward", wide, seats, every, rows * tokens)


def annotated_sums(writer: PlanWriter, seats: Sequence[Seat], every: Sequence[int]) -> None:
    """Declare the sums over one model axis: products, their gradients, and the squares of norms."""
    config, model = writer.config, writer.config.model
    tokens = config.data.micro_batch_size * config.data.seq_len
    heads, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim

    again = config.numerics.recompute == "full"

    def scatter(label: str, phase: str, columns: int) -> None:
        kind: torch.dtype = writer.formats.compute
        repeats = again and phase == "forward" and label.startswith("layers.")
        for when in (phase, "backward") if repeats else (phase,):
            writer.add(label, "tp", "reduce_scatter", when, kind, seats, every, tokens * columns)

    def norm(name: str) -> None:
        calls = [(f"{name}.squares", "forward"), (f"{name}.squares.grad", "backward")]
        if again and name.startswith("layers."):
            calls.append((f"{name}.squares", "backward"))
        for label, phase in calls:
            writer.add(label, "tp", "all_reduce", phase, writer.formats.wide, seats, every, tokens)

    scatter("tok_embeddings", "forward", model.dim)
    for number in range(model.layers):
        pre = f"layers.{number}"
        norm(f"{pre}.attention_norm")
        norm(f"{pre}.ffn_norm")
        for part, columns in (("wq", heads), ("wk", keys), ("wv", keys)):
            scatter(f"{pre}.attention.qkv.{part}", "forward", columns)
        scatter(f"{pre}.attention.wo.grad", "backward", heads)
        scatter(f"{pre}.feed_forward.w1.grad", "backward", model.dim)
        scatter(f"{pre}.feed_forward.w2", "forward", model.dim)
    norm("norm")
    scatter("output.grad", "backward", model.dim)
    loss_sums(writer, seats, every)

"""Weights of a trainer's checkpoint in an engine, on any mesh: each shard is read as its box of the global tensor."""

import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from reftrain.config.run import RunConfig
from reftrain.errors import CheckpointError
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.model.parameters import shard_part
from reftrain.rank.mesh import Mesh
from reftrain.train.checkpoint import Box, find
from reftrain.train.formats import POLICIES


def load_weights(stage: ShardedStage, mesh: Mesh, config: RunConfig) -> None:
    """Fill this rank's shards from `checkpoint.resume`; raises `CheckpointError` where it is not of this model."""
    folder = find(config.checkpoint.resume, Path(config.out) / "checkpoint")
    if folder is None:
        raise CheckpointError(f"checkpoint.resume: {config.checkpoint.resume} holds no finished checkpoint")
    stored = POLICIES[config.numerics.policy].parameter
    boxes, shards = {}, stage.local_parameters()
    for name, local in shards.items():
        spec = stage.specs[name]
        part = shard_part(spec, *mesh.shard_of(dealt=spec.dealt))
        if min(part.sizes):
            boxes[f"model.{name}"] = Box.of(torch.zeros_like(local, dtype=stored), part, spec.shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(boxes, storage_reader=FileSystemReader(folder))
    except (OSError, CheckpointException) as error:
        raise CheckpointError(f"{folder}: cannot be read as weights of this model; name another") from error
    for key, box in boxes.items():
        name = key.removeprefix("model.")
        box.part.within(shards[name]).copy_(box.plain())

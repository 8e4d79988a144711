"""Averages the weights of checkpoints: the last part of a recipe, without ranks.

Source: "The Llama 3 Herd of Models", section 3.4.3: the average of checkpoints during annealing is the final model.
"""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from reftrain.errors import CheckpointError

_AVERAGED: Final = ("model.", "optimizer.master.")
"""What is averaged: weights, and their FP32 masters; moments and counts are those of the last checkpoint."""


def read_whole(path: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint, whole; raises `CheckpointError` where it cannot be read."""
    try:
        reader = FileSystemReader(path)
        stored = reader.read_metadata().state_dict_metadata
        made: dict[str, Any] = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in stored.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dcp says that one process loads alone
            load(made, storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({type(error).__name__}); name a finished checkpoint"
        ) from error
    return made


def averaged(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the tensors of the last of `paths`, with the weights averaged over all of them, in FP64.

    Raises `CheckpointError` where one cannot be read, or holds another model.
    """
    last = read_whole(paths[-1])
    wanted = [key for key in last if key.startswith(_AVERAGED)]
    sums = {key: last[key].double() for key in wanted}
    for path in reversed(paths[:-1]):
        other = read_whole(path)
        for key in wanted:
            if key not in other or other[key].shape != last[key].shape:
                raise CheckpointError(
                    f"{path}: is of another model than {paths[-1]}; average one run's checkpoints"
                )
            sums[key] += other[key].double()
    return {**last, **{key: (total / len(paths)).to(last[key].dtype) for key, total in sums.items()}}


def write_average(paths: Sequence[Path], out: Path) -> None:
    """Write the average as a checkpoint at `out`, which appears whole or not at all."""
    hidden = out.with_name(f".{out.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(
            dict(averaged(paths)),
            storage_writer=FileSystemWriter(hidden, single_file_per_rank=True),
            no_dist=True,
        )
    shutil.rmtree(out, ignore_errors=True)
    hidden.rename(out)

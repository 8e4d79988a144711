"""Records any PyTorch trainer through hooks on its modules and its optimiser.

    from numerics import watch

    watcher = watch(model, optimizer, dp=(rank, world_size))   # after FSDP2, DDP or DTensor have wrapped the model
    ...                                                        # the training loop, unchanged
    watcher.close()                                            # after the last step

Run it under `numerics capture --out RUN -- CMD`; without that (and without `out`) the calls do nothing. The capture
holds the parameters before the first step; what the model is called with; each module's output and its gradient; each
parameter's gradient as the optimiser sees it; parameters and optimiser state after each step. A DTensor's placements
say which part of the global tensor it is; a plain activation is taken to be this rank's sequences of the global batch
(dimension 0).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from numerics.record.batch_place import Batch, Place
from numerics.record.parallel_layout import layout_of
from numerics.record.recorder import Recorder
from numerics.record.switch import Switch, switched_on
from numerics.record.watcher import Watcher
from numerics.schema import WATCHED, Level

__all__ = ["Watcher", "watch"]


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    dp: tuple[int, int] | None = None,
    micro_batches: int = 1,
    batch: Batch | None = None,
    place: Place | None = None,
    out: str | Path | None = None,
    level: Level = "digest",
    names: Sequence[str] = (),
    coords: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
    collectives: bool | None = None,
) -> Watcher:
    """Record what a model computes, step by step, until the watcher's `close`.

    Without an optimizer nothing is trained: every `micro_batches` forwards are a step.
    `dp` is this rank's index and the number of data-parallel ranks (left out: from DDP or the meshes of
    DTensors); `micro_batches` is the number of forwards in a step. Together they say which sequences of the global
    batch a forward sees: a data-parallel rank has a block of sequences, micro-batch after micro-batch. `batch` gives
    them for any other division. `place` says which part a plain activation is where ranks of one data-parallel index
    hold parts or copies; without it these are compared with nothing but their own replay. `coords` are coordinates
    on the mesh axes, for the report. `config` names what the run computes (model, data, seeds); comparisons of runs
    that differ in it are refused. `collectives` also records inputs and outputs of collectives, and the gradient that
    each backward adds to a parameter (left out: at level tensors). `out` records without `numerics capture`.
    CaptureError where a tensor or the folder cannot be recorded.
    """
    switch = switched_on() if out is None else Switch(Path(out), level, tuple(names))
    data_parallel, axes = layout_of(model)
    dp = dp or data_parallel
    recorder = None if switch is None else _recorder(switch, coords or {**axes, "dp": dp[0]}, config)
    if collectives is None:
        collectives = switch is not None and switch.level == "tensors"
    return Watcher(recorder, model, optimizer, dp, micro_batches, batch, place, collectives=collectives)


def _recorder(switch: Switch, coords: Mapping[str, int], config: Mapping[str, Any] | None) -> Recorder:
    distributed = dist.is_available() and dist.is_initialized()
    return Recorder(
        switch.out,
        dist.get_rank() if distributed else 0,
        dist.get_world_size() if distributed else 1,
        coords,
        level=switch.level,
        names=switch.names,
        source=WATCHED,
        config=config,
    )

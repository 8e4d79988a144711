"""Weight versions of an asynchronous schedule: stashed copies of a stage's shards, exchanged in when used.

A forward's graph refers to the gathered weights, and FSDP2 fills their storage again when it gathers. So a
computation with another version exchanges the shards for the stashed ones, lets FSDP2 gather again, and
exchanges them back: the backward then reads the weights that its forward used.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch

from reftrain.execute.sharded_stage import ShardedStage
from reftrain.schedule.actions import Action

Shards = dict[str, torch.Tensor]


class WeightVersions:
    """Present and stashed versions of the stages of one rank, counted in optimiser steps.

    To be constructed while nothing is gathered, because FSDP2 hides the shards later.
    """

    def __init__(self, stages: Mapping[int, ShardedStage]) -> None:
        self._stages = stages
        self._shards = {number: stage.local_parameters() for number, stage in stages.items()}
        self._present = dict.fromkeys(stages, 0)
        self._gathered: dict[int, int | None] = dict.fromkeys(stages)
        self._tags: dict[tuple[int, int], int] = {}
        self._copies: dict[tuple[int, int], Shards] = {}
        self._use: dict[int, int] = {}

    @property
    def copies(self) -> int:
        """Number of stashed versions that are held."""
        return len(self._copies)

    def stash(self, action: Action) -> None:
        """Keep the present weights under a tag; tags of one version share a copy."""
        stage, version = action.stage, self._present[action.stage]
        self._tags[stage, action.micro_batch] = version

    def use(self, action: Action) -> None:
        """Let the next computation of the stage use the weights of a tag."""
        self._use[action.stage] = self._tags[action.stage, action.micro_batch]

    def drop(self, action: Action) -> None:
        """Forget a tag, and the copy when no other tag needs it."""
        version = self._tags.pop((action.stage, action.micro_batch))
        if not self._needed(action.stage, version):
            self._copies.pop((action.stage, version), None)

    def before_step(self, stage: int) -> None:
        """Copy the weights that the coming optimiser step would overwrite, where a tag needs them."""
        version = self._present[stage]
        if self._needed(stage, version):
            self._copies[stage, version] = {
                name: shard.clone() for name, shard in self._shards[stage].items()
            }

    def after_step(self, stage: int) -> None:
        """Count an optimiser step."""
        self._present[stage] += 1

    def _needed(self, stage: int, version: int) -> bool:
        return any(s == stage and v == version for (s, _), v in self._tags.items())

    @contextlib.contextmanager
    def computing(self, action: Action) -> Iterator[None]:
        """Give a computation the version it uses."""
        stage = action.stage
        version = self._use.pop(stage, self._present[stage])
        if self._gathered[stage] != version:
            self._stages[stage].release_gathered()
            self._gathered[stage] = version
        copy = self._copies.get((stage, version)) if version != self._present[stage] else None
        if copy is not None:
            self._exchange(stage, copy)
        try:
            yield
        finally:
            if copy is not None:
                self._exchange(stage, copy)

    def _exchange(self, stage: int, copy: Shards) -> None:
        for name, shard in self._shards[stage].items():
            kept = shard.clone()
            shard.copy_(copy[name])
            copy[name].copy_(kept)

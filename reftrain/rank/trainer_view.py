"""The trainer as hooks see it, once stages, schedule and optimiser exist.

`Hooks.built` receives a `TrainerView`. `reftrain.train.trainer.Trainer` fits it without being named here, so that
hooks (and with them recording and planted faults) do not depend on the trainer.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import nn

from reftrain.config.run import RunConfig
from reftrain.data.batches import Loader
from reftrain.rank.mesh import Mesh
from reftrain.schedule.actions import Schedule


class SpecView(Protocol):
    """A parameter's local shape (padding included) and the axes over which its gradient is still partial."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this tensor rank's part."""

    @property
    def frozen(self) -> bool:
        """Whether it has no gradient."""

    @property
    def data_dim(self) -> int | None:
        """Dimension that data parallelism shards."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Axes over which the gradient is summed after data parallelism."""


class StageView(Protocol):
    """A virtual stage of this rank: its module and the specs of its parameters by global name."""

    @property
    def unit(self) -> str:
        """Name under which parameters outside layers are reduced."""

    @property
    def module(self) -> nn.Module:
        """The stage, wrapped by FSDP2."""

    @property
    def specs(self) -> Mapping[str, SpecView]:
        """Specs by global name, in the order of the model."""


class TrainerView(Protocol):
    """One rank's trainer. Hooks read it; they may replace `loader.source` alone, to plant longer documents."""

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""

    @property
    def mesh(self) -> Mesh:
        """Axes and process groups of this rank."""

    @property
    def device(self) -> torch.device:
        """Device of this rank."""

    @property
    def kernel(self) -> str:
        """Attention kernel in use."""

    @property
    def loader(self) -> Loader:
        """Data loader of this rank."""

    @property
    def schedule(self) -> Schedule:
        """Pipeline schedule that all ranks run."""

    @property
    def stages(self) -> Mapping[int, StageView]:
        """Virtual stages of this rank by number."""

    def local_parameters(self) -> Mapping[str, torch.Tensor]:
        """Return this rank's shard of every parameter by global name."""

    def local_gradients(self) -> Mapping[str, torch.Tensor]:
        """Return this rank's shard of every gradient by global name."""

    def optimizer_state(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return this rank's shards of the optimiser state by kind, then by global name."""

    def host_bytes(self) -> int:
        """Return the bytes that an offloaded optimiser holds in the host's memory besides its state."""

    def buffer_bytes(self) -> int:
        """Return the size of the buffers that were made for messages between stages, in bytes."""

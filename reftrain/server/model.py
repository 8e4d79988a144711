"""The decoder on one process, with its weights and gradients as one vector each, as worker and server exchange them."""

from collections.abc import Sequence

import torch

from reftrain.config.run import RunConfig
from reftrain.data.batches import Loader, MicroBatch
from reftrain.model.attention import choose_kernel
from reftrain.model.batch import Cutter
from reftrain.model.context import ModelContext
from reftrain.model.decoder import Stage
from reftrain.model.parameters import initial_values, specs_of
from reftrain.model.segments import Segments
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import HookList

CPU = torch.device("cpu")


def initial_vector(config: RunConfig) -> torch.Tensor:
    """Return the first weights as a vector: those of every other layout with this seed."""
    return Replica(config).weights()


class Replica:
    """The whole model on one process: computes gradients of a share of a step's sequences."""

    def __init__(self, config: RunConfig) -> None:
        hooks = HookList()
        alone = [Axis(name, 0, [0], None, hooks) for name in ("tp", "cp", "ep")]
        dtype = torch.float64 if config.numerics.policy == "fp64" else torch.float32
        kernel = choose_kernel(
            config.numerics.attention, CPU, document_mask=config.numerics.document_mask, cp=1,
            head_dim=config.model.head_dim,
        )  # fmt: skip
        context = ModelContext(
            model=config.model,
            tp=TensorParallel(alone[0], sequence_parallel=False),
            cp=alone[1],
            segments=Segments(hooks),
            parameter_dtype=dtype,
            kernel=kernel,
            ring=False,
            recompute="none",
            label_smoothing=config.numerics.label_smoothing,
            tokens=config.data.micro_batch_size * config.data.seq_len,
            ep=alone[2],
            sequences=config.data.batch_size,
        )
        self.stage = Stage(context, range(config.model.layers), first=True, last=True)
        self.stage.to_empty(device=CPU)
        specs = specs_of(self.stage)
        with torch.no_grad():
            for name, parameter in self.stage.named_parameters():
                parameter.copy_(initial_values(name, specs[name], config.seed))
        self.cutter = Cutter(
            cp=alone[1], ring=False, document_mask=config.numerics.document_mask, attention=kernel,
            head_dim=config.model.head_dim, rope_base=config.model.rope_base, wide=dtype, device=CPU,
        )  # fmt: skip

    def weights(self) -> torch.Tensor:
        """Return a copy of the weights as a vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.stage.parameters()])

    def set_weights(self, vector: torch.Tensor) -> None:
        """Take over weights."""
        at = 0
        with torch.no_grad():
            for parameter in self.stage.parameters():
                parameter.copy_(vector[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()

    def gradient(self, batches: Sequence[MicroBatch], valid: int) -> tuple[torch.Tensor, float]:
        """Return the gradient of the micro-batches as a vector, and the sum of their losses over `valid` tokens."""
        for parameter in self.stage.parameters():
            parameter.grad = None
        total = 0.0
        for batch in batches:
            loss = self.stage(None, self.cutter.cut(batch)) / valid
            loss.backward()
            total += float(loss.detach())
        zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.stage.parameters())
        return torch.cat([g.reshape(-1) for g in zeros]), total


class Shares:
    """The sequences of each worker, and the valid targets of all, by step."""

    def __init__(self, config: RunConfig) -> None:
        self.loaders = [
            Loader(config.data, config.model.vocab_size, config.mesh.dp, worker)
            for worker in range(config.mesh.dp)
        ]

    def of(self, step: int, worker: int) -> tuple[list[MicroBatch], int]:
        """Return a worker's micro-batches of a step, and the valid targets of all workers, at least 1."""
        every = [loader.step(step) for loader in self.loaders]
        return every[worker], max(1, sum(batch.valid for batches in every for batch in batches))

"""Memory of a rank by kind, each step: weights, gradients, optimiser state, activations, buffers; in bytes.

Read from the live tensors: weights as stored and as gathered, gradients when they are whole, what autograd saved for
a forward times the forwards in flight. On CUDA the allocator's own peaks are recorded as well.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor

from reftrain.rank.hooks import Hooks
from reftrain.rank.trainer_view import StageView, TrainerView
from reftrain.schedule.actions import Action, Kind


class MemoryByKind(Hooks):
    """Peaks of one step by kind; `figures` hands them out and starts again."""

    def __init__(self) -> None:
        self._trainer: TrainerView | None = None
        self._saved: dict[int, int] = {}  # virtual stage: bytes that a forward leaves for its backward
        self._flying: dict[tuple[int, int], int] = {}
        self._watch: Any = None
        self._peaks: dict[str, int] = {}

    def built(self, trainer: TrainerView) -> None:
        """Remember the trainer to measure the memory of."""
        self._trainer = trainer

    def action_begin(self, action: Action) -> None:
        """Watch what the first forward of each stage saves."""
        if action.kind is Kind.FORWARD and action.stage not in self._saved and self._trainer is not None:
            self._watch = SavedBytes(self._storages_of_weights())
            self._watch.__enter__()

    def action_end(self, action: Action) -> None:
        """Count the forwards in flight, and what they hold."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)
            watch.weights |= self._storages_of_weights()  # gathered within the forward
            self._saved[action.stage] = watch.bytes
        key = action.stage, action.micro_batch
        if action.kind is Kind.FORWARD:
            self._flying[key] = self._saved.get(action.stage, 0)
        elif action.kind is Kind.BACKWARD:
            self._flying.pop(key, None)
            return
        self._note("activations", sum(self._flying.values()))
        self._note("weights", self._weights())

    def gradients_end(self, step: int) -> None:
        """Count gradients when all are there."""
        del step
        if self._trainer is not None:
            self._note("gradients", distinct(self._trainer.local_gradients().values()))
            self._note("weights", self._weights())

    def figures(self) -> dict[str, int]:
        """Return bytes by kind: peaks within the step, and the present size of optimiser state and buffers."""
        trainer = self._trainer
        if trainer is None:
            return {}
        state = distinct(t for kind in trainer.optimizer_state().values() for t in kind.values())
        offloaded = trainer.config.optimizer.offload
        found = {
            "weights": self._peaks.get("weights", 0),
            "gradients": self._peaks.get("gradients", 0),
            "optimizer": 0 if offloaded else state,
            "activations": self._peaks.get("activations", 0),
            "buffers": trainer.buffer_bytes(),
        }
        if offloaded:
            found["host"] = state + trainer.host_bytes()
        if trainer.device.type == "cuda":
            found["allocated"] = torch.cuda.max_memory_allocated(trainer.device)
            found["reserved"] = torch.cuda.max_memory_reserved(trainer.device)
        self._peaks.clear()
        self._flying.clear()
        return found

    def _note(self, kind: str, amount: int) -> None:
        self._peaks[kind] = max(self._peaks.get(kind, 0), amount)

    def _weights(self) -> int:
        """Shards, and what of them is gathered just now."""
        return distinct(self._tensors_of_weights())

    def _tensors_of_weights(self) -> list[torch.Tensor]:
        if self._trainer is None:
            return []
        return [t for stage in self._trainer.stages.values() for t in held_weights(stage)]

    def _storages_of_weights(self) -> set[int]:
        return {t.untyped_storage().data_ptr() for t in self._tensors_of_weights()}


def held_weights(stage: StageView) -> list[torch.Tensor]:
    """Shards of a stage's parameters, and the whole ones that FSDP2 holds beside them just now."""
    found = []
    for module in stage.module.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - no public way to them
            for parameter in group.fsdp_params if group else ():
                shard: Any = parameter.sharded_param  # a DTensor, which FSDP2 declares as a parameter
                found += [shard._local_tensor, *_whole(parameter)]  # noqa: SLF001 - as above
    return found


def _whole(parameter: FSDPParam) -> list[torch.Tensor]:
    whole = getattr(parameter, "_unsharded_param", None)
    if isinstance(whole, DTensor):
        return [whole._local_tensor.detach()]  # noqa: SLF001 - to_local() makes a node
    return [whole.detach()] if isinstance(whole, torch.Tensor) else []


def distinct(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors, each counted once."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that autograd saves while it is entered, weights apart; what it saves stays as it is.

    `weights` are the storages of weights by address; more may be added until `bytes` is asked for. Gathered weights
    that are freed again have no bytes then.
    """

    def __init__(self, weights: set[int]) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self.weights = set(weights)
        super().__init__(self._count, lambda tensor: tensor)

    @property
    def bytes(self) -> int:
        """Bytes so far, each storage once."""
        return sum(s.nbytes() for s in self._storages.values() if s.data_ptr() not in self.weights)

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage  # noqa: SLF001 - its identity: addresses are used again
        return tensor

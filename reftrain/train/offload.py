"""Optimizer state in the host's memory: gradients are copied there, AdamW steps there, weights are copied back.

Source: Ren et al. 2021, "ZeRO-Offload", section 4: FP32 masters, moments and the update are the host's, forward and
backward the device's. On a machine without a device the same copies are made between two parts of its memory.
"""

from collections.abc import Iterable, Mapping

import torch

from reftrain.rank.events import CopyListener, HostCopy


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the elements of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class HostCopies:
    """The host's copies of a rank's shards and gradients; every copy is announced to `listener`.

    Buffers of a device's tensors are page-locked, so that the link's bandwidth is reached.
    """

    def __init__(self, shards: Mapping[str, torch.Tensor], listener: CopyListener) -> None:
        self.shards, self.listener = shards, listener
        self.weights = {name: self._buffer(shard) for name, shard in shards.items()}
        self.gradients: dict[str, torch.Tensor] = {}
        for name, shard in shards.items():
            self.weights[name].copy_(shard)

    @staticmethod
    def _buffer(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda"
        )

    def take(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy gradients to the host; return the copies by name."""
        copy = HostCopy("to_host", bytes_of(gradients.values()))
        self.listener.copy_begin(copy)
        for name, gradient in gradients.items():
            if name not in self.gradients:
                self.gradients[name] = self._buffer(gradient)
            self.gradients[name].copy_(gradient)
        self.listener.copy_end(copy)
        return {name: self.gradients[name] for name in gradients}

    def give(self) -> None:
        """Copy the host's weights back to the shards."""
        copy = HostCopy("to_device", bytes_of(self.shards.values()))
        self.listener.copy_begin(copy)
        for name, shard in self.shards.items():
            shard.copy_(self.weights[name])
        self.listener.copy_end(copy)

    def refresh(self) -> None:
        """Take over the shards' weights, after a checkpoint was loaded into them."""
        for name, shard in self.shards.items():
            self.weights[name].copy_(shard)

    @property
    def bytes(self) -> int:
        """Bytes of the copies in the host's memory."""
        return bytes_of([*self.weights.values(), *self.gradients.values()])

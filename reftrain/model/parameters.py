"""A parameter in the whole model: global name and shape, this rank's part, and the sums of its gradient.

A module declares a `Spec` beside each parameter it makes. Initial values, the gradient's last reductions,
the norm, the checkpoint and every comparison with another mesh read these specs and nothing else. Values
are a function of seed and global name, so that no mesh changes them.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Spec:
    """A parameter's place in the whole model.

    `shape` is global; this rank's tensor-parallel part is rows (or columns) `start` to `start + size` of
    dimension `split`; rows beyond the global shape are padding; `split` is None when every tensor
    rank holds all. `sums` names the axes over which the gradient is still partial after backward (tp: each
    tensor rank saw part of the tokens or heads; kv: copies of a key/value head). `copies` is the number of
    tensor ranks that hold the same part, `first_copy` whether this is the one that counts in norms.
    `tied_to` is the name of the parameter that it shares values with. Every `zero_columns`-th column starts as -0.0.
    `dealt` marks a parameter of an expert that only the ranks of one place on `ep` hold.
    `frozen` ones keep their first values and have neither gradient nor optimiser state. `data_dim` is the dimension
    that data parallelism shards; None where each data-parallel rank holds all of it.
    """

    shape: tuple[int, ...]
    std: float
    split: int | None = None
    start: int = 0
    size: int = 0
    sums: tuple[str, ...] = ()
    first_copy: bool = True
    tied_to: str | None = None
    zero_columns: int = 0
    dealt: bool = False
    frozen: bool = False
    data_dim: int | None = 0

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part, padding included."""
        return tuple(self.size if dim == self.split else n for dim, n in enumerate(self.shape))

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices only."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class Part:
    """A box of a global tensor: `offsets` and `sizes` by dimension; sizes of 0 are nothing."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the view of this box of the global tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))]

    def within(self, local: torch.Tensor) -> torch.Tensor:
        """Drop the padding that a local tensor has beyond the box."""
        return local[tuple(slice(0, n) for n in self.sizes)]


def shard_part(spec: Spec, shard_size: int, shard_index: int) -> Part:
    """Box that one data-parallel shard holds of this rank's part: FSDP2 cuts one dimension evenly."""
    local, dim = spec.local_shape, spec.data_dim
    offsets, sizes = [0] * len(local), list(local)
    if dim is not None:
        rows = -(-local[dim] // shard_size)
        first = min(shard_index * rows, local[dim])
        offsets[dim], sizes[dim] = first, min(rows, local[dim] - first)
    if spec.split is not None:
        offsets[spec.split] += spec.start
    sizes = [min(n, max(whole - o, 0)) for n, o, whole in zip(sizes, offsets, spec.shape, strict=True)]
    return Part(tuple(offsets), tuple(sizes))


class SpecModule(nn.Module):
    """A module that declares a spec beside each of its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.own_specs: dict[str, Spec] = {}

    def declare(self, name: str, spec: Spec, dtype: torch.dtype) -> None:
        """Make a parameter without storage: the shards get theirs after FSDP2 has cut them."""
        self.register_parameter(name, nn.Parameter(torch.empty(spec.local_shape, dtype=dtype, device="meta")))
        self.own_specs[name] = spec


def gathered(parameter: nn.Parameter) -> torch.Tensor:
    """Return this tensor rank's part of a gathered parameter; an annotated one's gradient is annotated alike."""
    if isinstance(parameter, DTensor):
        return parameter.to_local(grad_placements=parameter.placements)
    return parameter


def freeze(root: nn.Module) -> None:
    """Keep all parameters under `root` as they are."""
    for module in root.modules():
        if isinstance(module, SpecModule):
            module.own_specs = {name: replace(spec, frozen=True) for name, spec in module.own_specs.items()}
    for parameter in root.parameters():
        parameter.requires_grad_(False)


def specs_of(root: nn.Module) -> dict[str, Spec]:
    """Specs of all parameters under `root` by their global names."""
    return dict(_walk(root))


def _walk(root: nn.Module) -> Iterator[tuple[str, Spec]]:
    for prefix, module in root.named_modules():
        for name, spec in getattr(module, "own_specs", {}).items():
            yield (f"{prefix}.{name}" if prefix else name), spec


def initial_values(name: str, spec: Spec, seed: int) -> torch.Tensor:
    """Whole tensor of initial values, float32: normal with `std`, or ones when `std` is 0 (norms).

    A bias is a vector with a `std` above 0.
    """
    if spec.std == 0:
        return torch.ones(spec.shape)
    digest = hashlib.blake2b(f"{seed}/{spec.tied_to or name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    whole = torch.empty(spec.shape).normal_(0.0, spec.std, generator=generator)
    if spec.zero_columns:
        whole[:, :: spec.zero_columns] = -0.0
    return whole

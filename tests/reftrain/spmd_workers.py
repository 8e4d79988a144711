"""What the pooled ranks do for tests of annotated shards."""

from collections import Counter

from torch.distributed.tensor import Shard

from reftrain.config.run import RunConfig
from reftrain.rank.hooks import HookList, Hooks
from reftrain.record.memory import MemoryByKind
from tests.reftrain.workers import trainer

SCALARS = {"valid_tokens", "grad_norm", "loss"}


def annotations(
    rank: int, world: int, store: str, config: RunConfig
) -> dict[str, tuple[tuple[str, ...], tuple[int | None, ...], tuple[int, ...]]]:
    """Mesh axes, cut dimension on each, and global shape of every parameter, as its DTensor says."""
    with trainer(rank, world, store, config, HookList()) as made:
        return {
            name: (
                p.device_mesh.mesh_dim_names,
                tuple(place.dim if isinstance(place, Shard) else None for place in p.placements),
                tuple(p.shape),
            )
            for name, p in made.stages[0].module.named_parameters()
        }


class Bytes(Hooks):
    """Counts the larger buffer of every collective but scalars: (axis, operation)."""

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str]] = Counter()

    def collective_end(self, call):
        if call.label not in SCALARS and call.group is not None:
            size = max(call.tensor.numel(), call.elements_out) * call.tensor.element_size()
            self.moved[call.axis, call.op] += size


def second_step(
    rank: int, world: int, store: str, config: RunConfig
) -> tuple[Counter[tuple[str, str]], dict[str, int]]:
    """Bytes of collectives, and memory by kind, of the second step (the first makes FSDP2's buffers)."""
    bytes_, memory = Bytes(), MemoryByKind()
    with trainer(rank, world, store, config, HookList([bytes_, memory])) as made:
        made.apply_gradients(0, made.compute_gradients(0).norm)
        bytes_.moved.clear()
        memory.figures()
        made.apply_gradients(1, made.compute_gradients(1).norm)
        return bytes_.moved, memory.figures()

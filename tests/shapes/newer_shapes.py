"""The shapes of seeds from 3000: what of each varies."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.shapes.case import Shape
from tests.shapes.ddp import Transformer
from tests.shapes.fault import Fault
from tests.shapes.flat import Flat
from tests.shapes.fsdp import Sharded
from tests.shapes.kept import Kept, Offloaded, Padded
from tests.shapes.megatron import Megatron
from tests.shapes.stages import Overlapped, Tower, ZeroBubble
from tests.shapes.symmetric import Asynchronous, DeepExperts, Userbuffers
from tests.shapes.tuned import Adapters, Compiled, Synchronised, Unused
from tests.shapes.zero import Small

MILLION = 10**6
ShardedKind = TypeVar("ShardedKind", bound=Sharded)
MegatronKind = TypeVar("MegatronKind", bound=Megatron)


@dataclass
class Made:
    """A shape with what of its case is not as usual."""

    shape: Shape
    world: int
    kinds: tuple[str, ...] = ()
    """Faults that this shape can have beside those of all."""
    uneven: bool = False
    """Whether data, or stages by design, are uneven, so that an imbalance is true."""
    per_host: int = 8
    background: Fault | None = None
    amd: bool = False
    repeated: bool = False
    loading: int = 0
    """How many ranks load data, the first ones; 0 is all."""


def sizes(drawn: random.Random, *sizes: int, large: tuple[int, int] = (32, 64)) -> int:
    """One of some numbers of ranks; one job in eight is larger."""
    return drawn.choice(large) if drawn.random() < 0.12 else drawn.choice(sizes)


def fsdp1(drawn: random.Random, unit: float) -> Made:
    """FSDP1."""
    shape = Flat(
        layers=drawn.choice([4, 6]),
        unit=unit,
        parameters=drawn.choice([10, 25, 50]) * MILLION,
        micro=drawn.choice([1, 2, 4]),
        ahead=drawn.random() < 0.3,
        limited=drawn.random() < 0.8,
        no_sync=drawn.random() < 0.5,
        recompute=drawn.random() < 0.4,
        clip_read=drawn.random() < 0.3,
        log=drawn.choice([1, 5]),
    )
    return Made(shape, sizes(drawn, 8, 16, 32))


def sharded(drawn: random.Random, unit: float, kind: type[ShardedKind]) -> ShardedKind:
    """FSDP2 of a kind."""
    return kind(
        layers=drawn.choice([4, 5]),
        unit=unit,
        parameters=drawn.choice([10, 25]) * MILLION,
        activations=4096 * 2048,
        micro=drawn.choice([1, 2, 3]),
        recompute=drawn.random() < 0.3,
        log=drawn.choice([1, 5, 10]),
        clip_read=drawn.random() < 0.3,
    )


def kept(drawn: random.Random, unit: float) -> Made:
    """FSDP2 whose parameters stay whole, or whose gradients wait."""
    shape = sharded(drawn, unit, Kept)
    whole, late = drawn.choice([(True, True), (True, False), (False, True)])
    return Made(replace(shape, kept=whole, late=late), sizes(drawn, 8, 16))


def offloaded(drawn: random.Random, unit: float) -> Made:
    """FSDP2 with its state on the host."""
    shape = replace(sharded(drawn, unit, Offloaded), micro=1)
    shape = replace(shape, update_us=drawn.choice([800.0, 2000.0]))
    return Made(shape, sizes(drawn, 8, 16), ("slow_pcie",))


def padded(drawn: random.Random, unit: float) -> Made:
    """FSDP2 whose ranks pad to lengths of their own."""
    return Made(replace(sharded(drawn, unit, Padded), documents=True), drawn.choice([8, 16]), uneven=True)


def small_pieces(drawn: random.Random, unit: float) -> Made:
    """ZeRO-3 with many small gathers."""
    shape = Small(
        layers=drawn.choice([4, 6]),
        unit=unit,
        parameters=drawn.choice([9, 18]) * MILLION,
        micro=drawn.choice([1, 2]),
        recompute=drawn.random() < 0.4,
        pieces=drawn.choice([7, 9]),
    )
    return Made(shape, sizes(drawn, 8, 16))


def overlapped(drawn: random.Random, unit: float) -> Made:
    """Megatron's distributed optimizer beside virtual stages."""
    tp, pp, dp = drawn.choice([(1, 4, 2), (2, 2, 4), (2, 4, 2), (1, 2, 8), (4, 4, 2)])
    shape = Overlapped(
        tp=tp,
        cp=1,
        pp=pp,
        chunks=2,
        micro=pp * drawn.choice([1, 2]),
        layers=1,
        unit=unit,
        parameters=drawn.choice([10, 20]) * MILLION,
        batched=drawn.random() < 0.3,
        buckets=drawn.choice([1, 2, 3]),
    )
    return Made(shape, tp * pp * dp, uneven=True, loading=tp * dp)


def megatron(
    drawn: random.Random, unit: float, kind: type[MegatronKind], meshes: list[tuple[int, int]]
) -> MegatronKind:
    """Megatron of a kind, with one of some sizes of tensor groups and pipelines."""
    tp, pp = drawn.choice(meshes)
    return kind(
        tp=tp,
        pp=pp,
        micro=min(8, drawn.choice([pp, 2 * pp]) if pp > 1 else drawn.choice([2, 4])),
        layers=2,
        unit=unit,
        activations=4096 * drawn.choice([1024, 2048]),
        parameters=drawn.choice([4, 10]) * MILLION,
        synchronous=drawn.random() < 0.4,
        overlap=drawn.random() < 0.6,
        shared_state=drawn.random() < 0.7,
        recompute=drawn.random() < 0.3,
        logit=drawn.choice([0.3, 0.6]),
    )


def meshed(made: Megatron, world: int, **more: object) -> Made:
    """A shape of Megatron with so many ranks, of which the first stage's load data."""
    return replace(Made(made, world, uneven=made.pp > 1, loading=world // made.pp), **more)  # type: ignore[arg-type]


def userbuffers(drawn: random.Random, unit: float) -> Made:
    """Megatron with tp_comm_overlap."""
    shape = megatron(drawn, unit, Userbuffers, [(4, 1), (8, 1), (4, 2), (2, 4), (8, 2)])
    return meshed(shape, drawn.choice([8, 16]) if shape.pp == 1 else 16, kinds=("slow_port",))


def asynchronous(drawn: random.Random, unit: float) -> Made:
    """torchtitan with asynchronous tensor parallelism."""
    shape = replace(sharded(drawn, unit, Asynchronous), tp=drawn.choice([2, 4, 8]), micro=1, layers=4)
    return Made(shape, 16, ("slow_port",))


def zero_bubble(drawn: random.Random, unit: float) -> Made:
    """torch's pipelining with backward passes in halves."""
    pp, dp = drawn.choice([(4, 2), (4, 4), (2, 4), (8, 2)])
    shape = ZeroBubble(
        tp=1,
        cp=1,
        pp=pp,
        chunks=1,
        micro=pp * drawn.choice([1, 2]),
        layers=2,
        unit=unit,
        parameters=drawn.choice([5, 10]) * MILLION,
        titan=True,
        batched=True,
        log=drawn.choice([1, 5]),
    )
    return Made(shape, pp * dp, uneven=True, loading=dp)


def tower(drawn: random.Random, unit: float) -> Made:
    """A first stage with a vision tower."""
    shape = megatron(drawn, unit, Tower, [(1, 4), (2, 4), (2, 4), (1, 2)])
    pictures = drawn.choice([(1.0, 1.0), (0.8, 1.2), (0.4, 1.6)])
    shape = replace(shape, depth=drawn.choice([3, 6]), pictures=pictures)
    return meshed(shape, shape.tp * shape.pp * drawn.choice([1, 2]), uneven=True)


def small_hosts(drawn: random.Random, unit: float) -> Made:
    """Hosts of four GPUs, or of sixteen."""
    per_host = drawn.choice([4, 4, 16])
    meshes = [(4, 2), (4, 4), (2, 4), (4, 4)] if per_host == 4 else [(8, 2), (8, 4)]
    shape = megatron(drawn, unit, Megatron, meshes)
    world = 32 if per_host == 16 else max(16, shape.tp * shape.pp)
    return meshed(shape, world, per_host=per_host)


def deep_experts(drawn: random.Random, unit: float) -> Made:
    """Experts whose tokens DeepEP sends."""
    shape = DeepExperts(
        ep=drawn.choice([4, 8, 8]),
        layers=drawn.choice([3, 4]),
        unit=unit,
        activations=4096 * 2048,
        parameters=10 * MILLION,
        micro=drawn.choice([1, 2]),
        uneven=drawn.choice([0.05, 0.2, 0.4]),
    )
    return Made(shape, drawn.choice([8, 16]), uneven=True)


def adapters(drawn: random.Random, unit: float) -> Made:
    """LoRA."""
    shape = Adapters(drawn.choice([4, 8]), unit, drawn.choice([1, 2, 4]), drawn.choice([1, 4]) * MILLION)
    return Made(shape, sizes(drawn, 8, 16, large=(64, 128)))


def unused(drawn: random.Random, unit: float) -> Made:
    """DDP that finds unused parameters."""
    dropped = drawn.choice([0.0, 0.0, 0.1])
    shape = Unused(drawn.choice([6, 10]), unit, drawn.choice([5, 15]) * MILLION, dropped)
    return Made(shape, sizes(drawn, 8, 16, large=(64, 128)), uneven=dropped > 0)


def synchronised(drawn: random.Random, _: float) -> Made:
    """SyncBatchNorm."""
    layers, unit = drawn.choice([20, 30]), drawn.uniform(40, 160)
    shape = Synchronised(layers, unit, 4 * MILLION, buffers=False, read_every=drawn.choice([0, 1]))
    return Made(shape, drawn.choice([8, 16]))


def compiled(drawn: random.Random, unit: float) -> Made:
    """torch.compile, with and without CUDA graphs."""
    graphs = drawn.random() < 0.6
    shape = Compiled(
        drawn.choice([4, 6]), unit, drawn.choice([5, 20]) * MILLION, graphs, drawn.choice([1, 2])
    )
    return Made(shape, sizes(drawn, 8, 16), ("compiling",))


def rocm(drawn: random.Random, unit: float) -> Made:
    """AMD's devices."""
    if drawn.random() < 0.5:
        return Made(sharded(drawn, unit, Sharded), sizes(drawn, 8, 16), amd=True)
    shape = megatron(drawn, unit, Megatron, [(2, 2), (4, 2), (2, 4)])
    return meshed(shape, 16, amd=True)


def repeated(drawn: random.Random, unit: float) -> Made:
    """A profiler that records twice."""
    if drawn.random() < 0.5:
        return Made(sharded(drawn, unit, Sharded), sizes(drawn, 8, 16), repeated=True)
    shape = Transformer(4, unit, drawn.choice([1, 2]), "norm", drawn.choice([1, 5]))
    return Made(shape, sizes(drawn, 8, 16), repeated=True)


SHAPES: dict[str, Callable[[random.Random, float], Made]] = {
    "fsdp1": fsdp1,
    "fsdp2_kept": kept,
    "fsdp2_offload": offloaded,
    "padded": padded,
    "zero3_small": small_pieces,
    "megatron_overlap": overlapped,
    "userbuffers": userbuffers,
    "async_tp": asynchronous,
    "zero_bubble": zero_bubble,
    "vision_tower": tower,
    "small_hosts": small_hosts,
    "deep_ep": deep_experts,
    "lora": adapters,
    "ddp_unused": unused,
    "sync_bn": synchronised,
    "compiled": compiled,
    "rocm": rocm,
    "repeated": repeated,
}
"""In the order in which seeds go through them."""

"""One made-up job: its layout, style, torch version and costs, drawn from a seed."""

from dataclasses import dataclass, field
from random import Random

from tests.localise.layout import Layout

US = 1_000
MS = 1_000_000
Version = tuple[int, int]


@dataclass(frozen=True)
class Costs:
    """Times of a healthy job in ns, sizes in elements."""

    layer: int
    tp_share: float
    message: int
    message_elements: int
    grad_layer: int
    gather_layer: int
    kernel_host: int
    comm_host: int
    contention: float
    capacity: int
    noise: float
    channels: int


@dataclass(frozen=True)
class Job:
    """A job and how it is recorded."""

    seed: int
    layout: Layout
    style: str
    torch: Version
    schedule: str
    chunks: int
    micro: int
    layers: int
    steps: int
    coarse: bool
    costs: Costs
    batched: bool = True
    fuse: bool = True
    wait_sends: bool = True
    device_sync: bool = False
    end_sync: bool = True
    sequence_parallel: bool = True
    lazy: bool = True
    """Whether communicators are made lazily: an unbatched pair then has one, and a stream, of its own."""
    queue: int = 100
    """GPU operations that a host can be ahead."""
    experts: bool = False
    hot: bool = False
    """Whether the same experts are liked in all steps."""
    documents: bool = False
    """Whether attention's work differs between micro-batches and replicas."""
    per_host: int = 8
    traits: frozenset[str] = field(default_factory=frozenset)
    """Habits of the recording: gpu_only, graphs, no_steps, shapes, gzip, …"""

    @property
    def stages(self) -> int:
        """Pipeline ranks."""
        return self.layout.size("pp")

    def has(self, trait: str) -> bool:
        """Whether the recording has this habit."""
        return trait in self.traits


VERSIONS: tuple[Version, ...] = (
    *((2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (2, 6)),
    *((2, 8), (2, 9), (2, 12), (2, 13), (2, 15)),
)
WORLDS = ((8, 16, 32, 64, 128, 256, 512), (30, 30, 20, 12, 4, 2, 1))
"""Numbers of ranks and how often they are drawn."""
HUGE = 128
"""Ranks beyond which a job has as few micro-batches as it has stages."""
UNEVEN = 0.1
"""Share of jobs whose documents are of uneven length, where nobody is to blame anyway."""
STYLES = ("megatron", "titan", "deepspeed", "ddp")


def draw(seed: int, world: int | None = None) -> Job:
    """A job from a seed; `world` bounds the number of ranks."""
    random = Random(seed * 7919 + 11)
    torch = random.choice(VERSIONS)
    style = random.choices(STYLES, (5, 4, 2, 1))[0]
    sizes = draw_sizes(random, style, world or random.choices(*WORLDS)[0])
    layout = Layout(tuple(draw_order(random, sizes)))
    stages, large = layout.size("pp"), layout.world > 32
    chunks = 2 if stages > 1 and style != "deepspeed" and random.random() < 0.25 and not large else 1
    schedule = "1f1b" if style == "deepspeed" or random.random() < 0.75 else "gpipe"
    micro = (
        stages * random.choice((1, 2) if large or chunks > 1 else (1, 2, 3))
        if stages > 1
        else random.choice((1, 2))
    )
    batched = style != "deepspeed" and random.random() < 0.7
    return Job(
        seed=seed,
        layout=layout,
        style=style,
        torch=torch,
        schedule=schedule,
        chunks=chunks,
        micro=min(micro, stages) if layout.world > HUGE else micro,
        layers=2 if large else random.choice((2, 3)),
        steps=random.choice((3, 4)) if large else random.choice((3, 4, 5)),
        coarse=large or random.random() < 0.5,
        costs=draw_costs(random),
        batched=batched,
        fuse=random.random() < 0.6,
        wait_sends=style != "titan" or random.random() < 0.3,
        device_sync=style == "megatron" and batched and random.random() < 0.4,
        end_sync=random.random() < 0.7,
        lazy=style in {"megatron", "deepspeed"} or torch < (2, 12),
        experts=style == "megatron" and layout.size("dpi") > 1 and random.random() < 0.3,
        documents=random.random() < UNEVEN,
        per_host=4 if layout.world <= 16 else 8,
        queue=random.choice((40, 100, 300)),
        sequence_parallel=random.random() < 0.6,
        traits=draw_traits(random, torch, stages),
    )


HABITS = {
    "gzip": 0.3,
    "shapes": 0.5,
    "flows": 0.3,
    "offsets": 0.8,
    "lost_args": 0.5,
    "nested": 0.5,
    "ragged": 0.12,
    "no_steps": 0.1,
    "captures": 0.08,
    "gpu_only": 0.07,
    "no_runtime": 0.02,
    "graphs": 0.3,
    "lane": 0.08,
    "cuda_sync": 0.25,
    "rocm": 0.1,
    "python_gc": 0.4,
    "rank_in_name": 0.06,
    "late_info": 0.2,
    "tight": 0.3,
}
"""Habits of recordings and how often they are drawn, where a job can have them."""


def draw_traits(random: Random, torch: Version, stages: int) -> frozenset[str]:
    """Habits that go together."""
    found = {name for name, odds in HABITS.items() if random.random() < odds}
    if stages > 1 or "gpu_only" in found:
        found.discard("graphs")
    if torch < (2, 4):
        found -= {"rocm", "cuda_sync"}
    if torch < (2, 9):
        found -= {"lane"}
    if "gpu_only" not in found:
        found -= {"no_runtime"}
    if torch >= (2, 3) and "gpu_only" not in found:
        found -= {"rank_in_name"}
    if "ragged" in found:
        found -= {"captures"}
    return frozenset(found)


def draw_sizes(random: Random, style: str, world: int) -> dict[str, int]:
    """Sizes of the axes whose product is `world`, as the style allows."""
    sizes = {"tp": 1, "cp": 1, "pp": 1, "dpi": 1, "dpo": 1}
    if style == "ddp":
        return sizes | {"dpi": world}
    left = world
    wanted = {"tp": (1, 2, 4), "pp": (1, 2, 4), "cp": (1, 1, 2)}
    if world > 64:
        wanted = {"tp": (4, 8), "pp": (2, 4, 8), "cp": (1, 2)}
    for axis, choices in ({"pp": (2, 4)} if style == "deepspeed" else wanted).items():
        fitting = [size for size in choices if left % size == 0 and size <= left]
        sizes[axis] = random.choice(fitting)
        left //= sizes[axis]
    inner = random.choice([size for size in (2, 4, 8) if left % size == 0 and size < left] or [left])
    sizes["dpi"] = inner if style in {"megatron", "titan"} and random.random() < 0.4 else left
    sizes["dpo"] = left // sizes["dpi"]
    return sizes


def draw_order(random: Random, sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Axes inner to outer: tp, cp, and dp inside or outside of pp."""
    order = ("tp", "cp", "pp", "dpi", "dpo") if random.random() < 0.5 else ("tp", "cp", "dpi", "dpo", "pp")
    return [(axis, sizes[axis]) for axis in order]


def draw_costs(random: Random) -> Costs:
    """Times and sizes of a plausible job."""
    layer = random.randint(1500, 6000) * US
    elements = random.choice((1 << 18, 1 << 20, 1 << 22, 1 << 24)) * random.choice((1, 2, 3))
    channels = random.choice((2, 4, 8))
    return Costs(
        layer=layer,
        tp_share=random.uniform(0.06, 0.2),
        message=30 * US + elements * 2 * MS // (25 << 20),
        message_elements=elements,
        grad_layer=int(layer * random.uniform(0.2, 0.8)),
        gather_layer=int(layer * random.uniform(0.15, 0.6)),
        kernel_host=random.randint(10, 25) * US,
        comm_host=random.randint(60, 140) * US,
        contention=random.uniform(0.05, 0.4),
        capacity=channels * (1 << 20),
        noise=random.uniform(0.002, 0.012),
        channels=channels,
    )

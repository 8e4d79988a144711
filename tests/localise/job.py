"""One made-up job: its layout, style, torch version and costs, drawn from a seed."""

from dataclasses import dataclass, field, replace
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
    hybrid: bool = False
    traits: frozenset[str] = field(default_factory=frozenset)
    """Habits of the recording: gpu_only, graphs, no_steps, shapes, gzip, …"""

    @property
    def stages(self) -> int:
        """Pipeline ranks."""
        return self.layout.size("pp")

    def has(self, trait: str) -> bool:
        """Whether the recording has this habit."""
        return trait in self.traits


VERSIONS: tuple[Version, ...] = ((2, 2), (2, 4), (2, 5), (2, 9), (2, 12), (2, 15))
STYLES = ("megatron", "titan", "deepspeed", "ddp")


def draw(seed: int, world: int | None = None) -> Job:
    """A job from a seed; `world` bounds the number of ranks."""
    random = Random(seed * 7919 + 11)
    torch = random.choice(VERSIONS)
    style = random.choices(STYLES, (5, 4, 2, 1))[0]
    sizes = draw_sizes(random, style, world or random.choices((8, 16, 32), (5, 4, 2))[0])
    layout = Layout(tuple(draw_order(random, sizes)))
    stages, large = layout.size("pp"), layout.world > 64
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
        micro=micro,
        layers=random.choice((2, 3)) if not large else 2,
        steps=random.choice((3, 4)) if large else random.choice((3, 4, 5)),
        coarse=large or random.random() < 0.5,
        costs=draw_costs(random),
        batched=batched,
        fuse=random.random() < 0.6,
        wait_sends=style != "titan" or random.random() < 0.3,
        device_sync=style == "megatron" and batched and random.random() < 0.4,
        end_sync=random.random() < 0.7,
        lazy=style in {"megatron", "deepspeed"} or torch < (2, 12),
        queue=random.choice((40, 100, 300)),
        sequence_parallel=random.random() < 0.6,
        traits=frozenset(
            name
            for name, odds in (
                ("gzip", 0.3),
                ("shapes", 0.5),
                ("flows", 0.4),
                ("offsets", 0.8),
                ("lost_args", 0.5),
            )
            if random.random() < odds
        ),
    )


def draw_sizes(random: Random, style: str, world: int) -> dict[str, int]:
    """Sizes of the axes whose product is `world`, as the style allows."""
    sizes = {"tp": 1, "cp": 1, "pp": 1, "dpi": 1, "dpo": 1}
    if style == "ddp":
        return sizes | {"dpi": world}
    left = world
    wanted = {"tp": (1, 2, 4), "pp": (1, 2, 4), "cp": (1, 1, 2)}
    for axis, choices in ({"pp": (2, 4)} if style == "deepspeed" else wanted).items():
        fitting = [size for size in choices if left % size == 0 and size <= left]
        sizes[axis] = random.choice(fitting)
        left //= sizes[axis]
    sizes["dpi"] = left
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


def with_world(job: Job, **changes: object) -> Job:
    """The job with some fields changed."""
    return replace(job, **changes)

"""Which case a seed is."""

from collections.abc import Callable
from random import Random

from tests.hang_shapes import fsdp, megatron
from tests.hang_shapes.calls import Program
from tests.hang_shapes.case import Case
from tests.hang_shapes.fault import FAULTS
from tests.hang_shapes.mesh import Groups, Mesh
from tests.hang_shapes.ring import Recorder
from tests.hang_shapes.writer import Job

CAUSES = (*FAULTS, "busy", "busy", "uneven")
SHAPES = ("megatron", "titan", "megatron", "ddp", "megatron", "hsdp")
LARGE = 29
"""Each so many cases a large job."""
MESSAGES_ONLY = {"link_pair", "skip_message", "swap"}
"""Causes that a job of one group cannot have."""
BASE_NS = 1_758_610_000_000_000_000
Sizes = tuple[tuple[str, int], ...]


def drawn_case(seed: int, asked: str | None = None) -> Case:
    """The case of a seed: causes take turns, so that each has about as many cases, unless one is asked for."""
    drawn = Random(seed * 7 + 5)
    cause = asked or CAUSES[seed % len(CAUSES)]
    shape = SHAPES[(seed // len(CAUSES) + seed) % len(SHAPES)]
    if cause in MESSAGES_ONLY:
        shape = "megatron"
    if cause == "uneven" and shape == "hsdp":
        shape = "titan"
    mesh = Mesh(
        tuple(sizes(shape, drawn, large=seed % LARGE == 0, piped=cause in MESSAGES_ONLY or cause == "uneven"))
    )
    job = drawn_job(seed, shape, mesh, drawn, short=cause == "uneven")
    maker, program = WAYS[shape]
    maker(job)
    if cause == "device_unseen":
        timing = False
    else:
        timing = cause in {"device_stuck", "link", "link_pair", "link_spared"} or drawn.random() < 0.4
    recorder = drawn_recorder(seed, drawn, timing=timing)
    depth = drawn.choice([25, 60, 150, 400])
    spread, drifted = drawn.choice([0.0, 200.0, 3000.0, 20000.0]), drawn.random() < 0.15
    return Case(seed, shape, cause, job, program, recorder, depth, spread, drifted)


WAYS: dict[str, tuple[Callable[[Job], None], Callable[[Job, int], Program]]] = {
    "megatron": (megatron.groups, megatron.program),
    "titan": (fsdp.groups, fsdp.program),
    "hsdp": (fsdp.groups, fsdp.program),
    "ddp": (fsdp.ddp_groups, fsdp.ddp_program),
}


def sizes(shape: str, drawn: Random, *, large: bool, piped: bool) -> Sizes:
    """A mesh."""
    pick = drawn.choice
    if shape == "ddp":
        return (("dp", pick([64, 128]) if large else pick([8, 16, 32])),)
    if shape == "titan":
        return (
            ("tp", pick([1, 2, 4, 8])),
            ("cp", pick([1, 1, 2])),
            ("dp", pick([16, 32] if large else [4, 8])),
        )
    if shape == "hsdp":
        tp, dp, rep = pick([1, 2, 4]), pick([8, 16] if large else [2, 4, 8]), pick([2, 4])
        return (("tp", tp), ("dp", dp), ("rep", rep))
    pp = pick([4, 8] if large else ([2, 3, 4] if piped else [1, 2, 4]))
    tp, cp = pick([2, 4, 8]) if large else pick([1, 2, 4]), pick([1, 1, 2])
    return (("tp", tp), ("cp", cp), ("dp", pick([4, 8]) if large else pick([2, 4])), ("pp", pp))


def drawn_job(seed: int, shape: str, mesh: Mesh, drawn: Random, *, short: bool) -> Job:
    """How a job works."""
    micro = drawn.choice([1, 2, 4]) if shape != "megatron" else mesh.size("pp") + drawn.choice([0, 1, 3])
    return Job(
        mesh=mesh,
        groups=Groups(mesh, hashed=shape in {"titan", "hsdp"} and drawn.random() < 0.6),
        steps=5 if mesh.world <= 64 else 4,
        micro_batches=max(micro, 2) if short else micro,
        layers=drawn.choice([1, 2]) if shape == "megatron" else drawn.choice([2, 3, 5]),
        hidden=drawn.choice([1024, 4096, 5120]),
        tokens=drawn.choice([2048, 4096, 8192]),
        batched=drawn.random() < 0.6,
        syncs=drawn.random() < 0.5,
        ring=drawn.random() < 0.5,
        dropless=drawn.random() < 0.35,
        coalesced=drawn.random() < 0.3,
        seed=seed,
        short=short_ranks(shape, mesh, drawn) if short else frozenset(),
    )


def short_ranks(shape: str, mesh: Mesh, drawn: Random) -> frozenset[int]:
    """Ranks that run a micro-batch less: a stage of a replica, or a replica."""
    fixed = {name: drawn.randrange(size) for name, size in mesh.axes if name in {"dp", "pp"}}
    return frozenset(rank for rank in range(mesh.world) if fixed.items() <= mesh.coords(rank).items())


def drawn_recorder(seed: int, drawn: Random, *, timing: bool) -> Recorder:
    """How dumps are recorded."""
    version = drawn.choice(
        [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (2, 7), (2, 9), (2, 9), (2, 10), (2, 10), (2, 10)]
    )
    return Recorder(
        version=version,
        timing=timing,
        capacity=drawn.choice([2000, 2000, 200, 60, 20]),
        began=drawn.random() < 0.3,
        bumped=version <= (2, 9) and drawn.random() < 0.4,
        frames=drawn.random() < 0.6,
        json=drawn.random() < 0.25,
        active=drawn.random() < 0.12,
        status=drawn.random() < 0.85,
        timeout_ms=drawn.choice([180000, 600000]),
        names=drawn.choice(["nccl_trace_rank_", "_dump_", "rank_", "fr_rank"]),
        seed=seed,
        base_ns=BASE_NS,
    )

"""Random jobs and captures, drawn from a seed: the variety that an analysis must cope with."""

from math import prod

import numpy as np

from tests.generator.mesh import Mesh
from tests.generator.spec import Capture, Job
from tracekit.axes import AXES

ORDERS = (AXES, ("tp", "cp", "dp", "pp"))
LIMITS = {"tp": 8, "cp": 4, "pp": 4, "dp": 16}


def draw_mesh(rng: np.random.Generator, world: int) -> Mesh:
    """A random factorisation of `world` over the four axes, at least two of them larger than one."""
    order = ORDERS[rng.integers(2)]
    while True:
        sizes = dict.fromkeys(AXES, 1)
        left = world
        while left > 1:
            sizes[AXES[rng.integers(4)]] *= 2
            left //= 2
        if all(sizes[a] <= LIMITS[a] for a in AXES) and sum(s > 1 for s in sizes.values()) >= 2:
            return Mesh(order, sizes)


def draw_job(rng: np.random.Generator, kind: str, world: int, steps: int, mesh: Mesh | None = None) -> Job:
    """A healthy job of `world` ranks that has whatever a fault of `kind` needs.

    One line a field keeps the draws in order; the length is that of `Job`.
    """
    mesh = mesh or draw_mesh(rng, world)
    stages = mesh.sizes["pp"]
    micro_batches = int(rng.choice([stages, 2 * stages] if stages > 1 else [1, 2, 4]))
    budget = 24 if world <= 16 else 10
    deepest = max(2, min(4, budget // micro_batches))
    layers = int(rng.integers(2, deepest + 1))
    light = kind == "healthy_slack" and stages >= 4 and rng.random() < 0.6
    if light:
        layers = max(layers, 3)
    per_stage = [layers] * stages
    if stages > 1:
        per_stage[0] -= 1
        per_stage[-1] -= 1
    layer_ns = float(rng.uniform(0.8e6, 2.5e6))
    union = mesh.sizes["cp"] > 1 and rng.random() < 0.6
    modes = ["exposed", "overlap"] + (["fsdp"] if stages == 1 else [])
    attention = rng.uniform(0.4, 0.6) if kind == "doc_imbalance" else rng.uniform(0.15, 0.45)
    return Job(
        mesh=mesh,
        micro_batches=micro_batches,
        layers=tuple(per_stage),
        steps=steps,
        schedule=str(rng.choice(["1f1b", "1f1b", "1f1b", "afab"])),
        p2p=str(rng.choice(["blocking", "async"])),
        eager=bool(rng.random() < 0.3),
        p2p_group=str(rng.choice(["pp", "pp", "world"])),
        dp_mode=str(rng.choice(modes)),
        dp_group="dp_cp" if union else "dp",
        grad_norm=str(rng.choice(["none", "world", "mp"])),
        tied_embedding=bool(stages > 1 and rng.random() < 0.3),
        loader=str(rng.choice(["all", "ends"])),
        loads_per_step=bool(rng.random() < 0.7),
        end_work="light_last" if light else "balanced",
        layer_ns=layer_ns,
        attention=float(attention),
        tp_ns=float(layer_ns * rng.uniform(0.01, 0.06)),
        cp_ns=float(layer_ns * rng.uniform(0.03, 0.10)),
        pp_ns=float(layer_ns * rng.uniform(0.03, 0.15)),
        dp_ns=float(layer_ns * rng.uniform(0.2, 0.8)),
        head_bias=float(rng.uniform(-0.005, 0.005)),
        host_ns=float(rng.uniform(6e3, 18e3)),
        load_ns=float(rng.uniform(1e5, 6e5)),
        jitter=float(rng.uniform(0.01, 0.05)),
        outliers=float(rng.choice([0.0, 0.0005, 0.002])),
        host_size=int(min(rng.choice([4, 8]), prod(mesh.sizes.values()) // 2)),
    )


def draw_capture(rng: np.random.Generator, job: Job, spared: frozenset[int]) -> Capture:
    """How the job is recorded. No rank in `spared` goes missing; the caller fills in the windows."""
    world = job.mesh.world
    hosts = np.arange(world) // job.host_size
    wild = rng.random() < 0.6
    spread, ppm = (1e9, 50e-6) if wild else (2e6, 1e-6)
    host_offset = rng.uniform(-spread, spread, hosts[-1] + 1)
    host_drift = rng.uniform(-ppm, ppm, hosts[-1] + 1)
    offsets = host_offset[hosts] + rng.uniform(-50e3, 50e3, world)
    style = str(rng.choice(["megatron", "torchtitan", "undefined", "empty"]))
    capture = Capture(
        offsets=[int(x) for x in offsets],
        drifts=[float(x) for x in host_drift[hosts]],
        windows=[],
        seq=bool(rng.random() < 0.5),
        pg_config=bool(rng.random() < 0.8),
        style=style,
        naming=str(rng.choice(["global", "local"])),
        names=int(rng.integers(5)),
        gz=bool(rng.random() < 0.3),
        base=bool(rng.random() < 0.7),
        metadata_last=bool(rng.random() < 0.25),
        cpu_first=bool(rng.random() < 0.5),
        nested_comms=bool(rng.random() < 0.4),
        host_name=bool(rng.random() < 0.5),
        step_spans_on_gpu=bool(rng.random() < 0.4),
    )
    others = [rank for rank in range(world) if rank not in spared]
    if others and rng.random() < 0.12:
        capture.missing.add(int(rng.choice(others)))
    if rng.random() < 0.12:
        floor = 0.8 if capture.cpu_first else 0.6
        for rank in rng.choice(world, size=int(rng.integers(1, 3)), replace=False):
            if int(rank) not in capture.missing:
                capture.truncated[int(rank)] = float(rng.uniform(floor, 0.97))
        # With neither a telling name nor metadata before the cut, nothing could say whose file it is.
        capture.metadata_last &= capture.names < 4
    return capture

"""Hand-made jobs with delays of several ranks at once, in turn or together, named by spans or not."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from tests.slowrank.events import Timeline, write_run
from tracekit.store import Run

LAYERS, LAYER_US, TRANSFER_US, PAUSE_US = 6, 1000.0, 100.0, 20.0
KERNELS = ("gemm", "flash_fwd_kernel", "norm")
SPANS = {"loader": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "collector": "Python GC"}
Struck = Mapping[int, Collection[int]]
"""The ranks that are late in a step."""


def delayed(
    folder: Path,
    world: int,
    struck: Struck,
    kind: str = "pause",
    *,
    us: float = 2000.0,
    steps: int = 6,
    seed: int = 0,
    jitter: float = 0.02,
    pause_us: float = PAUSE_US,
    length: Callable[[int], float] = lambda _step: 1.0,
    varied: Callable[[np.random.Generator], float] = lambda random: random.uniform(0.9, 1.1),
) -> tuple[Run, float]:
    """(the run, the mean step in µs) of data parallel ranks, which reduce behind each of some layers.

    `struck` ranks are late by `us`, `varied`: they pause, within a span where `kind` is of `SPANS`, run a
    long kernel (`kernel`), or all kernels are longer (`device`). Each kernel varies by `jitter`, hosts by pauses of
    `pause_us`; `length`: the factor of a step's kernels on all ranks.
    """
    random, lines = np.random.default_rng(seed), [Timeline(rank) for rank in range(world)]
    for step in range(steps):
        begins, slower = [line.at for line in lines], dict.fromkeys(range(world), length(step))
        for line in lines:
            late = us * varied(random) if line.rank in struck.get(step, ()) else 0.0
            if kind == "device":
                slower[line.rank] *= 1.0 + late / (LAYERS * LAYER_US)
            elif kind == "kernel" and late:
                line.compute(late, "gather")
            else:
                if kind in SPANS:
                    line._row(line.at, late + 15.0, "user_annotation", SPANS[kind])
                line.at += late
        for _ in range(LAYERS):
            handles = []
            for line in lines:
                line.at += random.exponential(pause_us)
                for name in KERNELS:
                    usual = LAYER_US / len(KERNELS) * slower[line.rank]
                    line.compute(usual * max(0.5, 1.0 + jitter * random.normal()), name)
                handles.append(line.post(0))
            end = max(handle[0] for handle in handles) + TRANSFER_US
            for line, handle in zip(lines, handles, strict=True):
                line.finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    run = write_run(folder, lines, {0: tuple(range(world))}, {0: "default_pg"}, world)
    return run, max(line.at for line in lines) / steps


def in_turn(world: int, share: int, steps: int = 6) -> dict[int, list[int]]:
    """Each step strikes the next `share` ranks."""
    return {step: [(step * share + n) % world for n in range(share)] for step in range(steps)}


def by_halves(world: int, steps: int = 6) -> dict[int, range]:
    """The upper half is late in odd steps, the lower half in the even ones behind the first."""
    half = world // 2
    return {step: range(half, world) if step % 2 else range(half) for step in range(1, steps)}

"""Hand-made jobs whose answer can be worked out on paper: layers of compute and collectives on a small mesh."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.slowrank.events import BLOCKS, Timeline, write_run
from tests.tables.rows import events
from tracekit.axes import AXES
from tracekit.case.case import Case, build
from tracekit.matching.match import match
from tracekit.mesh import Mesh, from_sizes
from tracekit.rank_events.operations import read_rank
from tracekit.steps.steps import CutStep, Steps
from tracekit.store import Run

LAYER_US, TRANSFER_US = 1000.0, 50.0


def grid(**sizes: int) -> Mesh:
    """A mesh in the default order."""
    return from_sizes(dict.fromkeys(AXES, 1) | sizes, AXES)


def job(
    folder: Path,
    mesh: Mesh,
    *,
    slow: Mapping[int, float] = {},
    slow_steps: Collection[int] | None = None,
    link: Mapping[tuple[int, ...], float] = {},
    lost: Collection[int] = (),
    accident: tuple[int, int | None, float] | None = None,
    steps: int = 5,
    layers: int = 3,
    jitter: float = 0.005,
    descs: str = "mesh_{}",
    sized: Mapping[str, object] = {},
    first: Mapping[str, object] | None = None,
    idle: Callable[[int, int], float] = lambda rank, step: 0.0,
    idle_before: int = 0,
    combined: Collection[tuple[str, ...]] = (),
    silent: Collection[str] = (),
    slower: Callable[[int, int], float] = lambda rank, step: 1.0,
    stays: Mapping[tuple[int, int], float] = {},
    work: Mapping[int, float] = {},
    grids: bool = True,
    skips: Collection[tuple[int, tuple[int, ...]]] = (),
    elements: Mapping[tuple[int, ...], int] = {},
) -> Run:
    """Each step: `layers` × for every axis (compute of 1 ms, all-reduce of 50 µs). `slow`: factor by rank;
    `link`: factor on the transfer of a group, by members; `lost`: ranks without a file; `accident`: (rank, step, µs) of
    one extra kernel before the first layer, in every step where the step is None; `sized`: sizes that kernels
    tell; `work`: the size of each kernel by rank, `grids`: whether it is recorded;
    `first`: those of the first layer, where calls take 50 µs whatever the `link`; `idle`: µs for which the
    device of a rank stands still before a layer of a step, `idle_before`; `combined`: axes of groups
    beside those of one axis, with a layer and an all-reduce each; `silent`: axes without communication; `slower`:
    factor by rank and step, beside `slow`; `stays`: µs that a rank stays in the first all-reduce of a step when the
    others have left it, by (rank, step); `skips`: (layer, members) of all-reduces that are not called;
    `elements`: those of a group's calls, by members."""
    axes = [*((d,) for d in mesh.order if mesh.sizes[d] > 1 and d not in silent), *combined]
    members = [(d, g) for d in axes for g in sorted({mesh.line(r, d) for r in mesh.coordinates})]
    number = {g: n for n, g in enumerate(members)}
    lines = [Timeline(r) for r in sorted(mesh.coordinates)]
    for step in range(steps):
        begins = [line.at for line in lines]
        if accident is not None and accident[1] in {None, step}:
            lines[accident[0]].compute(accident[2])
        for layer in range(layers):
            for line in lines:
                line.at += idle(line.rank, step) if layer == idle_before else 0.0
            for d in axes:
                handles = {}
                for line in lines:
                    noise = 1 + jitter * (((line.rank * 7 + step * 5 + layer * 3) % 11) / 5 - 1)
                    struck = slow_steps is None or step in slow_steps
                    factor = slower(line.rank, step) * (slow.get(line.rank, 1) if struck else 1)
                    size = work.get(line.rank, 1.0)
                    blocks = round(BLOCKS * size) if grids else None
                    line.compute(LAYER_US * noise * factor * size, grid=blocks)
                    if (layer, mesh.line(line.rank, d)) not in skips:
                        handles[line.rank] = line.post(number[d, mesh.line(line.rank, d)])
                for axis, group in members:
                    if axis == d and (layer, group) not in skips:
                        small = layer == 0 and first is not None
                        took = TRANSFER_US * (1 if small else link.get(group, 1))
                        end = max(handles[r][0] for r in group) + took
                        for r in group:
                            late = stays.get((r, step), 0.0) if layer == 0 and d == axes[0] else 0.0
                            many = dict.fromkeys(("in_nelems", "out_nelems"), elements.get(group))
                            told = {**sized, **(many if group in elements else {})}
                            lines[r].finish(handles[r], end + late, **(first if small else told))
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    kept = [line for line in lines if line.rank not in lost]
    return write_run(
        folder,
        kept,
        {n: g for (_, g), n in number.items()},
        {n: descs.format("_".join(d)) for (d, _), n in number.items()},
        mesh.world_size,
    )


def prepared(run: Run, mesh: Mesh, steps: Sequence[tuple[int, int]] | None = None) -> Case:
    """The case of `run` on a known mesh, with all its steps unless given."""
    return build(run, match([read_rank(run, r.rank) for r in run.ranks], run.groups), mesh, steps)


def recorded_until(run: Run, share: float) -> Run:
    """The same run with windows that end at a `share` of the last step, that of rank 0 later."""
    for record in run.ranks:
        path = run.folder / record.table
        rows = pq.read_table(path).to_pylist()
        marks = [r for r in rows if r["name"].startswith("ProfilerStep")]
        end = marks[-1]["ts"] + (share + 0.15 * (record.rank == 0)) * marks[-1]["dur"]
        pq.write_table(events([r for r in rows if r["ts"] + r["dur"] <= end or r in marks]), path)
    return run


def cut_at(steps: Steps, share: float) -> CutStep:
    """The last of `steps`, which windows cut at a share of it; nothing is known of what it lacks."""
    unknown = np.full(steps.own.shape, np.nan)
    return CutStep(steps.numbers[-1], share, np.full(steps.own.shape, -1), unknown, unknown)

"""Hand-made jobs of many windows whose course is known: hours lie between windows, steps are numbered again in each."""

from dataclasses import replace

import numpy as np

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US, grid

HOUR_US = 3_600e6
MESH = grid(tp=2, dp=2)


def windows(
    folder, count, pace=lambda rank, window: 1.0, *, mesh=MESH, hours=1.0, noise=0.003, seed=0, lost=(), clocks=(),
    names=tuple, steps=3, ascending=False,
):  # fmt: skip
    """A run of `count` windows: each step is two layers of (compute of 1 ms × `pace`, all-reduce of 50 µs) an axis.

    noise: of the whole step by window, and a tenth of it by rank. lost: (rank, window) without a file. clocks: µs by
    rank. names: of ranks, from the simulated to the written ones.
    """
    draw = np.random.default_rng([seed, 77])
    axes = [d for d in mesh.order if mesh.sizes[d] > 1]
    members = [(d, g) for d in axes for g in sorted({mesh.line(r, [d]) for r in mesh.coordinates})]
    number = {g: n for n, (_, g) in enumerate(members)}
    ranks = sorted(mesh.coordinates)
    lines, begins = {r: Timeline(r) for r in ranks}, {r: [] for r in ranks}
    for window in range(count):
        common = 1 + noise * draw.normal()
        own = {r: 1 + noise / 10 * draw.normal() for r in ranks}
        kept = {r: len(lines[r].rows) for r in ranks}
        for r in ranks:
            lines[r].at = window * hours * HOUR_US + 1e6
        for step in range(steps):
            started = {r: lines[r].at for r in ranks}
            for _layer in range(2):
                for d in axes:
                    for r in ranks:
                        lines[r].compute(LAYER_US * pace(r, window) * common * own[r])
                    posts = {r: lines[r].post(number[mesh.line(r, [d])]) for r in ranks}
                    for axis, group in members:
                        if axis == d:
                            end = max(posts[r][0] for r in group) + TRANSFER_US
                            for r in group:
                                lines[r].finish(posts[r], end)
            for r in ranks:
                lines[r].step(step + (100 * window if ascending else 0), started[r])
        for r in ranks:
            if (r, window) in lost:
                del lines[r].rows[kept[r] :]
            else:
                begins[r].append(lines[r].rows[kept[r]]["ts"])
    for r in ranks:
        shift = round(1000 * (clocks[r] if len(clocks) else 0))
        lines[r].rows = [row | {"ts": row["ts"] + shift} for row in lines[r].rows]
        begins[r] = [b + shift for b in begins[r]]
    folder.mkdir(parents=True, exist_ok=True)
    made = write_run(
        folder,
        [lines[r] for r in ranks if lines[r].rows],
        {n: g for g, n in number.items()},
        {number[g]: f"mesh_{d}" for d, g in members},
        mesh.world_size,
    )
    records = [
        replace(r, windows=tuple(begins[r.rank]) if len(begins[r.rank]) > 1 else ()) for r in made.ranks
    ]
    return replace(made, ranks=tuple(records))

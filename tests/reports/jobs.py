"""Kineto traces of a small job, from what each rank does in a step.

A body is a function of one rank (`tests.shapes.rank.Rank`), the job and the number of the step; it launches kernels,
calls collectives and stalls the host. `traced` runs all ranks' steps and writes a trace for each as torch's profiler
does.
"""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.shapes.case import Case, Made, Shape, run, save
from tests.shapes.job import Job
from tests.shapes.layers import head_and_loss, layer, load, update
from tests.shapes.rank import Rank
from tests.shapes.setting import Habits

Body = Callable[[Job, Rank, int], None]
HABITS = Habits(shapes=False, stack=False, host=True, packed=True, device_spans=True, names="titan")
UNIT = 220.0
"""A layer's work, in µs."""


@dataclass(frozen=True)
class Told:
    """A program that calls `body` for each rank and step."""

    body: Body

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        for rank in job.ranks:
            for number in steps:
                with rank.step(number):
                    self.body(job, rank, number)


def traced(
    folder: Path,
    world: int,
    body: Body | Shape,
    *,
    steps: int = 6,
    recorded: Sequence[int] | None = None,
    habits: Habits = HABITS,
    seed: int = 5,
    per_host: int = 8,
    cycles: Sequence[tuple[int, ...]] = (),
    torch: tuple[int, int] = (2, 7),
) -> None:
    """Run the job and write the traces of the recorded ranks into the folder."""
    shape = Told(body) if callable(body) else body
    first = 4
    case = Case(
        seed=seed,
        name="report",
        shape=shape,
        world=world,
        torch=torch,
        steps=tuple(range(first, first + steps)),
        fault=None,
        noise=0.01,
        host_us=6.0,
        contention=1.05,
        habits=habits,
        recorded=tuple(range(world) if recorded is None else recorded),
        per_host=per_host,
        cycles=tuple(cycles),
    )
    job = run(case)
    save(Made(case, job, job.step_us(1), job.step_us(1)), folder)


def stall(rank: Rank, milliseconds: float) -> None:
    """The host does something else."""
    rank.host(milliseconds * 1000.0, exact=True)


def forward(rank: Rank, layers: int = 6, *, unit: float = UNIT, length: float = 1.0) -> None:
    """The forward pass and the loss."""
    for _ in range(layers):
        layer(rank, unit, length)
    head_and_loss(rank, unit * 2, unit * 0.4)


def backward(
    job: Job, rank: Rank, layers: int = 6, *, unit: float = UNIT, length: float = 1.0, bucket: int = 8 * 10**6
) -> None:
    """The backward pass; `bucket` elements are reduced behind every second layer, none if it is 0."""
    with rank.autograd():
        reduced = []
        for place in range(layers):
            layer(rank, unit, length, backward=True)
            if bucket and place % 2 == 1:
                reduced.append(rank.collective(job.world, "allreduce", bucket, bucket, "Float", waited=False))
        rank.wait(*reduced)


def whole_step(job: Job, rank: Rank, *, data_ms: float = 0.0, **more: float) -> None:
    """A DDP step: batch, forward, backward, update; the loader takes `data_ms` longer than usual."""
    load(rank, 120.0 + 1000.0 * data_ms)
    forward(rank, **{key: more[key] for key in ("unit", "length") if key in more})  # type: ignore[arg-type]
    backward(job, rank, **more)  # type: ignore[arg-type]
    update(rank, UNIT * 2)


def without(folder: Path, *categories: str, key: str = "") -> None:
    """Take events of these categories, or a key at the top, out of each trace of a folder, and unpack it."""
    for path in sorted(folder.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        if key:
            document.pop(key, None)
        events = document["traceEvents"]
        document["traceEvents"] = [event for event in events if event.get("cat") not in categories]
        path.with_suffix("").write_text(json.dumps(document))
        path.unlink()

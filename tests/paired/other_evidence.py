"""Jobs whose evidence is not one trace a rank: dumps, operation tables, an unknown mesh, few recorded ranks."""

import gzip
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hang.timed import dumps_of
from tests.simulate.case import setup_of, written
from tests.what_if.tables import replicas, stages
from tracekit.ingest import load

MESH: Final = {"tp": 2, "pp": 2, "dp": 3}
SLOW: Final = 5  # the rank that a fault strikes: second stage of the first replicas
NAMES: Final = (
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Global rank start", "Global rank stride",
)  # fmt: skip
FAULTS: Final = {
    "healthy": (),
    "slow_compute": (f"slow_compute:rank={SLOW},factor=1.4",),
    "in_one_step": (f"slow_compute:rank={SLOW},factor=1.6,steps=2:3",),
    "launch_bound": (f"launch_bound:rank={SLOW}",),
    "pauses": (f"pauses:rank={SLOW}",),
    "slow_link": (f"slow_link:rank={SLOW}",),
    "long_stage": (f"long_stage:rank={SLOW},factor=1.4",),
}
POLLS_NS: Final = {"dumps": 0, "polled": 100_000_000}
"""Forms of dumps, by the time between two looks of the watchdog at a call; with 0 it notes exact times."""
Told = tuple[tuple[int, ...], float, bool, bool, bool]
"""Culprits, slowdown, whether one is recorded, whether an imbalance is true, whether a link is slow."""


def simulated(fault: str, shown: str, folder: Path) -> Told:
    """Write a simulated job as `shown`: dumps, or traces without names of groups, or of some ranks."""
    setup, config = setup_of(MESH, *FAULTS[fault], steps=4)
    world = setup.grid.world
    ranks = {"half": range(0, world, 2), "without": sorted({*range(world)} - {SLOW}), "two": (4, SLOW)}.get(
        shown
    )
    whole = folder.parent / "whole"
    outcome = written(whole, setup, config, ranks=ranks)
    if shown in POLLS_NS:
        folder.mkdir()
        for rank, dump in dumps_of(load([str(whole / "trace")], jobs=1), POLLS_NS[shown]).items():
            (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump))
    else:
        (whole / "trace").rename(folder)
    if shown in ("nameless", "two"):
        _forget_groups(folder)
    slowdown = outcome.summary.mean_step_ms / (outcome.healthy or outcome.summary).mean_step_ms
    culprits = () if fault in ("healthy", "long_stage") else (SLOW,)
    recorded = ranks is None or not culprits or bool({*culprits} & {*ranks})
    return culprits, slowdown, recorded, fault == "long_stage", fault == "slow_link"


def _forget_groups(folder: Path) -> None:
    """Take all names and members of groups out of traces."""
    for path in folder.rglob("*.json*"):
        opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:
            trace = json.load(file)
        trace.get("distributedInfo", {}).pop("pg_config", None)
        trace.get("distributedInfo", {}).pop("world_size", None)
        for event in trace["traceEvents"]:
            for name in NAMES:
                event.get("args", {}).pop(name, None)
        with opened(path, "wt") as file:
            json.dump(trace, file)


def _dealt(step: int, dp: int, batch: int) -> float:
    return 1.0 + 0.3 * ((7 * step + 3 * dp + 2 * batch * batch) % 11 - 5) / 5


def tabled(rows: list[dict[str, Any]], told: Told, folder: Path) -> Told:
    """Write an operation table."""
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    return told


def _unexplained() -> list[dict[str, Any]]:
    rows = stages(steps=6, dp=4)
    for n, row in enumerate(rows):
        row["duration"] *= 1.5 if row["optype"].endswith("compute") and n * 7919 % 5 == 0 else 1
    return rows


def _noisy() -> list[dict[str, Any]]:
    lots = Random(0)
    return stages(dp=4, pp=1, steps=10, need=lambda *_: lots.uniform(0.4, 1.6))


NOBODY: Final[Told] = ((), 1.0, True, False, False)
UNEVEN: Final[Told] = ((), 1.0, True, True, False)
KINDS: Final[tuple[tuple[str, Callable[[Path], Told]], ...]] = (
    *((f"{shown} {fault}", partial(simulated, fault, shown))
      for shown in ("dumps", "polled", "nameless", "two", "half", "without") for fault in FAULTS),
    ("table healthy", partial(tabled, stages(), NOBODY)),
    ("table slow worker", partial(tabled, replicas([1, 2, 1, 1]), ((1,), 140 / 80, True, False, False))),
    ("table slow link", partial(tabled, stages(scatter={1: 10}), ((2, 3), 186 / 141, True, False, True))),
    ("table uneven", partial(tabled, stages(steps=6, dp=4, need=_dealt), UNEVEN)),
    ("table slow and uneven",
     partial(tabled, stages(steps=6, dp=4, need=_dealt, slow={(1, 2): 1.8}), ((9,), 1.5, True, True, False))),
    ("table unexplained", partial(tabled, _unexplained(), UNEVEN)),
    ("table noisy", partial(tabled, _noisy(), UNEVEN)),
    ("table idle", partial(tabled, replicas([1, 1, 1, 1], gap=0.01), NOBODY)),
    ("table one step", partial(tabled, replicas([1, 1.2, 1, 1], steps=1), ((1,), 1.15, True, False, False))),
    ("table of four", partial(tabled, stages(dp=4, slow={(1, 2): 1.3}), ((9,), 1.28, True, False, False))),
)  # fmt: skip
"""(name, function that writes the job into a folder and returns its truth), by seed."""

"""One cell: faults as strong as asked, planted into a small simulated job, and what `slowrank` answers."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tracekit
from reftrain.config.fault_spec import FaultSpec, parse_fault
from reftrain.simulate.runner import simulate
from reftrain.simulate.setup import Setup
from reftrain.simulate.summary import summarise
from tests.simulate.case import setup_of, written

HEALTHY: tuple[tuple[dict[str, int], dict[str, Any]], ...] = (
    ({"dp": 16}, {}),
    ({"tp": 4, "dp": 4}, {}),
    ({"cp": 4, "dp": 3}, {}),
    ({"pp": 4, "dp": 4}, {}),
    ({"tp": 2, "pp": 3, "dp": 2}, {}),
    ({"tp": 2, "pp": 2, "dp": 4}, {"schedule": "interleaved", "virtual": 2}),
    ({"pp": 4, "dp": 3}, {"schedule": "gpipe"}),
    ({"tp": 2, "pp": 2, "dp": 3}, {"tables": {"optimizer": {"offload": True}}}),
)
"""Shapes of jobs without a fault: meshes, schedules, and an offloaded optimizer."""
MESHES = ({"tp": 2, "pp": 2, "dp": 4}, {"tp": 2, "cp": 2, "dp": 3}, {"tp": 2, "pp": 3, "dp": 2})
STEPS = 4
CLOSE = 0.02
"""A strength is good enough where it slows the step by what is asked, up to this share of it."""
COSTS = 0.02
"""A fault whose removal alone gains less than this share of the step hides behind another."""


SHORT_KERNELS: Mapping[str, object] = {"dim": 2048, "ffn_dim": 5504}
MANY_BATCHES = 16
LAUNCH_US = 15.0
"""Time of an operator in eager Python: with short kernels, a host works for a third of the step, twenty time slices."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault: text with its strength left open, the cause, a first strength and the one that does nothing."""

    text: str
    cause: str
    first: float
    none: float = 0.0
    verdict: str = "slow_rank"
    needs: str = ""  # an axis that the mesh must split
    fault: str = ""  # the kind of `reftrain simulate --fault`, where it has another name
    hosts_matter: bool = False  # whether its jobs have short kernels and hosts that launch as slowly
    ranks: bool = True  # whether it strikes one rank
    node_size: int = 0  # ranks of a host, where the fault lies between hosts
    of_rail: bool = False  # whether it strikes all ranks of the same number on their hosts
    of_host: bool = False  # whether it strikes all ranks of a host

    def strikes(self, rank: int, other: int) -> bool:
        """Return whether a fault that is planted at `rank` slows `other`."""
        if self.of_rail:
            return other % self.node_size == rank % self.node_size
        return other // self.node_size == rank // self.node_size if self.of_host else other == rank


KINDS = {
    "slow_compute": Kind("factor={}", "gpu_compute", 1.3, 1.0),
    "launch_bound": Kind("delay_us={}", "cpu_launch", 500),
    "pauses": Kind("pause_ms={},every=100", "host_stall", 50),
    "late_data": Kind("delay_ms={}", "dataloader", 50),
    "slow_link": Kind("delay_ms={}", "network", 1, verdict="slow_link"),
    "slow_send": Kind("delay_ms={}", "network", 1, verdict="slow_link", needs="pp", node_size=2),
    "slow_rail": Kind(
        "delay_ms={}", "network", 1, verdict="slow_link", needs="pp", node_size=2, of_rail=True
    ),
    "slow_switch": Kind(
        "delay_ms={},hosts=1", "network", 1, verdict="slow_link", needs="pp", node_size=2, of_host=True
    ),
    "slow_host_link": Kind("delay_ms={}", "host_copies", 20),
    "allocator_retries": Kind("retry_ms={},every=100", "memory", 50),
    "cpu_contention": Kind("wait_ms={}", "cpu_contention", 3, needs="pp", hosts_matter=True),
    "doc_imbalance": Kind("factor={}", "data_imbalance", 3, 1.0, "imbalance", ranks=False),
    "long_replica": Kind("factor={}", "data_imbalance", 3, 1.0, "imbalance", fault="doc_imbalance"),
    "long_stage": Kind("factor={}", "stage_imbalance", 1.3, 1.0, "imbalance", "pp"),
    "checkpoint": Kind("save_ms={},steps=2", "", 500, verdict="healthy"),
    "evaluation": Kind("evaluate_ms={},steps=2", "", 500, verdict="healthy", ranks=False),
    "lone_evaluation": Kind("evaluate_ms={},steps=2", "", 500, verdict="healthy", fault="evaluation"),
}
"""Every kind that `reftrain simulate --fault` takes and that ends no job, but for paces of a clock.

A checkpoint and an evaluation are of one step: no rank is to blame for them.
"""
PAIRS = (
    *(
        ("slow_compute", other)
        for other in ("launch_bound", "pauses", "late_data", "slow_link", "long_stage")
    ),
    *(("slow_compute", "doc_imbalance"), ("pauses", "slow_link"), ("late_data", "pauses")),
    *(("launch_bound", "slow_link"), ("slow_host_link", "slow_compute")),
)


@dataclass(frozen=True)
class Cell:
    """Faults of these kinds: each alone slows the step by `severity`; `seed` draws mesh, ranks and jitter.

    Without kinds it is a healthy job of one of the shapes `HEALTHY`.
    """

    kinds: tuple[str, ...]
    severity: float
    seed: int
    layers: int = 12

    def setups(self) -> tuple[Setup, Any]:
        """Return the job without a fault, and its configuration."""
        fits = [m for m in MESHES if all(not KINDS[k].needs or KINDS[k].needs in m for k in self.kinds)]
        tables: dict[str, dict[str, object]] = {"model": {"layers": self.layers}}
        if not self.kinds:
            mesh, shape = HEALTHY[self.seed % len(HEALTHY)]
            shape = {**shape, "tables": {**tables, **shape.get("tables", {})}}
            return setup_of(mesh, steps=STEPS, merge=False, seed=self.seed + 11, **shape)
        if "slow_host_link" in self.kinds:
            tables["optimizer"] = {"offload": True}
        shape: dict[str, Any] = {}
        if hosts_matter := any(KINDS[kind].hosts_matter for kind in self.kinds):
            tables |= {"model": {**tables["model"], **SHORT_KERNELS}, "data": {"seq_len": 2048}}
            shape = {"micro_batches": MANY_BATCHES}
        mesh = fits[self.seed % len(fits)]
        setup, config = setup_of(mesh, steps=STEPS, tables=tables, merge=False, seed=self.seed + 11, **shape)
        if node_size := max(KINDS[kind].node_size for kind in self.kinds):
            setup = replace(setup, hardware=replace(setup.hardware, node_size=node_size))
        if hosts_matter:
            host = replace(setup.hardware.host, launch_us=LAUNCH_US)
            setup = replace(setup, hardware=replace(setup.hardware, host=host))
        return setup, config

    def ranks(self, world: int) -> list[int]:
        """Return a rank for each fault."""
        drawn = np.random.default_rng([self.seed, *(ord(k[0]) + len(k) for k in self.kinds)])
        return [int(rank) for rank in drawn.choice(world, len(self.kinds), replace=False)]


def step_ms(setup: Setup, faults: Sequence[FaultSpec] = ()) -> float:
    """Return the mean step of the job with these faults, ms."""
    return summarise(simulate(replace(setup, faults=tuple(faults)))).mean_step_ms


def planted(setup: Setup, name: str, rank: int, severity: float) -> FaultSpec | None:
    """Return the fault that alone slows the step by `severity`; None where no strength does."""
    kind = KINDS[name]
    fault = kind.fault or name
    where = f"rank={rank}," if kind.ranks else ""
    clean = step_ms(setup)

    def made(strength: float) -> FaultSpec:
        return parse_fault(f"{fault}:{where}{kind.text.format(strength)}", setup.grid.world)

    def costs(strength: float) -> float:
        return step_ms(setup, [made(strength)]) / clean - 1

    low, high = kind.none, kind.first
    while costs(high) < severity:
        low, high = high, kind.none + 2 * (high - kind.none)
        if high > 1000 * kind.first:
            return None
    while True:
        middle = (low + high) / 2
        cost = costs(middle)
        if abs(cost - severity) <= CLOSE * severity or high - low < 1e-4 * high:
            return made(middle)
        low, high = (middle, high) if cost < severity else (low, middle)


def row_of(cell: Cell) -> dict[str, Any]:
    """Return the truth of a cell, the answer, and its worth (`judged`); all times ms a step."""
    setup, config = cell.setups()
    ranks = cell.ranks(setup.grid.world)
    made = [planted(setup, k, r, cell.severity) for k, r in zip(cell.kinds, ranks, strict=True)]
    row: dict[str, Any] = {"kinds": cell.kinds, "severity": cell.severity, "seed": cell.seed, "ranks": ranks}
    faults = tuple(fault for fault in made if fault is not None)
    if len(faults) < len(made):
        return row | {"worth": "not planted"}
    struck = step_ms(setup, faults)
    others = [step_ms(setup, [f for f in faults if f is not fault]) for fault in faults]
    with tempfile.TemporaryDirectory(prefix="causes-") as folder:
        written(Path(folder), replace(setup, faults=faults), config, detail="kernels")
        finding = tracekit.slowrank(tracekit.load([str(Path(folder) / "trace")]))
    row |= {
        "faults": [fault.to_json() for fault in faults],
        "step_ms": struck,
        "gains_ms": [struck - other for other in others],
        "verdict": finding.verdict,
        "cause": finding.cause,
        "suspects": [
            [s.rank, s.cause, s.lost_ms_per_step, s.lost_ms_low, s.lost_ms_high] for s in finding.suspects
        ],
        "cures": [[cure.cause, cure.ranks] for cure in finding.cures],
        "promised_ms": finding.what_if.step_ms - finding.what_if.without_suspects_ms,
        "reason": finding.reason,
    }
    return row | {"worth": judged(row)}


def judged(row: dict[str, Any]) -> str:
    """Return what an answer is worth: right, open, missed, wrong rank or wrong cause; of several faults, of the first.

    A job that is healthy, or with work of one step that is no fault, is right, open or a false alarm.

    Of an imbalance no rank is asked for. The first answer is right where one of the faults has its rank and cause. A
    slow rail or switch strikes ranks beside the one that names it; each transfer that it delays has an end on it.
    """
    harmless = all(KINDS[kind].verdict == "healthy" for kind in row["kinds"])
    if harmless and row["verdict"] != "inconclusive":
        return "right" if row["verdict"] == "healthy" else "false alarm"
    if row["verdict"] in {"healthy", "inconclusive"}:
        return "missed" if row["verdict"] == "healthy" else "open"
    if row["cause"] == "unknown":
        return "open"
    first = row["suspects"][0] if row["suspects"] else [None, row["cause"]]
    named = {s[0] for s in row["suspects"]} if row["verdict"] == "slow_link" else {first[0]}
    causes = [KINDS[name].cause for name in row["kinds"]]
    for name, cause, rank in zip(row["kinds"], causes, row["ranks"], strict=True):
        kind = KINDS[name]
        struck = kind.verdict == "imbalance" or any(kind.strikes(rank, other) for other in named)
        if row["cause"] == cause and struck:
            return "right"
    return "wrong rank" if row["cause"] in causes else "wrong cause"

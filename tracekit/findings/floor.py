"""The answer of `tracekit floor` as data (contract `tracekit.floor/1`); parts are integer ns, steps are ms.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tracekit.findings.shared import (
    Columns,
    Coverage,
    MeshFinding,
    Quality,
    RankCoverage,
    Row,
    StepsFinding,
    Tabular,
)

LimitName = Literal["no_waiting", "hidden_communication", "best_kernels", "roofline", "plan"]
"""What the step is compared with, in the order of the answer."""


@dataclass(frozen=True)
class FloorPart:
    """One part of the step; the parts add up to it.

    part: `bubble`, `tp transfer`, `tp either` and so on by axis, `imbalance`, `allocator_calls`, `launch_gaps`, `idle`,
    `small_kernels`, `slow_kernels`, `recomputation`, `unknown`, then `other_work` and `model` (the model's FLOPs at
    peak), or `compute` (all compute that no other part holds) without FLOPs or peak. ns: summed over all steps of all
    ranks. brings_ms: what the step saves at most without the part; None for work that has to be done, and for what is
    unknown.
    """

    part: str
    ns: int
    mean_ms: float
    share: float
    brings_ms: float | None
    remedy: str


@dataclass(frozen=True)
class FloorUnknown:
    """A part that the evidence does not show: its time is inside the part `inside`, and `needs` says what shows it."""

    part: str
    inside: str
    needs: str


@dataclass(frozen=True)
class FloorLimit:
    """The step under one assumption, ms; `needs` says what is missing where `step_ms` is None."""

    limit: LimitName
    meaning: str
    step_ms: float | None
    needs: str = ""


@dataclass(frozen=True)
class KernelClass:
    """One class of kernel on the ranks of one stage: mean time a step, and that of the rank that runs it fastest; ms.

    On a CPU trace these are operators. calls: a step. lost_ms: mean over ranks and steps of the time beyond the best.
    """

    name: str
    stage: int
    calls: int
    mean_ms: float
    best_ms: float
    best_rank: int
    lost_ms: float


@dataclass(frozen=True)
class FloorFinding(Tabular):
    """The answer of `tracekit floor`.

    step_ms: mean over ranks and analysed steps. residual_ms: the error of the model that prices the parts. cells: steps
    of ranks. total_ns: their sum, to which the parts add up. flops: of the model, a step of the whole job;
    flops_from: given, or shapes of recorded products. peak_tflops: of one device, dense 16-bit; peak_from: given, or
    by the name of the device in the traces. device: that name. mfu: FLOPs over what all devices could compute in the
    step. These six are None where not known.
    """

    ranks: RankCoverage
    mesh: MeshFinding
    steps: StepsFinding
    step_ms: float
    residual_ms: float
    cells: int
    total_ns: int
    flops: float | None
    flops_from: Literal["given", "shapes"] | None
    peak_tflops: float | None
    peak_from: Literal["given", "device"] | None
    device: str | None
    mfu: float | None
    parts: tuple[FloorPart, ...]
    unknown: tuple[FloorUnknown, ...]
    limits: tuple[FloorLimit, ...]
    kernels: tuple[KernelClass, ...]
    coverage: Coverage
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def columns(self) -> Columns:
        """A part a row; `ns` adds up to `total_ns`."""
        return {
            "part": "string", "ns": "int64", "mean_ms": "double", "share": "double", "brings_ms": "double",
            "remedy": "string",
        }  # fmt: skip

    def rows(self) -> Iterator[Row]:
        """The parts, in the order of the waterfall."""
        for p in self.parts:
            yield p.part, p.ns, p.mean_ms, p.share, p.brings_ms, p.remedy

    def headline(self) -> str:
        """The recorded step and what it achieves."""
        return f"a step takes {self.step_ms:.1f} ms" + (self.reached and f", {self.reached}")

    @property
    def reached(self) -> str:
        """The MFU in words; empty where it is not known."""
        shown = "" if self.mfu is None else f"{self.mfu:.1%} of peak (MFU)"
        return f"less than 0.1{shown[3:]}" if shown.startswith("0.0%") else shown

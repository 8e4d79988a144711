"""The answer of `tracekit diff` as data (contract `tracekit.diff/1`); times are ns.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tracekit.findings.shared import Columns, MeshFinding, Quality, RankCoverage, Row, StepsFinding, Tabular

DiffVerdict = Literal["slower", "faster", "unchanged", "inconclusive"]
"""How the step of the second run is beside that of the first; `inconclusive` never means unchanged."""
ChangeKind = Literal["step", "part", "rank", "kernel"]


@dataclass(frozen=True)
class Change:
    """One quantity in both runs: medians over steps, ns.

    what: `step`, a part of it (`tp waiting`), `rank 5` (its own time: compute, host and idle), a kernel's name. All but
    ranks are means over ranks; a kernel counts with all its calls in a step. p: two-sided, of the test of Mann and
    Whitney over steps; None where a run has fewer than three. proven: significant among all changes of its kind
    (false discovery rate).
    """

    kind: ChangeKind
    what: str
    before_ns: float
    after_ns: float
    p: float | None
    proven: bool

    @property
    def change_ns(self) -> float:
        """How much longer the second run is."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True)
class ComparedRun:
    """What of one run was compared."""

    ranks: RankCoverage
    mesh: MeshFinding
    steps: StepsFinding
    quality: tuple[Quality, ...] = ()


@dataclass(frozen=True)
class DiffFinding(Tabular):
    """The answer of `tracekit diff`.

    low_ns, high_ns: between which the change of the step lies. parts, ranks, kernels: the largest change first; ranks
    is empty where the meshes differ, kernels on a CPU. compared: places of the mesh that both runs recorded.
    """

    before: ComparedRun
    after: ComparedRun
    verdict: DiffVerdict
    reason: str
    step: Change
    low_ns: float
    high_ns: float
    parts: tuple[Change, ...]
    ranks: tuple[Change, ...]
    kernels: tuple[Change, ...]
    compared: int
    to_decide: str | None = None
    notes: tuple[str, ...] = field(default=())

    def columns(self) -> Columns:
        """A change a row."""
        times = ("before_ns", "after_ns", "change_ns", "p")
        return {"kind": "string", "what": "string", **dict.fromkeys(times, "double"), "proven": "bool"}

    def rows(self) -> Iterator[Row]:
        """The step, then parts, ranks and kernels."""
        for c in (self.step, *self.parts, *self.ranks, *self.kernels):
            yield c.kind, c.what, c.before_ns, c.after_ns, c.change_ns, c.p, c.proven

    def headline(self) -> str:
        """The verdict and why."""
        return f"{self.verdict}: {self.reason}"

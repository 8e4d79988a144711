"""Why a suspect works longer than its peers, where the evidence is plain; else unknown.

The excess of own time is split into compute and gaps; the larger part decides, and named spans (loading, garbage
collection, allocation) explain gaps before their shape does.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.findings import Cause, Evidence
from tracekit.tables.features import Features
from tracekit.units import ms

_MAJORITY = 0.5
"""A cause must explain at least half of the excess own time."""


_PAUSES_A_STEP = 8
"""More long gaps than this in a step are no pauses but a slow host, which delays every launch a little."""


def explain(suspect: Features, peers: Sequence[Features]) -> tuple[Cause, tuple[Evidence, ...]]:
    """The cause of one rank's excess over its peers, and the quantities that show it."""
    if not peers:
        return "unknown", (Evidence("own time a step", ms(suspect.own), None, "ms"),)

    def over(name: str) -> float:
        return float(getattr(suspect, name) - np.median([getattr(p, name) for p in peers]))

    def row(what: str, name: str) -> Evidence:
        return Evidence(
            what, ms(getattr(suspect, name)), ms(float(np.median([getattr(p, name) for p in peers]))), "ms"
        )

    device = "GPU" if suspect.on_gpu else "CPU"
    evidence = [
        row("own time a step (not waiting for others)", "own"),
        row(f"{device} compute a step", "busy"),
        row("gaps without compute a step", "gap"),
    ]
    excess = over("own")
    if excess <= 0:
        return "unknown", tuple(evidence)
    named: tuple[tuple[Cause, str, str], ...] = (
        ("dataloader", "loader", "data loading a step"),
        ("host_stall", "collector", "garbage collection a step"),
        ("memory", "allocator", "memory allocation calls a step"),
    )
    for cause, name, what in named:
        if over(name) >= _MAJORITY * excess and over("gap") >= _MAJORITY * excess:
            return cause, (*evidence, row(what, name))
    if over("busy") >= _MAJORITY * excess:
        for name, what in (
            ("matmul", f"matrix products on the {device} a step"),
            ("attention", f"attention on the {device} a step"),
        ):
            if over(name) > 0.1 * excess:
                evidence.append(row(what, name))
        return "gpu_compute", tuple(evidence)
    if over("gap") >= _MAJORITY * excess:
        return _gap_cause(suspect, peers, evidence)
    return "unknown", tuple(evidence)


def _gap_cause(
    suspect: Features, peers: Sequence[Features], evidence: list[Evidence]
) -> tuple[Cause, tuple[Evidence, ...]]:
    """Few long gaps are pauses of the process; many short ones a host that launches too slowly."""
    steps = suspect.gaps.sum() / suspect.gap if suspect.gap else 1.0
    excess = (suspect.gap - float(np.median([p.gap for p in peers]))) * steps
    few = suspect.gaps[: max(1, round(_PAUSES_A_STEP * steps))]
    usual = _usual_gaps(peers, len(few))  # a busy machine gives everybody a few long ones
    paused = float(np.maximum(few - usual, 0).sum())
    longest = float(suspect.gaps[0]) if len(suspect.gaps) else 0.0
    evidence.append(Evidence("longest gap", ms(longest), ms(float(usual[0]) if len(usual) else 0.0), "ms"))
    return ("host_stall" if paused >= _MAJORITY * excess else "cpu_launch"), tuple(evidence)


def _usual_gaps(peers: Sequence[Features], count: int) -> npt.NDArray[np.float64]:
    """Median over the peers of their longest gap, second longest, and so on, ns."""
    longest = np.zeros((len(peers), count))
    for row, peer in zip(longest, peers, strict=True):
        own = peer.gaps[:count]
        row[: len(own)] = own
    return np.median(longest, axis=0)

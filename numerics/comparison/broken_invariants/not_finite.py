"""Finds where numbers stop being finite: the first tensor, step and ranks, and whether the baseline's are finite there.

Infinities alone are often intended (masked logits), and so are gradients that overflow under a scaled loss and make the
step skipped. Weights, moments, or outputs of a run that trains nothing must be finite: from a step where they are not
the search goes back to the first tensor of that step.
"""

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.keys import Ints, keys_of
from numerics.schema import PHASES
from numerics.thresholds.report import RANKS_IN_SENTENCE

_ENTRY = ("step", "phase", "kind", "tensor")
"""Columns that name a tensor at its place in the run."""


def numbers_lost(run: Columns, baseline: Columns | None) -> list[Broken]:
    """Return the first tensor of a step that leaves numbers which are not finite, where the baseline's are; else []."""
    bad = run["non_finite"] > 0
    lost = bad & run.named("phase", "step") & run.named("kind", "param", "optimizer")
    kinds = "its weights or moments are not finite after it"
    if not run.named("phase", "backward", "reduce", "step").any():  # nothing is trained
        lost, kinds = bad & run.named("kind", "activation") & _nan(run, bad), "nothing is trained in it"
    if not lost.any():
        return []
    step = int(run["step"][lost].min())
    rows = np.flatnonzero(bad & (run["step"] == step) & ~_meant(run, bad, step))
    first = _first(run, rows)
    if not len(first) or (baseline is not None and _also(run, baseline, int(first[0]))):
        return []
    row = int(first[0])
    ranks = sorted({int(run["rank"][r]) for r in first})
    whose = ", ".join(map(str, ranks[:RANKS_IN_SENTENCE])) + ", …" * (len(ranks) > RANKS_IN_SENTENCE)
    there = "" if baseline is None else ", where the baseline's are finite"
    text = (
        f"{run.name('tensor', row)} of step {step} ({run.name('phase', row)}) on rank{'s' * (len(ranks) > 1)} {whose} "
        f"holds values that are not finite (not a number, or infinite; {int(run['non_finite'][row])} of "
        f"{int(run['numel'][row])}){there}: the first tensor of that step, and {kinds}"
    )
    return [Broken("not_finite", text, row, tuple(int(r) for r in first))]


def _first(run: Columns, rows: Ints) -> Ints:
    """Return the rows of the tensor that each rank meets first, of the earliest phase: all ranks that hold it so."""
    if not len(rows):
        return rows
    phases = np.array([PHASES.index(run.name("phase", int(row))) for row in rows])
    rows = rows[phases == phases.min()]
    early = rows[np.argmin(run["order"][rows])]
    same = (run["tensor"][rows] == run["tensor"][early]) & (run["kind"][rows] == run["kind"][early])
    return np.asarray(rows[same][np.argsort(run["rank"][rows[same]], kind="stable")])


def _meant(run: Columns, bad: np.ndarray, step: int) -> np.ndarray:
    """Mark rows of tensors that were not finite in earlier steps too, or hold infinities alone before a backward."""
    names = keys_of(*(run[c] for c in _ENTRY[1:]))
    earlier = np.isin(names, names[bad & (run["step"] < step)])
    forward = bad & run.named("phase", "init", "forward")
    return np.asarray(earlier | (forward & ~_nan(run, forward & (run["step"] == step))))


def _nan(run: Columns, bad: np.ndarray) -> np.ndarray:
    """Mark the rows with values that are not numbers, or were not kept."""
    found = np.zeros(len(run), bool)
    for row in np.flatnonzero(bad).tolist():
        key = run.values_key(row)
        found[row] = key is None or bool(np.isnan(run.capture.read_values(int(run["rank"][row]), key)).any())
    return found


def _also(run: Columns, baseline: Columns, row: int) -> bool:
    """Return whether the baseline holds values that are not finite in the same tensor of the same step."""
    same = baseline["non_finite"] > 0
    for column in _ENTRY:
        same &= baseline[column] == run[column][row]
    return bool(same.any())

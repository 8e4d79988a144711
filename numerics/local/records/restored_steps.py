"""Steps that start from the weights of an earlier step: the trainer went back to a checkpoint."""

import numpy as np

from numerics.columns import Columns

Digest = frozenset[tuple[int, ...]]
"""Digests of tensors with the keys that separate them; empty if none is known."""


def restored_steps(run: Columns) -> dict[int, int]:
    """Return the earlier step by each step that starts from that one's weights, all of them and in every bit.

    Weights were changed in between, by two updates or more: one that was lost leaves the weights of the step before.
    """
    parameters = run.named("kind", "param")
    starts = digests_by_step(run, parameters & run.named("phase", "init"))
    ends = digests_by_step(run, parameters & run.named("phase", "step"))
    found = {}
    for step, start in starts.items():
        if start <= ends.get(step - 1, frozenset()):
            continue
        back = [
            e for e in starts if e < step - 1 and starts[e] == start and starts.get(e + 1, start) != start
        ]
        if back:
            found[step] = max(back)
    return found


def digests_by_step(run: Columns, chosen: np.ndarray) -> dict[int, Digest]:
    """Return the digest of the marked rows by step; initial values belong to the first step."""
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        rows.setdefault(max(int(run["step"][row]), 0), []).append(row)
    return {step: digests(run, held, "rank", "tensor", "boxes") for step, held in sorted(rows.items())}


def digests(run: Columns, rows: list[int], *columns: str) -> Digest:
    """Return the digests of rows, each with the values of some columns."""
    return frozenset((*(int(run[column][row]) for column in columns), int(run.digest[row])) for row in rows)

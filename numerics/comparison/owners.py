"""Parameters that one rank steps for all that hold them, as ZeRO-1 by parameters does."""

import numpy as np

from numerics.columns import Columns


def left_to_owners(run: Columns) -> np.ndarray:
    """Return the rows of parameters that a rank without their gradient left as they were while another stepped them.

    With ZeRO-1 by parameters the owner's result comes after the record; the next step's start tells whether it came.
    """
    left = np.zeros(len(run.digest), bool)
    begins = {_copy_of(run, row): int(run.digest[row]) for row in _rows(run, "param", "init")}
    owners: dict[tuple[int, str], set[int]] = {}
    for row in _rows(run, "param_grad", "reduce") if begins else ():
        step, tensor, rank = _copy_of(run, row)
        owners.setdefault((step, tensor.removesuffix(".grad")), set()).add(rank)
    for row in _rows(run, "param", "step") if owners else ():
        step, tensor, rank = _copy_of(run, row)
        stepped = owners.get((step, tensor), {rank})
        left[row] = rank not in stepped and begins.get((step, tensor, rank)) == int(run.digest[row])
    return left


def _rows(run: Columns, kind: str, phase: str) -> list[int]:
    """The rows of a kind in a phase."""
    rows: list[int] = np.flatnonzero(run.named("kind", kind) & run.named("phase", phase)).tolist()
    return rows


def _copy_of(run: Columns, row: int) -> tuple[int, str, int]:
    """Step, tensor and rank of a row; what a run begins with belongs to its first step."""
    return max(int(run["step"][row]), 0), run.name("tensor", row), int(run["rank"][row])

"""Parameters that one rank steps for all that hold them, as ZeRO-1 by parameters does."""

import numpy as np
import numpy.typing as npt

from numerics.columns import Columns

Mask = npt.NDArray[np.bool_]


def left_to_owners(run: Columns) -> Mask:
    """Return the rows of parameters that a rank without their gradient left as they were while another stepped them.

    With ZeRO-1 by parameters the owner's result comes after the record; the next step's start tells whether it came. In
    a run that records no later start than its first, nothing would tell: there every copy is compared after the step.
    """
    left = np.zeros(len(run.digest), bool)
    begins = {_copy_of(run, row): int(run.digest[row]) for row in _rows(run, "param", "init")}
    if not any(step > 0 for step, _, _ in begins):
        return left
    owners: dict[tuple[int, str], set[int]] = {}
    for row in _rows(run, "param_grad", "reduce"):
        step, tensor, rank = _copy_of(run, row)
        owners.setdefault((step, tensor.removesuffix(".grad")), set()).add(rank)
    for row in _rows(run, "param", "step"):
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

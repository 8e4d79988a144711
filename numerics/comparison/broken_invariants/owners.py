"""Parameters that one rank steps for all that hold them, as ZeRO-1 by parameters does."""

import numpy as np
import numpy.typing as npt

from numerics.columns import Columns
from numerics.schema import WATCHED

Mask = npt.NDArray[np.bool_]
_Copy = tuple[int, str, int]
"""Step, tensor and rank."""


def left_to_owners(run: Columns) -> Mask:
    """Return the rows of parameters that a rank without their gradient left as they were while another stepped them.

    With ZeRO-1 by parameters the owner's result comes after the record; the next step's start shows whether it came.
    If hooks recorded no gradients of a step, only its next start shows this: all copies are what one had. A trainer
    that calls `Recorder` records its steps when they are done, so there every copy is compared, unless it records
    starts.
    """
    left = np.zeros(len(run.digest), bool)
    begins = {_copy_of(run, row): int(run.digest[row]) for row in _rows(run, "param", "init")}
    watched = run.capture.source == WATCHED
    if not any(step > 0 for step, _, _ in begins) and not watched:
        return left
    owners: dict[tuple[int, str], set[int]] = {}
    for row in _rows(run, "param_grad", "reduce"):
        step, tensor, rank = _copy_of(run, row)
        owners.setdefault((step, tensor.removesuffix(".grad")), set()).add(rank)
    reduced = {step for step, _ in owners}
    ended = {_copy_of(run, row): int(run.digest[row]) for row in _rows(run, "param", "step")}
    sent = _sent(
        begins, {copy: digest for copy, digest in ended.items() if watched and copy[0] not in reduced}
    )
    for row in _rows(run, "param", "step"):
        step, tensor, rank = _copy_of(run, row)
        stepped = owners.get((step, tensor), {rank})
        own = rank not in stepped and begins.get((step, tensor, rank)) == int(run.digest[row])
        left[row] = own or (step, tensor, rank) in sent
    return left


def left_unseen(run: Columns) -> tuple[list[int], bool]:
    """Return the rows left to owners without a recorded next start, and whether any other rank's was recorded."""
    begun = {_copy_of(run, row) for row in _rows(run, "param", "init")}
    rows: list[int] = np.flatnonzero(left_to_owners(run)).tolist()
    unseen = [row for row in rows if _next(_copy_of(run, row)) not in begun]
    return unseen, len(unseen) < len(rows)


def _sent(begins: dict[_Copy, int], ended: dict[_Copy, int]) -> set[_Copy]:
    """Return the copies after a step that the next one begins without: all ranks begin with what one of them had."""
    by: dict[tuple[int, str], dict[int, int]] = {}
    for (step, tensor, rank), digest in ended.items():
        by.setdefault((step, tensor), {})[rank] = digest
    found = set()
    for (step, tensor), held in by.items():
        begun = {begins.get((step + 1, tensor, rank)) for rank in held}
        if len(begun) == 1 and begun <= set(held.values()):
            found |= {(step, tensor, rank) for rank, digest in held.items() if digest not in begun}
    return found


def _next(copy: _Copy) -> _Copy:
    return (copy[0] + 1, *copy[1:])


def _rows(run: Columns, kind: str, phase: str) -> list[int]:
    """The rows of a kind in a phase."""
    rows: list[int] = np.flatnonzero(run.named("kind", kind) & run.named("phase", phase)).tolist()
    return rows


def _copy_of(run: Columns, row: int) -> _Copy:
    """Step, tensor and rank of a row; what a run begins with belongs to its first step."""
    return max(int(run["step"][row]), 0), run.name("tensor", row), int(run["rank"][row])

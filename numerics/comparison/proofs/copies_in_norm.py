"""Whether a clip's norm counted gradients that several ranks hold once for each of them."""

from math import isclose, sqrt

from numerics.columns import Columns
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.local import SCALE_TOLERANCE


def copies_in_norm(proof: LocalProof, run: Columns, baseline: Columns) -> str:
    """Return in words that the first step's gradients have the baseline's norm if copies count on each rank; else "".

    Copies over all ranks are tried, those over ranks of one data-parallel index, as of tensor parallelism, and parts
    that several replicas hold.
    """
    mine, other = RecordedRun(run), RecordedRun(baseline)
    squares, counts, due = [], [], 0.0
    for name, grad in proof.first_gradients.items():
        there = other.whole(
            other.rows(proof.first_step, "reduce", "param_grad", name), tuple(grad.shape), batch=False
        )
        rows = mine.rows(proof.first_step, "reduce", "param_grad", name)
        if not there or not rows:
            return ""
        every, model = (
            max(sum(int(run["numel"][row]) for row in held) / max(grad.numel(), 1), 1.0)
            for held in (rows, [row for row in rows if run["dp"][row] == run["dp"][rows[0]]])
        )
        parted = all(int(run["numel"][row]) < grad.numel() for row in rows)
        squares.append(float(grad.double().square().sum()))
        counts.append((every, model, every if parted else 1.0))
        due += float(there[0].tensor.double().square().sum())
    for of in range(3):
        held = sqrt(sum(square * count[of] for square, count in zip(squares, counts, strict=True)))
        if max((count[of] for count in counts), default=1) > 1 and isclose(
            held, sqrt(due), rel_tol=SCALE_TOLERANCE
        ):
            return (
                "the norm by which they are clipped counts what several ranks hold once for each of them: counted so, "
                f"it is {held:.6g}, as the baseline's"
            )
    return ""

"""Whether a clip's norm counted gradients that several ranks hold once for each of them."""

from math import isclose, sqrt

from numerics.columns import Columns
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import RecordedRun
from numerics.schema import parse_shape
from numerics.thresholds.local import SCALE_TOLERANCE


def copies_in_norm(proof: LocalProof, run: Columns, baseline: Columns) -> str:
    """Return in words that the first step's gradients have the baseline's norm if copies count on each rank; else "".

    Copies over all ranks are tried, and those over ranks of one data-parallel index, as of tensor parallelism.
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
        same = [row for row in rows if parse_shape(run.name("global_shape", row)) == tuple(grad.shape)]
        copies = [row for row in same if run["numel"][row] == grad.numel()]
        model = [row for row in copies if run["dp"][row] == run["dp"][copies[0]]]
        squares.append(float(grad.double().square().sum()))
        counts.append((max(len(copies), 1), max(len(model), 1)))
        due += float(there[0].tensor.double().square().sum())
    for of in (0, 1):
        held = sqrt(sum(square * count[of] for square, count in zip(squares, counts, strict=True)))
        if max((count[of] for count in counts), default=1) > 1 and isclose(
            held, sqrt(due), rel_tol=SCALE_TOLERANCE
        ):
            return (
                "the norm by which they are clipped counts what several ranks hold once for each of them: counted so, "
                f"it is {held:.6g}, as the baseline's"
            )
    return ""

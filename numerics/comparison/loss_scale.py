"""Whether a run's loss weighs as its baseline's: a local proof takes the loss's gradient as it was recorded."""

from numerics.columns import Columns
from numerics.local.proof import LocalProof
from numerics.local.recorded import RecordedRun
from numerics.thresholds.local import LOSS_SCALE


def other_loss(proof: LocalProof, baseline: Columns | None) -> str | None:
    """Return a sentence where the first step's gradients as a whole are not those of the baseline; None otherwise.

    Order of sums moves each gradient by a few per cent at the most, and the ratio of all of them far less.
    """
    if baseline is None or not baseline.capture.values:
        return None
    recorded = RecordedRun(baseline)
    dot = square = 0.0
    for name, mine in proof.first_gradients.items():
        rows = recorded.rows(proof.first_step, "reduce", "param_grad", name)
        found = recorded.whole(rows, tuple(mine.shape), batch=False)
        if found:
            other = found[0].tensor.double()
            dot += float((mine.double() * other).sum())
            square += float((other * other).sum())
    ratio = dot / square if square else 1.0
    if abs(ratio - 1) <= LOSS_SCALE:
        return None
    return (
        f"all gradients of step {proof.first_step} are {ratio:.4g} times the baseline's, though each follows from the "
        "recorded gradient of the loss: the loss is scaled or weighted otherwise, or a reduction averages otherwise"
    )

"""Whether a run was trained on other sequences than its baseline: integers and an order of documents never round."""

from collections import Counter

from numerics.columns import Columns
from numerics.local.places.rank_positions import RESTARTS, positions_begin_anew
from numerics.local.read_sequences import same_sequences
from numerics.local.records.padded_sequences import counterparts, key_of
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.comparison import MAX_ELEMENTS


def other_inputs(run: Columns, baseline: Columns | None) -> str | None:
    """Return a sentence where a step's integer inputs are not the baseline's; None otherwise, or where it is unknown.

    Sequences are compared as a set: which rank and micro-batch reads which changes no sum but its order.
    """
    if baseline is None or not run.capture.values or not baseline.capture.values:
        return None
    mine, other = RecordedRun(run), RecordedRun(baseline)
    for step in sorted(set(mine.steps) & set(other.steps)):
        alike = ""
        for name in [name for name in mine.names(step, "forward", "input") if name.startswith("in.")]:
            here, there = _sequences(mine, step, name), _sequences(other, step, name)
            if here is not None and here == there and len(here) > 1:
                alike = name  # equal for all sequences would say nothing
            if here is None or there is None or here == there:
                continue
            if sum(here.values()) != sum(there.values()):
                if here.keys() == there.keys():
                    return _read_again(name, step, here, there)
                continue  # recorded in other parts
            if positions_begin_anew(mine, step, name):
                return (
                    f"{name} in step {step} {RESTARTS}; the baseline's positions count through each sequence"
                )
            left, rest = (list((one - two).elements()) for one, two in ((here, there), (there, here)))
            count = counterparts([(one,) for one in left], [(one,) for one in rest]).count(-1)
            if not count:
                continue  # padded to another length
            some = (
                f"{count} of {sum(here.values())} sequences of {name} in step {step} are not the baseline's"
            )
            if alike:
                return f"{some}, and all of {alike} are: {name} was made otherwise beside the same sequences"
            return f"{some}: the runs were trained on other data, or on another order of documents"
    return None


def _read_again(name: str, step: int, here: Counter[bytes], there: Counter[bytes]) -> str:
    """Return a sentence on a step in which one of two runs reads sequences of both more often than the other."""
    sides = ("the run", "the baseline") if here.total() > there.total() else ("the baseline", "the run")
    more = sum(((here - there) + (there - here)).values())
    return (
        f"{sides[0]} reads {more} sequences of {name} in step {step} again that {sides[1]} does not, as samplers do "
        "to fill up the shares of their ranks: these count more than the others"
    )


def same_data(run: Columns, baseline: Columns | None) -> str | None:
    """Return a sentence where data-parallel ranks read the same sequences, and those of the baseline do not."""
    if baseline is None or not run.capture.values or not baseline.capture.values:
        return None
    found = same_sequences(RecordedRun(run))
    return (
        f"{found}, and the ranks of the baseline do not"
        if found and not same_sequences(RecordedRun(baseline))
        else None
    )


def _sequences(recorded: RecordedRun, step: int, name: str) -> Counter[bytes] | None:
    """Return the sequences of an integer input, put together from the pieces of all ranks; None where unknown.

    A copy counts once. Pieces without a recorded place in the sequence leave the sequences unknown.
    """
    found: Counter[bytes] = Counter()
    total = 0
    for place in recorded.places(step):
        tensor = recorded.input(step, name, place)
        if tensor is None or tensor.is_floating_point():
            return None
        total += tensor.numel()
        if total > MAX_ELEMENTS:
            return None
        found.update(key_of(part) for part in (tensor if tensor.dim() else tensor[None]))
    return found or None

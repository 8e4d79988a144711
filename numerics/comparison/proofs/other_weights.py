"""Weights that are not the baseline's: other ones, or the same in another format."""

from dataclasses import replace

import numpy as np
import torch

from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.verdict import Case
from numerics.formats import least_roundoff
from numerics.local.proof import LocalProof
from numerics.local.records.changed_weights import changed_weights, intended, sentence_of
from numerics.local.records.recorded import ADDENDS, RecordedRun, same_bits
from numerics.local.updates.changed_between import changed_weights_doubts
from numerics.thresholds.comparison import ROUNDED_WEIGHTS


def other_initial_weights(case: Case) -> str | None:
    """Return a sentence where the run begins with other weights than the baseline, not the same in another format."""
    if case.tensors is None or case.baseline is None:
        return None
    table, own = case.tensors, case.run.names.number
    before = (table.phase == own("init")) & (table.kind == own("param")) & (table.step < 0)
    run, baseline = RecordedRun(case.run), RecordedRun(case.baseline)
    others: dict[str, int] = {}
    for at in np.flatnonzero(before & (table.status == Status.DIFFERENT)):
        left, right = int(table.left[at]), int(table.right[at])
        formats = [case.run.name("dtype", left), case.baseline.name("dtype", right)]
        allowed = ROUNDED_WEIGHTS * max(map(least_roundoff, formats))
        if formats[0] == formats[1] or table.relative[at] > allowed:
            others.setdefault(case.run.name("tensor", left), int(case.run["order"][left]))
    if not others:
        return _other_parts(run, baseline)
    name = min(others, key=lambda name: others[name])
    one, other = _whole(run, name), _whole(baseline, name)
    moved = one is not None and other is not None and _same_numbers(one, other)
    what = "the same numbers in another order" if moved else "other weights"
    return f"{name} is not the baseline's before the first step: {what}"


def _other_parts(run: RecordedRun, baseline: RecordedRun) -> str | None:
    """Return a sentence where a weight that ranks hold as plain copies or parts is not the baseline's; None otherwise.

    Which part each rank holds was not recorded, so that the table of tensors leaves these out.
    """
    for name in run.names(-1, "init", "param"):
        rows = run.rows(-1, "init", "param", name)
        right = _whole(baseline, name) if all(map(run.unplaced, rows)) else None
        if right is None:
            continue
        read = [one for one in run.whole(rows, tuple(right.shape), batch=False) if one.how != ADDENDS]
        if not read or any(one.tensor.dtype != right.dtype or same_bits(one.tensor, right) for one in read):
            continue
        parts = [part for row in rows if (part := run.local(row)) is not None]
        what = "other weights"
        if any(_same_numbers(one.tensor, right) for one in read):
            what = "a rank holds another's part"
        elif (
            len(parts) > 1
            and all(same_bits(parts[0], p) for p in parts[1:])
            and bool(parts[0].min() < parts[0].max())
        ):
            what = "all ranks hold equal parts, as if they drew them alike"
        return f"{name}, {read[0].how} over its ranks, is not the baseline's before the first step: {what}"
    return None


def _same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two weights hold the same numbers, in whatever order."""
    if (one.dtype, one.numel()) != (other.dtype, other.numel()):
        return False
    return torch.equal(one.reshape(-1).sort().values, other.reshape(-1).sort().values)


def _whole(run: RecordedRun, name: str) -> torch.Tensor | None:
    """Return a weight before the first step; None where it is not known whole."""
    found = run.whole(run.rows(-1, "init", "param", name), None, batch=False)
    return found[0].tensor if len(found) == 1 and not found[0].how else None


def other_formats(case: Case) -> str:
    """Return in words which weight or output the runs have in two formats, so that they differ by more than order."""
    if case.tensors is None or case.baseline is None:
        return ""
    table = case.tensors
    for kind, verb in (("param", "holds"), ("activation", "computes")):
        found = (table.kind == case.run.names.number(kind)) & (table.status == Status.DIFFERENT)
        for at in np.flatnonzero(found):
            left, right = int(table.left[at]), int(table.right[at])
            mine, other = case.run.name("dtype", left), case.baseline.name("dtype", right)
            if mine != other:
                what = f"{verb} {case.run.name('tensor', left)} in {mine} where the baseline {verb} it in {other}"
                return f"it {what}, and differs by their rounding"
    return ""


def other_changes(case: Case) -> str | None:
    """Return a sentence where the trainer of one run alone changes weights before a step; None where none does."""
    if case.baseline is None:
        return None
    sides = (case.run, case.baseline)
    changes = [changed_weights(side) for side in sides]
    for own in range(len(sides)):
        mine, other, beside = changes[own], changes[1 - own], sides[1 - own]
        alone = sorted(
            step for step, pairs in mine.items() if step not in other and intended(sides[own], pairs)
        )
        starts = beside["step"][beside.named("phase", "init") & beside.named("kind", "param")]
        kept = [step for step in alone if (starts == step).any()]
        if kept:
            said = sentence_of(sides[own], mine[kept[0]][0])
            return (
                f"in the baseline, {said}, and in the run it is"
                if own
                else f"{said}, and in the baseline it is"
            )
    return None


def with_changes(case: Case, proof: LocalProof) -> LocalProof:
    """Return a proof without the doubt of weights that the baseline's trainer changes before the same steps."""
    if case.baseline is None or not changed_weights(case.baseline):
        return proof
    doubts = changed_weights_doubts(case.run)
    if not doubts:
        return proof
    own = tuple(doubt for doubt in proof.doubts if doubt not in doubts)
    return replace(proof, doubts=own, unseen=(*proof.unseen, "what changes the weights between steps"))

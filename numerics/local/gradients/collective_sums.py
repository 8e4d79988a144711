"""Checks every recorded collective: does an order of its ranks' recorded inputs give its recorded output?

Orders are learned: what explains one call of a group must explain the others of the same kind and format. A call that
follows none is judged by the bound of any order, and never called equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from numerics.columns import Columns
from numerics.local.bounds.bounded import unit
from numerics.local.forced_pass import Check
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.repairs import repair, sum_of
from numerics.local.gradients.sum_orders import Adder
from numerics.local.judgement import Judged, Standing, lone_element, moved, within
from numerics.local.records.recorded import RecordedRun
from numerics.schema import COLLECTIVES, ranks_in
from numerics.thresholds.local import SUM_ROUNDINGS
from numerics.thresholds.report import RANKS_IN_SENTENCE

_UNRECORDED: Final = "the tensors of some of its ranks were not recorded"
"""Why a call is not checked."""


@dataclass
class Recorded:
    """One call of a collective: the rows of what each rank gave and got, by rank."""

    op: str
    label: str
    phase: str
    group: tuple[int, ...]
    given: dict[int, int] = field(default_factory=dict)
    got: dict[int, int] = field(default_factory=dict)

    @property
    def combines(self) -> str:
        """How it combines: "sum", "avg", "max", …; empty where it only moves."""
        return self.label.rpartition(".")[2] if self.op in {"all_reduce", "reduce_scatter"} else ""


def calls_of(run: Columns, step: int) -> list[Recorded]:
    """Return the collectives that `watch` recorded in a step, in the order of their first ranks."""
    rows = (run["step"] == step) & run.named("kind", *COLLECTIVES) & run.named("axis", "group")
    found: dict[tuple[str, str], Recorded] = {}
    for row in sorted(rows.nonzero()[0].tolist(), key=lambda r: (int(run["order"][r]), int(run["rank"][r]))):
        label, group = run.name("label", row), run.name("group", row)
        ranks = tuple(ranks_in(group))
        call = found.setdefault(
            (label, group), Recorded(run.name("op", row), label, run.name("phase", row), ranks)
        )
        side = call.given if run.name("kind", row) == "collective_in" else call.got
        side.setdefault(int(run["rank"][row]), row)
    return list(found.values())


def check_collectives(
    recorded: RecordedRun, step: int, learned: LearnedOrders
) -> list[tuple[Check, tuple[int, ...]]]:
    """Return the judgement of every collective of a step, and the rows of its outputs."""
    found = []
    for call in calls_of(recorded.run, step):
        judged, rows = _judged(recorded, call, learned)
        found.append((Check(call.label, "", call.phase, judged), rows))
    return found


def _judged(recorded: RecordedRun, call: Recorded, learned: LearnedOrders) -> tuple[Judged, tuple[int, ...]]:
    """Return the judgement of the worst output of a call, with the rows of the ranks that hold it."""
    every = tuple(call.got.values())
    given = [recorded.local(call.given[rank]) for rank in call.group if rank in call.given]
    parts = [part for part in given if part is not None]
    shapes = {(part.numel(), part.dtype) for part in parts}
    if len(parts) < len(call.group) or not call.got or len(shapes) != 1:
        return Judged(Standing.UNCHECKED, why=_UNRECORDED), every
    distinct: dict[tuple[int, int], list[int]] = {}
    for rank, row in call.got.items():
        place = call.group.index(rank) if call.op == "reduce_scatter" and rank in call.group else -1
        distinct.setdefault((place, int(recorded.run.digest[row])), []).append(row)
    answers = []
    for (place, _), rows in distinct.items():
        out = recorded.local(rows[0])
        answers.append(
            (Judged(Standing.UNCHECKED, why=_UNRECORDED), tuple(rows))
            if out is None
            else (_one(call, parts, out, place, learned), tuple(rows))
        )
    return max(answers, key=lambda answer: answer[0].standing)


def _one(
    call: Recorded, parts: Sequence[torch.Tensor], out: torch.Tensor, place: int, learned: LearnedOrders
) -> Judged:
    """Judge one output; `place` is its rank's place in the group where it holds a part of the sum."""
    if call.op == "all_gather":
        return _moved(torch.cat(list(parts)), out)
    if call.op == "broadcast":
        return min((_moved(part, out) for part in parts), key=lambda judged: judged.differ)
    if call.op == "reduce_scatter":
        size = parts[0].numel() // len(parts)
        parts = [part[place * size : (place + 1) * size] for part in parts]
    if out.numel() != parts[0].numel():
        return Judged(Standing.UNCHECKED, why="its inputs and outputs are of different sizes")
    if call.combines in {"max", "min"}:
        stacked = torch.stack(list(parts))
        return _moved(stacked.amax(0) if call.combines == "max" else stacked.amin(0), out)
    if call.combines not in {"sum", "avg"}:
        return Judged(Standing.UNCHECKED, why=f"it combines by {call.combines or 'nothing known'}")
    if not out.is_floating_point():
        return _moved(torch.stack(list(parts)).sum(0, dtype=out.dtype), out)
    return _summed(call, parts, out, learned)


def _moved(right: torch.Tensor, out: torch.Tensor) -> Judged:
    """Judge what nothing rounds."""
    judged = moved(right, out)
    return (
        judged
        if judged.standing == Standing.EQUAL
        else replace(judged, how="it is not what its ranks put in")
    )


def _summed(
    call: Recorded, parts: Sequence[torch.Tensor], out: torch.Tensor, learned: LearnedOrders
) -> Judged:
    """Judge a sum: in some order bit for bit, within the bound of any order, or wrong."""
    count = len(parts)
    divisor = float(count) if call.combines == "avg" else 1.0
    ranks = ", ".join(str(rank) for rank in call.group[:RANKS_IN_SENTENCE])
    dots = ", …" if len(call.group) > RANKS_IN_SENTENCE else ""
    name = f"{call.op} ({call.combines}) of {str(parts[0].dtype)[6:]} over ranks {ranks}{dots}"

    def made(add: Adder) -> torch.Tensor:
        return add(parts)

    key = (call.op, call.combines, parts[0].dtype, call.group)
    if learned.explains(key, name, made, out, count, divisor):
        return Judged(Standing.EQUAL, elements=out.numel())
    ones = [1.0] * count
    size = sum_of([part.abs() for part in parts], ones) / divisor
    wide = max(unit(parts[0].dtype), unit(out.dtype))
    judged = within(sum_of(parts, ones) / divisor, (count + SUM_ROUNDINGS) * wide * size, out)
    right = learned.nearest(key, made, out, count, divisor)
    alone = "" if right is None else lone_element(out, right)
    if alone:
        return replace(judged, standing=Standing.BEYOND, lone=alone, how=alone)
    if judged.standing == Standing.EQUAL:  # by the exact sum, yet not in the learned order
        judged = replace(judged, standing=Standing.WITHIN)
    if judged.standing != Standing.BEYOND:
        return judged
    found = repair(parts, out, [f"rank {rank}" for rank in call.group], 1 / divisor)
    return judged if found is None else replace(judged, how=found.words, factors=None, format=found.format)

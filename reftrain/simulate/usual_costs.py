"""The times of a schedule's actions in an undisturbed job, read from its programs."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from reftrain.schedule.actions import Kind as Act
from reftrain.schedule.costs import Costs
from reftrain.simulate.program import Kind, Program

_PARTS: Final[Mapping[Act, str]] = {
    Act.FORWARD: "f",
    Act.BACKWARD: "b",
    Act.BACKWARD_INPUT: "i",
    Act.BACKWARD_WEIGHT: "w",
    Act.RECOMPUTE: "c",
}
_GRAIN: Final = 1024
"""Parts of a nanosecond that are kept: exact fractions of floats would grow with every sum."""


def costs_of(programs: Sequence[Program], stages: int) -> Costs:
    """Return the costs of actions, ns; those of a kind are the first of each virtual stage, with its collectives."""
    found: dict[str, dict[int, Fraction]] = {}
    messages = [Fraction(0)]
    for program in programs:
        for action, first, end in program.actions:
            ops = program.ops[first:end]
            part = _PARTS.get(action.kind)
            if part is not None and action.stage not in found.setdefault(part, {}):
                found[part][action.stage] = _exact(
                    sum(op.ns for op in ops if op.kind in {Kind.COMPUTE, Kind.COLLECTIVE})
                )
            messages += [_exact(op.ns) for op in ops if op.kind is Kind.SEND]
    whole = {part: by for part, by in found.items() if len(by) == stages}
    if "b" not in whole and {"i", "w"} <= whole.keys():
        whole["b"] = {stage: whole["i"][stage] + whole["w"][stage] for stage in range(stages)}
    given = {part: tuple(by[stage] for stage in range(stages)) for part, by in whole.items()}
    return Costs(**given, p2p=max(messages))


def _exact(ns: float) -> Fraction:
    return Fraction(round(ns * _GRAIN), _GRAIN)

"""The modules of one data-parallel rank and micro-batch, judged twice: in the run's formats, and with bounds."""

from collections import Counter
from dataclasses import dataclass, field, replace

import torch

from numerics.local.bounds.bounded import Bounded, carrying
from numerics.local.draws.drawn_apart import named_apart
from numerics.local.draws.dropout_masks import Dropped
from numerics.local.forced_pass import Check
from numerics.local.gradients.taken_gradients import why_unknown
from numerics.local.judgement import Standing
from numerics.local.places.place_walk import PlaceWalk, Tensors, plainly, walked
from numerics.local.places.rank_positions import IN_MODEL, LocalPositions, tried_positions
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import same_bits
from numerics.local.relations import DROPPED_AGAIN, bias_added, dropped_again, relation
from numerics.thresholds.local import ERROR_SHOWN, OTHER_SEED, REPEATED_BY_CHANCE
from tracekit.errors import InputError

_Key = tuple[str, str, int]
"""Tensor, phase, and the number of the check among those of both."""

_OTHER_DRAWS = "it holds random numbers that the recorded state of the generator does not give"

_STATEFUL = "the model keeps something from one forward to the next (a cache), which no record holds"


@dataclass(frozen=True)
class PlacePass:
    """What was judged of a place: its checks, and the parameters' gradients in the run's formats and with bounds.

    `unseen` is what could not be judged, in words. `dropped` are the masks of dropout layers. `draws` says that the
    forward drew, in code beside these, the numbers that the recorded state of the generator gives, where asked.
    `random` names the outputs that random numbers change directly, those of dropout layers and, where asked, others.
    """

    checks: list[Check]
    plain: Tensors
    grads: Tensors
    unseen: set[str] = field(default_factory=set)
    dropped: list[Dropped] = field(default_factory=list)
    draws: bool = False
    random: frozenset[str] = frozenset()


def judged_place(state: RecordedStep, place: Place, held: Tensors, *, asked: bool) -> PlacePass:
    """Return what is judged of a place with the weights `held`; `asked` looks at what it drew even where all is right.

    What changes with the random numbers of code beside dropout layers is left open where none of it shows that the run
    drew what the recorded generator gives.
    """
    drawn = state.random_state(place)
    exact = plainly(state, place, held, drawn)
    found = _with_bounds(state, place, held, exact, draws=drawn is not None)
    found = replace(found, random=frozenset(one.tensor for one in exact.dropped))
    unknown = why_unknown(state, place)
    if unknown:
        checks = [_left_open(c, unknown) if c.phase == "backward" else c for c in found.checks]
        found = replace(found, checks=checks, grads={name: _unknown(g) for name, g in found.grads.items()})
    wrong = any(c.judged.standing == Standing.BEYOND for c in found.checks)
    if wrong and _keeps_state(state, place, held, drawn, exact):
        return replace(found, checks=[_left_open(c, _STATEFUL) for c in found.checks])
    if not exact.drawing or not (asked or wrong):
        return found
    other = plainly(state, place, held, _other_state(), counts=True)
    touched = _computed(exact).keys() - {
        key for key, value in _computed(other).items() if _same(_computed(exact).get(key), value)
    }
    random = found.random | {tensor for tensor, phase, _ in touched if phase == "forward"}
    found = replace(found, random=random, checks=named_apart(state, place, found.checks, random))
    if drawn is None:
        return found
    if other.chance < REPEATED_BY_CHANCE and _mostly_right(found.checks, touched):
        return replace(found, draws=True)
    others = [one for one in state.recorded.places(state.step) if one != place]
    if not touched or any(_draws_as_recorded(state, one, held, touched) for one in others):
        return found
    checks = [_left_open(c) if key in touched else c for key, c in _numbered(found.checks)]
    grads = {name: _unknown(g) if _changes(name, exact, other) else g for name, g in found.grads.items()}
    return replace(found, checks=checks, grads=grads)


def explained_by_positions(state: RecordedStep, place: Place, held: Tensors, found: PlacePass) -> PlacePass:
    """Return what was judged of a place, and say so where local positions give the outputs that are wrong in it."""
    keys = [
        k for k, c in _numbered(found.checks) if c.phase == "forward" and c.judged.standing == Standing.BEYOND
    ]
    cut = state.recorded.sequence_cut(state.step, place) if keys else None
    if cut is None or not any(_right_with(state, place, held, keys, one) for one in tried_positions(cut)):
        return found
    first = next(n for n, (key, _) in enumerate(_numbered(found.checks)) if key == keys[0])
    checks = list(found.checks)
    checks[first] = replace(checks[first], judged=replace(checks[first].judged, relation=IN_MODEL, lone=""))
    return replace(found, checks=checks)


def _right_with(
    state: RecordedStep, place: Place, held: Tensors, keys: list[_Key], positions: LocalPositions
) -> bool:
    """Return whether the outputs of `keys` are right with such positions."""
    with carrying(state.parts):
        try:
            walk = walked(state, place, held, state.random_state(place), bounds=True, positions=positions)
        except Exception:  # noqa: BLE001 - the user's model may raise anything where its numbers are exchanged
            return False
    standing = {key: check.judged.standing for key, check in _numbered(walk.checks)}
    return all(standing.get(key, Standing.BEYOND) <= Standing.WITHIN for key in keys)


def _numbered(checks: list[Check]) -> list[tuple[_Key, Check]]:
    """Return checks of a walk, each with what finds the same one in another walk."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for check in checks:
        name = (check.tensor, check.phase)
        found.append(((*name, seen[name]), check))
        seen[name] += 1
    return found


def _computed(walk: PlaceWalk) -> dict[_Key, torch.Tensor | None]:
    """Return the recorded tensors' values as a walk computed them; None for tensors that are as recorded."""
    kept = [(key, c.judged) for key, c in _numbered(walk.checks) if c.judged.standing != Standing.UNCHECKED]
    return {key: None if judged.pair is None else judged.pair[1] for key, judged in kept}


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two walks computed the same."""
    return same_bits(one, other) if one is not None and other is not None else one is other


def _changes(name: str, exact: PlaceWalk, other: PlaceWalk) -> bool:
    """Return whether a parameter's gradient is another in another walk."""
    return not _same(exact.grads.get(name), other.grads.get(name))


def _keeps_state(
    state: RecordedStep, place: Place, held: Tensors, drawn: torch.Tensor | None, walk: PlaceWalk
) -> bool:
    """Return whether the model computes another thing when it is run again on the same recorded inputs."""
    try:
        again = _computed(plainly(state, place, held, drawn))
    except InputError:  # what it keeps no longer fits
        return True
    first = _computed(walk)
    return any(not _same(value, again.get(key)) for key, value in first.items())


def _left_open(check: Check, why: str = _OTHER_DRAWS) -> Check:
    """Return a check that is wrong only if the run drew or kept what the proof does, as one that is open."""
    other_draws = check.judged.relation not in {"", DROPPED_AGAIN} and why == _OTHER_DRAWS
    if check.judged.standing != Standing.BEYOND or other_draws:
        return check
    judged = replace(check.judged, standing=Standing.UNCHECKED, why=why, relation="", lone="")
    return replace(check, judged=judged)


def _other_state() -> torch.Tensor:
    """Return a state of the generator that no run starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(OTHER_SEED)
        return torch.get_rng_state()


def _draws_as_recorded(state: RecordedStep, place: Place, held: Tensors, touched: set[_Key]) -> bool:
    """Return whether a place's recorded state of the generator gives its `touched` outputs, which no chance does."""
    drawn = state.random_state(place)
    if drawn is None:
        return False
    walk = plainly(state, place, held, drawn, counts=True)
    return walk.chance < REPEATED_BY_CHANCE and _mostly_right(walk.checks, touched)


def _mostly_right(checks: list[Check], touched: set[_Key]) -> bool:
    """Return whether most of the recorded outputs that change with random numbers are what was computed.

    Gradients may be wrong though these are right: where the backward computed a forward again, and drew again.
    """
    drawn = {key for key in touched if key[1] == "forward"} or touched
    asked = [c.judged.standing for key, c in _numbered(checks) if key in drawn]
    return 2 * sum(one <= Standing.WITHIN for one in asked) > len(asked)


def _with_bounds(
    state: RecordedStep, place: Place, held: Tensors, exact: PlaceWalk, *, draws: bool
) -> PlacePass:
    """Return the better of the checks in the run's formats and of those with bounds."""
    unseen: set[str] = set()
    with carrying(state.parts, draws=draws) as carried:
        try:
            walk = walked(state, place, held, state.random_state(place), bounds=True)
            bounds, grads = walk.checks, walk.grads
        except Exception as error:  # noqa: BLE001 - the model ran on plain tensors: the bounds cannot follow it
            error_text = f"{type(error).__name__}: {str(error)[:ERROR_SHOWN]}"
            unseen.add(f"rounding: no bound follows this model ({error_text})")
            bounds, grads = _without_bounds(exact)
    unseen |= {f"an operator without a bound: {name}" for name in carried.without_rule}
    best = (
        [_related(_better(a, b), a, held, state.parts) for a, b in zip(exact.checks, bounds, strict=True)]
        if len(exact.checks) == len(bounds)
        else bounds
    )
    return PlacePass(best, exact.grads, grads, unseen, exact.dropped)


def _without_bounds(exact: PlaceWalk) -> tuple[list[Check], Tensors]:
    """Return checks and gradients without a known bound: a difference in bits may be rounding or not."""
    why = "no bound of its rounding is known"
    judged = [
        replace(c, judged=replace(c.judged, standing=Standing.UNCHECKED, why=why))
        if c.judged.standing == Standing.BEYOND
        else c
        for c in exact.checks
    ]
    return judged, {name: _unknown(g) for name, g in exact.grads.items()}


def _unknown(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor that a sound run may miss by anything."""
    wide = value.value if isinstance(value, Bounded) else value.double()
    return Bounded(wide, torch.full_like(wide, torch.inf), value.dtype)


def _better(exact: Check, bound: Check) -> Check:
    """Return the check that says more; a lone element is never rounding, whatever its bound allows."""
    if exact.judged.standing in {Standing.EQUAL, Standing.UNCHECKED} or exact.judged.lone:
        return exact
    return bound


def _related(found: Check, exact: Check, held: Tensors, parts: int) -> Check:
    """Return a check beyond its bound with the relation of the recorded tensor to the one computed in its format."""
    pair = exact.judged.pair
    beyond = found.judged.standing == Standing.BEYOND and pair is not None and not found.judged.lone
    words = relation(*pair) if beyond and pair is not None else ""
    if beyond and pair is not None and not words:
        bias = held.get(f"{found.module}.bias") if found.phase == "forward" else None
        words = dropped_again(*pair) if found.phase == "backward" else ""
        words = words if bias is None else bias_added(*pair, bias, parts)
    return replace(found, judged=replace(found.judged, relation=found.judged.relation or words, pair=None))

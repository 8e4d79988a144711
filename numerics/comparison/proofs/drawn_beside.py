"""What a run and its baseline drew, beside each other: other random numbers, or numbers that follow another rule.

Each run's own proof reads what its dropout layers dropped, so that this needs no activation in common. Runs on other
meshes have none if their tensors are plain.
"""

from numerics.columns import Columns
from numerics.comparison.joins.mesh_axes import apart_axes
from numerics.comparison.verdict import Apart, Decision
from numerics.findings import Divergence
from numerics.local.draws.dropout_masks import Dropped
from numerics.local.proof import LocalProof
from numerics.local.recorded_step import Place
from numerics.local.repeated_draws import RepeatedDraws
from tracekit.axes import DATA


def settled_by_draws(apart: Apart | None, proof: LocalProof, baseline: LocalProof | None) -> Apart | None:
    """Return how two runs part by chance, settled by what both drew where their common tensors leave it open."""
    if apart is None or apart.certain or apart.inputs or baseline is None:
        return apart
    mine, other, step = proof.draws, baseline.draws, proof.first_step
    found = _drawn_otherwise(mine, other, step)
    if found:
        return Apart(f"the runs drew other random numbers: {found}")
    return None if _drawn_alike(mine, other, step) else apart


def alike_beside(run: Columns, proof: LocalProof, baseline: LocalProof | None) -> Decision | None:
    """Return a bug if ranks drop the same elements where the baseline drops others, of as many elements in all.

    No random numbers make this difference: the run draws its own by another rule than its baseline. Replicas that drop
    alike are no proof: Megatron-LM seeds them alike unless `--data-parallel-random-init` is given.
    """
    if baseline is None:
        return None
    there = {(one.axis, one.dropped.tensor) for one in baseline.draws.alike() if one.dropped is not None}
    for one in proof.draws.alike():
        tensor = "" if one.dropped is None else one.dropped.tensor
        size = _elements(baseline.draws, tensor, one.step)
        if (
            one.dropped is None
            or one.axis == DATA  # trainers seed replicas alike on purpose, or for want of another seed
            or (one.axis, tensor) in there
            or size != _elements(proof.draws, tensor, one.step)
        ):
            continue
        axes = [one.axis] if one.axis else apart_axes(run, one.ranks)
        where = Divergence(
            step=one.step,
            phase="forward",
            micro_batch=one.micro_batch,
            module=one.dropped.module,
            tensor=tensor,
            collective=None,
            axis=axes[0] if len(axes) == 1 else None,
            ranks=one.ranks,
            evidence="read from what the layer dropped",
        )
        return Decision("bug", "local", f"{one.words}, as the baseline does", where=where)
    return None


def _drawn_otherwise(mine: RepeatedDraws, other: RepeatedDraws, step: int) -> str:
    """Return in words what shows first that two runs drew other numbers in a step; "" if nothing does."""
    for one, there in _pairs(mine, other, step):
        count = min(len(one.kept), len(there.kept))
        both = one.nonzero[:count] & there.nonzero[:count]
        if bool((one.kept[:count] != there.kept[:count])[both].any()):
            return f"{one.tensor} at step {step} drops other elements"
    places = [place for place, drawn in mine.drew & other.drew if drawn == step]
    if any(_states(mine, step, place).isdisjoint(_states(other, step, place)) for place in places):
        return f"the forwards of step {step} draw from generators in unlike states"
    return ""


def _drawn_alike(mine: RepeatedDraws, other: RepeatedDraws, step: int) -> bool:
    """Return whether dropout layers alone draw, and drop the same of the same inputs at all places of a step."""
    if mine.random != {key[0] for key in mine.masks} or mine.masks.keys() != other.masks.keys():
        return False
    places = {place for drawn, place in mine.inputs if drawn == step}
    if any((step, place) not in other.inputs for place in places):
        return False
    inputs = (
        [{entry[1:] for entry in side.inputs[step, place]} for place in sorted(places)]
        for side in (mine, other)
    )
    return len(_pairs(mine, other, step)) == len(mine.masks) and next(inputs) == next(inputs)


def _pairs(mine: RepeatedDraws, other: RepeatedDraws, step: int) -> list[tuple[Dropped, Dropped]]:
    """Return what the same calls of dropout layers dropped in both runs at the same places of a step."""
    both = [(held, other.masks[key]) for key, held in mine.masks.items() if key in other.masks]
    return [(one[step], there[step]) for one, there in both if step in one and step in there]


def _states(draws: RepeatedDraws, step: int, place: Place) -> set[int]:
    """Return the digests of the generators' states from which a place's forward draws."""
    return {digest for *_, digest in draws.states.get(place, {}).get(step, ())}


def _elements(draws: RepeatedDraws, tensor: str, step: int) -> int:
    """Return how many elements a dropout layer's outputs of a step have over all places and calls."""
    return sum(held[step].elements for key, held in draws.masks.items() if key[0] == tensor and step in held)

"""The order in which a stage of a pipeline works on micro-batches, chunk by chunk."""

from typing import NamedTuple


class Action(NamedTuple):
    """One micro-batch of one chunk, forward or backward."""

    forward: bool
    chunk: int
    micro: int


def order(stage: int, stages: int, chunks: int, micro: int) -> list[Action]:
    """A stage's actions: forward ones first, then one of each in turn, then the backward ones that are left."""
    total = micro * chunks
    behind = stages - 1 - stage
    ahead = min(behind if chunks == 1 else 2 * behind + (chunks - 1) * stages, total)
    forward = [action(place, stages, chunks, forward=True) for place in range(total)]
    backward = [action(place, stages, chunks, forward=False) for place in range(total)]
    turns = zip(forward[ahead:], backward, strict=False)
    return [*forward[:ahead], *(action for turn in turns for action in turn), *backward[total - ahead :]]


def action(place: int, stages: int, chunks: int, *, forward: bool) -> Action:
    """What stands at a place of the order: as many micro-batches of a chunk as there are stages, then of the next."""
    if chunks == 1:
        return Action(forward, 0, place)
    turn, within = divmod(place, stages * chunks)
    chunk, micro = divmod(within, stages)
    return Action(forward, chunk if forward else chunks - 1 - chunk, turn * stages + micro)

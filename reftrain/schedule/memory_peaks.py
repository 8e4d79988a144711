"""Peaks of what each rank holds while a table runs: activations, stage inputs and weight versions, counted.

Units are those of Chimera's table 2: the activations of one micro-batch on one virtual stage (M_a) and the
weights of one virtual stage (M_theta). The memory model multiplies them by bytes.
"""

from dataclasses import dataclass

from reftrain.schedule.actions import ENDS_BACKWARD, RECEIVES, Action, Kind, Schedule


@dataclass(frozen=True)
class MemoryPeaks:
    """Peaks of one rank.

    `activations` counts the (stage, micro-batch) pairs with activations in memory at once. `inputs` counts the pairs
    with at least the stage's input in memory; it is larger only with recomputation. `weights` counts versions of
    weights, summed over the stages, the present ones included.
    """

    activations: int
    inputs: int
    weights: int


def memory_peaks(schedule: Schedule, rank: int) -> MemoryPeaks:
    """Return the peaks of what a rank holds.

    A forward takes the activations of its micro-batch. The backward (its weight part where it is split) or `X` gives
    them back; `C` takes them again.
    """
    held: set[tuple[int, int, int]] = set()
    inputs: set[tuple[int, int, int]] = set()
    peak = peak_inputs = 0
    for action in schedule.actions[rank]:
        key = action.replica, action.stage, action.micro_batch
        if action.kind in {Kind.FORWARD, Kind.RECOMPUTE}:
            held.add(key)
            inputs.add(key)
        elif action.kind is Kind.FREE:
            held.discard(key)
        peak, peak_inputs = max(peak, len(held)), max(peak_inputs, len(inputs))
        if action.kind in ENDS_BACKWARD:
            held.discard(key)
            inputs.discard(key)
    return MemoryPeaks(peak, peak_inputs, _weights(schedule, rank))


def _weights(schedule: Schedule, rank: int) -> int:
    """Return the most versions of weights at once: the present one of each stage and the distinct stashed ones."""
    present = dict.fromkeys(schedule.held_by(rank), 0)
    stashed: dict[tuple[int, int], dict[int, int]] = {key: {} for key in present}
    most = len(present)
    for action in schedule.actions[rank]:
        key = action.replica, action.stage
        if action.kind is Kind.STASH_WEIGHTS:
            stashed[key][action.micro_batch] = present[key]
        elif action.kind is Kind.DROP_WEIGHTS:
            stashed[key].pop(action.micro_batch, None)
        elif action.kind is Kind.OPTIMIZER_STEP:
            present[key] += 1
        else:
            continue
        most = max(most, sum(len({present[k], *stashed[k].values()}) for k in present))
    return most


def peak_receive_buffers(schedule: Schedule, rank: int) -> int:
    """Return the most receive buffers that a rank of a lowered schedule holds at once.

    The buffer of an activation is held from its receive to the end of that micro-batch's backward on that stage, where
    autograd reads it. The buffer of a gradient is held to the same end, where the weight part reads it.
    """
    held: set[Action] = set()
    most = 0
    for action in schedule.actions[rank]:
        if action.kind in RECEIVES:
            held.add(action)
            most = max(most, len(held))
        if action.kind in ENDS_BACKWARD:
            held.discard(action.of(Kind.RECV_GRADIENT))
            held.discard(action.of(Kind.RECV_ACTIVATION))
    return most

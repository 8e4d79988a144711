"""The time that operations with ranks without a trace take if these are not late: that of others of their kind."""

from collections import defaultdict
from collections.abc import Collection, Hashable

import numpy as np

from tracekit.matching.channels import Channel
from tracekit.timing.buffered_sends import bytes_of
from tracekit.timing.measured import Measured
from tracekit.units import F64, Mask


def least_transfers(run: Measured) -> tuple[F64, Mask]:
    """Return by operation (the transfer of complete ones of its kind in a typical group, ns; whether that is shown).

    Without a complete one, the shortest duration, which is a transfer where several replicas recorded the kind: not all
    of them always wait for an unrecorded rank, unless that is of a stage without any trace. Infinite for operations of
    unknown groups.
    """
    ops, waits, seen = run.ops, run.waits, {run.mesh.stage(rank) for rank in run.ops.ranks}
    kinds = {row: _kind(run, row) for row in np.flatnonzero((ops.channel >= 0) & run.analysed).tolist()}
    whole: dict[Hashable, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    shortest: dict[Hashable, float] = defaultdict(lambda: np.inf)
    replicas: dict[Hashable, set[int]] = defaultdict(set)
    within = [_replica(run, channel, seen) for channel in ops.channels]
    for row, kind in kinds.items():
        shortest[kind] = min(shortest[kind], float(ops.end[row] - ops.start[row]))
        replicas[kind] |= within[int(ops.channel[row])]
        if (number := int(ops.instance[row])) >= 0 and waits.complete[number]:
            whole[kind][int(ops.channel[row])].append(float(waits.transfer[number]))
    usual = shortest | {
        kind: float(
            np.quantile([np.median(ns) for ns in of.values()], 0.5, method="lower")
        )  # of two the sound one
        for kind, of in whole.items()
    }
    least, shown = np.full(len(ops.start), np.inf), np.zeros(len(ops.start), bool)
    for row, kind in kinds.items():
        least[row], shown[row] = usual[kind], kind in whole or len(replicas[kind]) > 1
    return least, shown


def _replica(run: Measured, channel: Channel, stages: Collection[int]) -> set[int]:
    """Return the replica of the members of `channel`; none where they are of several, or not all of the `stages`."""
    found = {run.mesh.replica(rank) for rank in channel.members}
    return found if len(found) == 1 and {run.mesh.stage(r) for r in channel.members} <= set(stages) else set()


def _kind(run: Measured, row: int) -> Hashable:
    """Return the kind of an operation; of a stage, where the size is unknown and stages may move different ones."""
    channel, token = run.ops.channels[int(run.ops.channel[row])], str(run.ops.token[row])
    stages = {run.mesh.stage(rank) for rank in channel.members} if bytes_of(token) < 0 else ()
    return token, channel.p2p, run.shape_of(channel), tuple(sorted(stages))

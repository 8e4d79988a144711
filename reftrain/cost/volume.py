"""Bytes that a rank's collectives move in a step, by formula: the operations of the cost model, counted.

Source of the ring's share: Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH".
"""

from collections import Counter

from reftrain.cost.cost_model import CostModel
from reftrain.cost.job import Job
from reftrain.cost.kernels import Operation, Phase

Volume = Counter[tuple[str, str]]
"""Bytes by axis and operation: of the gathered tensor, or of a reduction's input."""


def step_volume(job: Job, costs: CostModel) -> Volume:
    """Return the bytes of all collectives of tensors in a step of a job without a pipeline, of one rank.

    Counts of tokens, losses and norms of the whole model are left out: a few bytes each. Weights are gathered once a
    step, or (ZeRO-3) for each forward and backward; gradients are reduced once a step, or (ZeRO-2 and 3) each time.
    """
    mesh, m, volume = job.mesh, job.micro_batches, Counter[tuple[str, str]]()
    phases: tuple[Phase, ...] = ("forward", "backward")
    for phase in phases:
        layer = [o for o in costs.layer(phase) if o.op]
        ends = [o for o in (*costs.embedding(phase), *costs.head(phase)) if o.op]
        _add(volume, layer, m * job.model.layers)
        _add(volume, ends, m)
    if costs.links("dp_cp").size > 1:
        sharded = job.stage_parameters(0) - whole_parameters(job)
        gathers = 2 * m if mesh.shards_parameters else 1
        reductions = m if mesh.shards_gradients else 1
        volume["dp_cp", "all_gather"] += round(gathers * sharded * job.compute_bytes)
        volume["dp_cp", "reduce_scatter"] += round(reductions * sharded * job.reduce_bytes)
    for axis in ("dp_cp", "tp"):
        if mesh.annotated and costs.links(axis).size > 1:
            volume[axis, "all_reduce"] += whole_parameters(job) * job.parameter_bytes
    return volume


def whole_parameters(job: Job) -> int:
    """Parameters that every rank holds whole: the norms under SPMD 2-D sharding, none otherwise."""
    return (2 * job.model.layers + 1) * job.model.dim if job.mesh.annotated else 0


def sent(volume: Volume, costs: CostModel) -> float:
    """Return the bytes that a rank sends in rings: (n-1)/n of each buffer, twice for an all-reduce."""
    total = 0.0
    for (axis, op), nbytes in volume.items():
        n = costs.links(axis).size
        total += nbytes * (n - 1) / n * (2 if op == "all_reduce" else 1)
    return total


def _add(volume: Volume, operations: list[Operation], times: int) -> None:
    for operation in operations:
        volume[operation.axis, operation.op] += times * operation.nbytes

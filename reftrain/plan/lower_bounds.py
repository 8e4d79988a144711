"""Quick lower bounds on a job's time and memory, from closed forms, by which the planner leaves candidates out.

Each lies below the value that `projection` and `cost.memory` compute (tests hold them to it), so that no candidate is
left out that could have been chosen.
"""

from itertools import accumulate

from reftrain.cost.activations import head_kept, layer_kept
from reftrain.cost.cost_model import CostModel
from reftrain.cost.job import Job
from reftrain.cost.kernels import Phase
from reftrain.plan.projection import stage_time
from reftrain.thresholds import BOUND_SLACK


def in_flight(job: Job) -> int:
    """Return the largest number of (virtual stage, micro-batch) pairs with activations on a pipeline rank.

    1F1B holds p micro-batches; the flexible schedule (v-1)·k + 2·(p-1) warm-up forwards and one more, or
    everything for k < p; all-forward-all-backward everything. Where k does not divide m, the flexible
    schedule may hold more (its generator adds warm-up that runs).
    """
    p, v, m = job.mesh.pp, job.virtual, job.micro_batches
    if job.schedule == "1f1b":
        return min(m, p)
    k = min(job.consecutive, m)
    if job.schedule == "flexible" and k >= p:
        return min(m * v, (v - 1) * k + 2 * (p - 1) + 1)
    return m * v


def memory_bound(job: Job) -> float:
    """Return the bytes that the fullest pipeline rank needs at least."""
    parameters = sum(job.layers) * job.shapes.layer_parameters / job.mesh.pp
    trained = parameters / (job.model.group if job.model.frozen else 1)
    shard = trained / job.shard_ranks
    whole = 0.0 if job.mesh.shards_parameters else parameters * job.compute_bytes
    # Sums of all stages stand together only where a further round of micro-batches follows the first.
    rounds = job.micro_batches >= 2 * max(job.mesh.pp, job.consecutive) and job.schedule != "afab"
    # ZeRO-2 holds shards of those that it has reduced, 1F1B reduces once.
    summed = shard if job.mesh.shards_gradients and job.schedule != "1f1b" else trained
    sums = summed * job.reduce_bytes if rounds else 0.0
    # The second rank holds two warm-up forwards less than the first, but only whole stages.
    own = job.layers[1 if job.mesh.pp > 2 else 0 :: job.mesh.pp]
    layers = 0 if job.model.cross_every else max(in_flight(job) - 2, 0) * sum(own) / len(own)
    states = parameters / job.shard_ranks * job.parameter_bytes + shard * job.device_state_bytes
    # The last rank keeps what its loss needs of every micro-batch that goes back later.
    losses = job.micro_batches if job.schedule == "afab" else 1
    kept = max(layers * layer_kept(job).total, losses * head_kept(job).total)
    return BOUND_SLACK * (states + max(whole + sums + kept, shard * job.reduce_bytes))


def time_bound(job: Job, costs: CostModel) -> float:
    """Return the seconds that a step takes at least: its computation and the pipeline's fill and drain.

    A round of k >= p micro-batches keeps all ranks busy, a shorter one lasts until its first micro-batch has
    come round; so v·max(m, p) + min(m, p) - 1 virtual stages follow one another. Every rank computes all
    micro-batches on its own stages, after the first has come forward from rank 0 and before the last is back there.
    """
    p, v, m = job.mesh.pp, job.virtual, job.micro_batches
    stages = _stage_seconds(job, costs)
    rounds = (v * max(m, p) + min(m, p) - 1) * sum(stages) / len(stages)
    ways = accumulate(stages[: p - 1], initial=0.0)
    ranks = (m * sum(stages[rank::p]) + way for rank, way in enumerate(ways))
    bound = max(BOUND_SLACK * rounds, *ranks)
    if not job.mesh.shards_parameters or costs.links("dp_cp").size == 1:
        return bound
    # ZeRO-3 gathers all weights for every forward and every backward.
    gathered = sum(costs.gather_weights(s).seconds for s in job.stages)
    return max(bound, BOUND_SLACK * 2 * m * gathered / p)


def _stage_seconds(job: Job, costs: CostModel) -> list[float]:
    """Return the seconds of forward and backward of every virtual stage, on one micro-batch."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    first, last = (
        sum(stage_time(costs, part(phase)) for phase in phases) for part in (costs.embedding, costs.head)
    )
    kinds = {kind for s in job.stages for kind in s.counts}
    layer = {k: sum(stage_time(costs, costs.layer(phase, kind=k)) for phase in phases) for k in kinds}
    return [
        sum(n * layer[kind] for kind, n in s.counts.items()) + s.first * first + s.last * last
        for s in job.stages
    ]

"""The cost of document masks under context parallelism: uneven attention, and waiting for the slowest rank.

The pairs of each context rank come from `reftrain.plan.attention_pairs`; the step is timed with them. Source:
"Scaling Llama 3 Training" (ISCA'25), sections 4 and 7.3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.kernels import Operation
from reftrain.papers.bisection import bisect
from reftrain.plan.attention_pairs import F64, sample_pairs
from reftrain.plan.projection import durations
from reftrain.plan.step_time import time_step


@dataclass(frozen=True)
class Imbalance:
    """The cost of document masks to a job.

    `slowest_over_fastest` is the compute time of the slowest GPU over that of the fastest, in one step; `step_s` is the
    seconds of a step. `cp_share` is the exposed communication of the context axis as a share of the step, waiting
    included, and `waiting_part` the part of it in which ranks wait for the slowest of their group. `mean_pairs` is the
    share of all causal pairs that attend.
    """

    slowest_over_fastest: float
    step_s: float
    cp_share: float
    waiting_part: float
    mean_pairs: float


class DocumentModel:
    """Document masks on one job: `steps` sampled steps of all its sequences."""

    def __init__(self, job: Job, hardware: Hardware, steps: int = 24) -> None:
        self.job, self.steps = job, steps
        self.costs = cost_model_of(job, hardware, 0.0)
        mesh = job.mesh
        self.shape = steps, mesh.dp, job.micro_batches, mesh.cp

    def pairs(self, mean: float) -> F64:
        """Return the pairs by step, data-parallel rank, micro-batch and context rank."""
        steps, dp, m, cp = self.shape
        if self.job.micro_batch_size != 1:
            raise ValueError("one sequence a micro-batch is modelled")
        return sample_pairs(mean, self.job.seq_len, cp, steps * dp * m).reshape(self.shape)

    def ratio(self, pairs: F64) -> float:
        """Return the compute time of the slowest GPU over that of the fastest, mean of the steps.

        GPUs differ by their data (dp, cp) and by their layers (pp: embedding, head, layers).
        """
        own, _ = _compute(self.costs)
        head = _compute_of((*self.costs.head("forward"), *self.costs.head("backward")))
        embedding = _compute_of((*self.costs.embedding("forward"), *self.costs.embedding("backward")))
        layer = own + _attention(self.costs, pairs)  # (steps, dp, m, cp)
        totals = layer.sum(axis=2).reshape(self.steps, -1)
        m, job = self.job.micro_batches, self.job
        by_rank = [
            sum(s.layers for s in stages) * totals
            + m * sum(s.last * head + s.first * embedding for s in stages)
            for stages in ([job.stages[s] for _, s in job.table.held_by(r)] for r in range(job.mesh.pp))
        ]
        everything = np.concatenate(by_rank, axis=1)
        return float((everything.max(axis=1) / everything.min(axis=1)).mean())

    def fit_mean(self, ratio: float) -> float:
        """Return the mean document length at which the slowest GPU computes `ratio` times as long as the fastest.

        Short documents balance out and documents longer than the sequence leave a plain causal mask, which
        the chunks balance: the ratio rises and falls with the mean, and two means give it. The longer one
        is taken: there most of the slow ranks hold sequences without a boundary, as is reported of the real
        job (section 4, on why the chunks suit a full causal mask).
        """
        length = float(self.job.seq_len)
        return bisect(lambda mean: self.ratio(self.pairs(mean)) < ratio, length / 3, 8 * length, steps=16)

    def effect(self, mean: float, timed: int = 3) -> Imbalance:
        """Return the cost of documents of this mean length; the first `timed` steps are timed."""
        pairs = self.pairs(mean)
        job, costs = self.job, self.costs
        attention = _attention(costs, pairs)
        slowest = attention.max(axis=3)
        waiting = float((slowest[..., None] - attention).mean())
        _, transfer = _compute(costs)
        step = float(np.mean([self._step(pairs[i].max(axis=2)) for i in range(timed)]))
        calls = job.micro_batches * sum(job.layers) / job.mesh.pp
        every = job.seq_len * (job.seq_len + 1) / 2
        return Imbalance(
            self.ratio(pairs),
            step,
            calls * (waiting + transfer) / step,
            waiting / (waiting + transfer),
            float(pairs.sum(axis=3).mean()) / every,
        )

    def _step(self, slowest: F64) -> float:
        """Seconds of a step in which the slowest context ranks of micro-batches have these pairs, (dp, m)."""
        base = replace(durations(self.job, self.costs), layers=self.job.layers)
        seconds = []
        for of_rank in slowest:
            extra = tuple(
                (
                    self.costs.attention_seconds("forward", float(pairs)),
                    self.costs.attention_seconds("backward", float(pairs)),
                )
                for pairs in of_rank
            )
            seconds.append(time_step(self.job.lowered, replace(base, attention=extra)).seconds)
        return float(max(seconds))


def _attention(costs: CostModel, pairs: F64) -> F64:
    """Seconds of one layer's attention core, forward and backward; same shape as `pairs`."""
    one = costs.attention_seconds("forward", 1.0) + costs.attention_seconds("backward", 1.0)
    return pairs * one


def _compute_of(operations: Sequence[Operation]) -> float:
    return sum(o.seconds for o in operations if not o.is_collective)


def _compute(costs: CostModel) -> tuple[float, float]:
    """Seconds of a layer's computation without pairs, and of its transfers on the context axis."""
    operations = (*costs.layer("forward"), *costs.layer("backward"))
    return _compute_of(operations), sum(o.seconds for o in operations if o.axis == "cp")

"""What documents that do not attend to each other do to context parallelism: uneven attention, and waiting.

Sequences are packed from documents of exponential length, as `reftrain.data` packs them; context rank i
holds chunks i and 2·cp-1-i, and its attention costs the (query, key) pairs of its own queries. In every
layer the ranks of a context group meet at the gather of keys and values, so that each waits for the one with
the most pairs. Source: "Scaling Llama 3 Training" (ISCA'25), sections 4 and 7.3.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reftrain.cost.cost import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job
from reftrain.cost.kernels import Operation
from reftrain.plan.projection import cost_model, durations
from reftrain.plan.published import bisect
from reftrain.plan.step_time import replay

F64 = npt.NDArray[np.float64]


def pairs_of_ranks(ends: F64, seq_len: int, cp: int) -> F64:
    """(Query, key) pairs of each context rank, (cp,), of a sequence whose documents end at `ends`.

    `ends` is ascending; the last is `seq_len`. A token attends to itself and its document's earlier tokens.
    """
    starts = np.concatenate([[0.0], ends[:-1]])
    lengths = ends - starts
    before = np.concatenate([[0.0], np.cumsum(lengths * (lengths + 1) / 2)])
    edges = np.linspace(0.0, seq_len, 2 * cp + 1)
    document = np.minimum(np.searchsorted(ends, edges, side="right"), len(ends) - 1)
    into = edges - starts[document]
    chunks = np.diff(before[document] + into * (into + 1) / 2)
    folded: F64 = chunks[:cp] + chunks[::-1][:cp]
    return folded


def document_ends(rng: np.random.Generator, mean: float, seq_len: int) -> F64:
    """Ends of the documents packed into one sequence, lengths 1 + exponential, the last one cut."""
    ends: list[F64] = []
    total = 0.0
    while total < seq_len:
        some = total + np.cumsum(1 + np.floor(rng.exponential(1.0, size=64) * mean))
        ends.append(some)
        total = float(some[-1])
    joined = np.concatenate(ends)
    kept = joined[: int(np.searchsorted(joined, seq_len)) + 1].copy()
    kept[-1] = seq_len
    return kept


def sample_pairs(mean: float, seq_len: int, cp: int, count: int, seed: int = 0) -> F64:
    """Pairs of each context rank of `count` sequences, (count, cp).

    Sequence i has a random stream of its own, so that samples of two means differ by the means alone.
    """
    rows = [
        pairs_of_ranks(document_ends(np.random.default_rng((seed, i)), mean, seq_len), seq_len, cp)
        for i in range(count)
    ]
    return np.stack(rows)


def slowest_pairs(mean: float, seq_len: int, cp: int, count: int = 64) -> float:
    """Pairs of a sequence as the planner needs them: cp times the mean pairs of the context group's slowest."""
    return float(sample_pairs(mean, seq_len, cp, count).max(axis=1).mean() * cp)


@dataclass(frozen=True)
class Imbalance:
    """What document masks cost a job.

    `slowest_over_fastest` total compute time of the slowest GPU over the fastest, in one step; `step_s` the
    step; `cp_share` the exposed communication of the context axis as a share of it, waiting included;
    `waiting_part` the part of that in which ranks wait for the slowest of their group; `mean_pairs` the
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
        self.costs = cost_model(job, hardware, 0.0)
        mesh = job.mesh
        self.shape = steps, mesh.dp, job.micro_batches, mesh.cp

    def pairs(self, mean: float) -> F64:
        """Pairs by step, data-parallel rank, micro-batch and context rank."""
        steps, dp, m, cp = self.shape
        if self.job.micro_batch_size != 1:
            raise ValueError("one sequence a micro-batch is modelled")
        return sample_pairs(mean, self.job.seq_len, cp, steps * dp * m).reshape(self.shape)

    def ratio(self, pairs: F64) -> float:
        """Total compute of the slowest GPU over that of the fastest, mean of the steps.

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
        """Mean document length at which the slowest GPU computes `ratio` times as long as the fastest.

        Short documents balance out and documents longer than the sequence leave a plain causal mask, which
        the chunks balance: the ratio rises and falls with the mean, and two means give it. The longer one
        is taken: there most of the slow ranks hold sequences without a boundary, as is reported of the real
        job (section 4, on why the chunks suit a full causal mask).
        """
        length = float(self.job.seq_len)
        return bisect(lambda mean: self.ratio(self.pairs(mean)) < ratio, length / 3, 8 * length, steps=16)

    def effect(self, mean: float, replayed: int = 3) -> Imbalance:
        """What documents of this mean length cost; the first `replayed` steps are replayed."""
        pairs = self.pairs(mean)
        job, costs = self.job, self.costs
        attention = _attention(costs, pairs)
        slowest = attention.max(axis=3)
        waiting = float((slowest[..., None] - attention).mean())
        _, transfer = _compute(costs)
        step = float(np.mean([self._step(pairs[i].max(axis=2)) for i in range(replayed)]))
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
        """Seconds of a step whose micro-batches' slowest context ranks have these pairs, (dp, m)."""
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
            seconds.append(replay(self.job.lowered, replace(base, attention=extra)).seconds)
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

"""Memory of a rank over one step, by kind: weights, gradients, optimiser, activations, buffers, and their peak.

The actions of the rank in the lowered schedule, the one that is executed, are walked in order (`memory_walk`); the
parts that do not change during a step are added here. Figures are those of the second step, when optimiser states and
receive buffers exist.

Source: kinds as in Rajbhandari et al. 2020, "ZeRO", section 3, and Korthikanti et al. 2022, section 4.
"""

from dataclasses import dataclass

from reftrain.cost.activations import carried_kept, tokens_kept
from reftrain.cost.job import Job
from reftrain.cost.memory_walk import Bytes, State, Walk
from reftrain.documents import BytesDocument, RankMemoryDocument
from reftrain.schedule.memory_peaks import peak_receive_buffers


@dataclass(frozen=True)
class RankMemory:
    """Memory of one pipeline rank (equal on all its data, context and tensor ranks), in bytes.

    `at_peak` is the largest moment of the step by kind; `largest` holds each kind's own largest value;
    `activation_kinds` splits the activations of the peak into norms, attention, feed_forward and head;
    `in_flight` is the largest number of (virtual stage, micro-batch) pairs with activations in memory; `host` is what
    an offloaded optimiser holds in the host's memory.
    """

    rank: int
    at_peak: Bytes
    largest: Bytes
    activation_kinds: dict[str, float]
    in_flight: int
    host: float = 0.0

    @property
    def peak(self) -> float:
        """Bytes of the largest moment."""
        return self.at_peak.total

    def as_json(self) -> RankMemoryDocument:
        """The rank's row of `reftrain.memory/1`: whole bytes, the kinds at the peak adding up to it."""
        kinds = _whole(self.at_peak)
        return {
            "rank": self.rank,
            **kinds,
            "peak": kinds["weights"]
            + kinds["gradients"]
            + kinds["optimizer"]
            + kinds["activations"]
            + kinds["buffers"],
            "largest": _whole(self.largest),
            "activations_by_kind": {name: round(value) for name, value in self.activation_kinds.items()},
            "in_flight": self.in_flight,
            "host": round(self.host),
        }


def _whole(held: Bytes) -> BytesDocument:
    """The kinds in whole bytes."""
    return {
        "weights": round(held.weights),
        "gradients": round(held.gradients),
        "optimizer": round(held.optimizer),
        "activations": round(held.activations),
        "buffers": round(held.buffers),
    }


class MemoryModel:
    """Computes the memory of the pipeline ranks of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def ranks(self) -> list[RankMemory]:
        """Memory of all pipeline ranks."""
        return [self.rank(index) for index in range(self.job.mesh.pp)]

    def peak(self) -> float:
        """Bytes of the fullest rank.

        Warm-up shrinks from rank to rank and only the ends of the pipeline differ otherwise; of a one-way schedule
        the first two and the last rank are therefore enough.
        """
        last = self.job.mesh.pp - 1
        some = {0, min(1, last), last} if not self.job.lowered.others else range(last + 1)
        return max(self.rank(index).peak for index in some)

    def rank(self, index: int) -> RankMemory:
        """Memory of one pipeline rank."""
        job = self.job
        held = job.lowered.held_by(index)
        images = job.encoder_parameters / job.shard_ranks if index in job.lowered.encoders else 0.0
        trained = images + sum(job.trained_parameters(stage) for _, stage in held)
        every = images + sum(job.sharded_parameters(stage) for _, stage in held)
        state = State(
            shards=every * job.parameter_bytes,
            states=trained * job.device_state_bytes,
            fixed=self._batches() + self._messages(index) + tokens_kept(job),
        )
        walk = Walk(job, index, state)
        for action in job.lowered.actions[index]:
            walk.step(action)
        self._optimizer(state, trained)
        host = trained * job.host_state_bytes
        return RankMemory(index, state.peak, Bytes(*state.largest), state.kinds, walk.in_flight, host)

    def _batches(self) -> float:
        """Tokens, targets, positions and masks of all micro-batches, cut before the step begins."""
        job = self.job
        whole = job.micro_batch_size * job.seq_len
        one = 24 * whole + 16 * job.tokens + (job.seq_len // job.mesh.cp) * (8 + 4 * job.model.head_dim)
        if job.kernels == "eager" and (job.attention == "sdpa" or job.ring):
            one += job.tokens * job.seq_len
        return job.micro_batches * one

    def _messages(self, index: int) -> float:
        """Receive buffers, which are never given back, and two messages on their way; of image tokens one each way."""
        job = self.job
        if job.mesh.pp == 1:
            return 0.0
        tokens = 2 * (job.compute_bytes * job.image_tokens * job.model.dim + carried_kept(job).total)
        of_tokens = tokens if job.encoder.placed == "inside" else 0.0
        return (peak_receive_buffers(job.lowered, index) + 2) * job.message_bytes + of_tokens

    def _optimizer(self, state: State, shard: float) -> None:
        """The optimiser's moment: gradient shards, their clipped copy, and temporaries of its kernel."""
        job = self.job
        master = shard * max(job.parameter_bytes, 4)
        state.gathered = 0.0
        state.gradients = shard * job.reduce_bytes
        if job.offload:  # the host clips and steps
            state.look()
            return
        copies = master if job.clips and job.kernels == "eager" else 0.0
        state.look(passing=master if job.optimizer == "foreach" else 0.0, gradients=copies)

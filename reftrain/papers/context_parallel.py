"""Attention under context parallelism beside one GPU: figures 11 to 13 of "Scaling Llama 3 Training" (ISCA'25).

The *relative HFU* is the attention time of one GPU over cp times that of cp GPUs, forward and backward. Keys and values
are gathered before the kernel, exposed (the paper's method), or pass around a ring beside the kernels (its comparison).
"""

from dataclasses import dataclass, replace
from typing import Final

from reftrain.config.run import MeshConfig
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.kernels import Phase
from reftrain.cost.links import message_seconds
from reftrain.papers.figure import Line
from reftrain.papers.llama3 import LLAMA_405B
from reftrain.plan.attention_pairs import sample_pairs

TENSOR: Final = 8
"""The paper measures the attention of one tensor rank: 16 query heads, one key/value head."""
HEADS: Final = replace(LLAMA_405B, heads=LLAMA_405B.heads // TENSOR, kv_heads=1, dim=LLAMA_405B.dim // TENSOR)
SEQUENCES: Final = 64
"""Sampled sequences of documents."""
MEAN: Final = 16 * 1024
"""Mean tokens of a document: the shorter of the two with which slowest over fastest is as published (`documents`)."""
BF16: Final = 2
FP32: Final = 4
K: Final = 1024


@dataclass(frozen=True)
class Attention:
    """One layer's attention on `cp` GPUs at `seq_len` tokens; bytes and seconds of one rank."""

    hardware: Hardware
    cp: int
    seq_len: int

    @property
    def costs(self) -> CostModel:
        """Costs on this number of context ranks."""
        return CostModel(self.hardware, HEADS, MeshConfig(cp=self.cp), seq_len=self.seq_len)

    @property
    def key_value_bytes(self) -> float:
        """Bytes of all keys and values of the sequence."""
        return 2 * self.seq_len * HEADS.dim / HEADS.heads * HEADS.kv_heads * BF16

    @property
    def kernel_s(self) -> float:
        """Seconds that a kernel loses at its start and end."""
        return self.hardware.host.kernel_us / 1e6

    def slowest_pairs(self, mean: float) -> float:
        """Return the pairs of the slowest context rank over those of the mean, for documents of `mean` tokens."""
        pairs = sample_pairs(mean, self.seq_len, self.cp, SEQUENCES)
        return float((pairs.max(axis=-1) / pairs.mean(axis=-1)).mean())

    def with_documents(self, mean: float) -> float:
        """Return the relative HFU, %, where tokens attend within documents and all wait for the slowest rank."""
        share = float(sample_pairs(mean, self.seq_len, 1, SEQUENCES).mean()) / self.costs.pairs
        alone = replace(self, cp=1).costs
        kernels = (alone.attention_seconds("forward") + alone.attention_seconds("backward")) * share
        whole = kernels + 2 * self.kernel_s
        moved = (
            self.gathered()
            - self.costs.attention_seconds("forward")
            - self.costs.attention_seconds("backward")
        )
        return 100 * whole / (self.cp * (kernels / self.cp * self.slowest_pairs(mean) + moved))

    def alone(self) -> float:
        """Return the seconds of one GPU with the whole sequence."""
        costs = replace(self, cp=1).costs
        return costs.attention_seconds("forward") + costs.attention_seconds("backward") + 2 * self.kernel_s

    def gathered(self) -> float:
        """Return the seconds with an all-gather before the forward and a reduce-scatter after the backward.

        The backward gathers again, as keys and values are not kept.
        """
        costs, moved = self.costs, self.key_value_bytes
        compute = costs.attention_seconds("forward") + costs.attention_seconds("backward") + 4 * self.kernel_s
        gathers = 2 * costs.collective("cp", "all_gather", moved)
        return compute + gathers + costs.collective("cp", "reduce_scatter", moved)

    def ring(self) -> float:
        """Return the seconds with a ring: cp turns of a kernel beside a message, and the merges of their results."""
        costs = self.costs
        message = message_seconds(costs.links("cp"), self.key_value_bytes / self.cp)
        outputs = self.seq_len / self.cp * HEADS.dim * FP32
        rate = self.hardware.device.memory_gb_s * 1e9 * self.hardware.efficiency.memory
        merge = 3 * outputs / rate + self.kernel_s
        seconds = 0.0
        messages: dict[Phase, int] = {"forward": 1, "backward": 2}
        for phase, sent in messages.items():
            kernel = costs.attention_seconds(phase, costs.mean_pairs / self.cp) + 2 * self.kernel_s
            seconds += self.cp * max(kernel, sent * message) + (self.cp - 1) * merge
        return seconds

    def relative(self, *, ring: bool = False) -> float:
        """Return the relative HFU, %."""
        return 100 * self.alone() / (self.cp * (self.ring() if ring else self.gathered()))


def figure_11(hardware: Hardware) -> list[Line]:
    """Return the relative HFU of gathered context parallelism by length, causal mask."""
    lines = [
        Line(f"relative HFU, cp 4, {length} K", "%", None, Attention(hardware, 4, length * K).relative())
        for length in (4, 8, 16, 32, 64)
    ]
    low = "waiting for other ranks and uneven kernels are not in the projection, so it is nearer to 100"
    return [
        *lines,
        Line("relative HFU, cp 4, 128 K", "%", 95.0, Attention(hardware, 4, 128 * K).relative(), why=low),
        *(
            Line(
                f"the same with documents of {MEAN // K} K on the mean, cp 4, {length} K, over causal", "", 1.0,
                Attention(hardware, 4, length * K).with_documents(MEAN) / Attention(hardware, 4, length * K).relative(),
                bound="≤",
            )
            for length in (32, 128)
        ),
    ]  # fmt: skip


def figure_12(hardware: Hardware) -> list[Line]:
    """Return the rate at which keys and values are gathered, bytes that a rank receives over the time."""
    lines = []
    for length in (8, 32, 128):
        job = Attention(hardware, 4, length * K)
        seconds = job.costs.collective("cp", "all_gather", job.key_value_bytes)
        lines.append(
            Line(
                f"all-gather of keys and values, cp 4, {length} K",
                "GB/s",
                None,
                0.75 * job.key_value_bytes / seconds / 1e9,
            )
        )
    return lines


def figure_13(hardware: Hardware) -> list[Line]:
    """Return gathered context parallelism beside a ring."""
    tiles = "attention has one efficiency at every size here: the small kernels of a ring cost their launches alone"
    lines = []
    for length in (4, 8):
        job = Attention(hardware, 4, length * K)
        ours = job.relative() - job.relative(ring=True)
        lines.append(Line(f"gathered less ring, cp 4, {length} K", "points", 13.53, ours, why=tiles))
    job = Attention(hardware, 2, 8 * K)
    order = job.relative(ring=True) / job.relative()
    lines.append(Line("ring over gathered, cp 2, 8 K", "", 1.0, order, bound="≥", why=tiles))
    for name, ring in (("gathered", False), ("ring", True)):
        ours = Attention(hardware, 4, 128 * K).relative(ring=ring)
        lines.append(Line(f"{name}, cp 4, 128 K", "%", 95.0, ours, bound="≥"))
    return lines

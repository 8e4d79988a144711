"""Settings that every module of a rank's model shares: shapes, axes, formats, and the split of tensors over `tp`."""

import math
from dataclasses import dataclass

import torch

from reftrain.config.run import ModelConfig
from reftrain.model.parameters import Spec
from reftrain.model.segments import Segments
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.comm import Axis
from reftrain.rank.events import Segment

NORMAL_STD = 0.02


@dataclass(frozen=True)
class ModelContext:
    """Settings of the model on one rank.

    `tokens` is the number of tokens of a micro-batch that a segment of this rank computes on (B times
    S/cp); `kernel` is one of `model.attention`; `recompute` is `none`, `selective` or `full`; `sequences` counts
    those of a step, of all ranks.
    """

    model: ModelConfig
    tp: TensorParallel
    cp: Axis
    segments: Segments
    parameter_dtype: torch.dtype
    kernel: str
    ring: bool
    recompute: str
    label_smoothing: float
    tokens: int
    ep: Axis
    sequences: int

    @property
    def groups(self) -> int:
        """Query heads that share a key/value head."""
        return self.model.heads // self.model.kv_heads

    @property
    def kv_copies(self) -> int:
        """Tensor ranks that hold the same key/value head."""
        return max(self.tp.axis.size // self.model.kv_heads, 1)

    @property
    def tp_sum(self) -> tuple[str, ...]:
        """Axes over which a parameter used on a part of the heads or tokens still has to sum its gradient."""
        return ("tp",) if self.tp.axis.size > 1 else ()

    @property
    def sequence_sum(self) -> tuple[str, ...]:
        """Like `tp_sum` for parameters used outside the tensor-parallel region: partial under SP only."""
        return ("tp",) if self.tp.sequence_parallel else ()

    @property
    def vocab_rows(self) -> int:
        """Rows of the vocabulary on one tensor rank, padding included."""
        return -(-self.model.vocab_size // self.tp.axis.size)

    @property
    def residual_std(self) -> float:
        """Standard deviation of projections into the residual stream (GPT-2, section 2.3)."""
        return NORMAL_STD / math.sqrt(2 * self.model.layers)

    def split(self, shape: tuple[int, ...], dim: int, std: float = NORMAL_STD) -> Spec:
        """Spec of a tensor cut evenly over `tp` along `dim`."""
        size = shape[dim] // self.tp.axis.size
        return Spec(shape, std=std, split=dim, start=self.tp.axis.index * size, size=size)

    def key_value(self, shape: tuple[int, ...]) -> Spec:
        """Spec of key or value rows, cut over `tp` by heads; neighbours share one when there are fewer."""
        heads, ranks = self.model.kv_heads, self.tp.axis.size
        if heads >= ranks:
            return self.split(shape, 0)
        copies = self.kv_copies
        width = self.model.head_dim
        start = self.tp.axis.index // copies * width
        first = self.tp.axis.index % copies == 0
        return Spec(shape, NORMAL_STD, split=0, start=start, size=width, sums=("kv",), first_copy=first)

    def vocabulary(self, tied_to: str | None = None, *, embeds: bool = False) -> Spec:
        """Spec of the embedding (which `embeds`) or output matrix, cut over `tp` by (padded) rows."""
        rows = self.vocab_rows
        shape = (self.model.vocab_size, self.model.dim)
        start = self.tp.axis.index * rows
        zeros = self.model.zero_columns if embeds or tied_to else 0
        return Spec(shape, NORMAL_STD, split=0, start=start, size=rows, tied_to=tied_to, zero_columns=zeros)

    def segment(self, name: str, layer: int) -> Segment:
        """Describe a segment with its forward work (the attention core's is known only with the mask)."""
        model, ranks = self.model, self.tp.axis.size
        kv_heads = max(model.kv_heads // ranks, 1)
        multiplied = {
            "qkv": model.dim * model.head_dim * (model.heads // ranks + 2 * kv_heads),
            "attention": 0,
            "out": model.dim * model.head_dim * model.heads // ranks,
            "ffn": 3 * model.dim * model.ffn_dim // ranks,
            "head": model.dim * self.vocab_rows,
        }
        return Segment(name, layer, "forward", 2 * self.tokens * multiplied[name])

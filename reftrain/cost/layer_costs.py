"""Seconds of the kernels and collectives of one layer, of the embedding and of the head, from shapes and hardware.

Sources: a tensor-parallel layer with sequence parallelism, Korthikanti et al. 2022; a context-parallel one,
"Scaling Llama 3 Training" (ISCA'25); work of attention, Dao 2023, "FlashAttention-2", section 3.2.
"""

from functools import cached_property

from reftrain.config.run import EncoderConfig, MeshConfig, ModelConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.kernels import Block, Operation, Phase, element_wise, in_order, matmul
from reftrain.cost.links import AxisLinks, axis_links, collective_seconds, message_seconds
from reftrain.cost.shapes import LayerKind, Shapes


class LayerCosts:
    """Costs of one job on one kind of hardware.

    `micro_batch_size` counts sequences of `seq_len` tokens; `recompute` is `none`, `selective` or `full`;
    `compute_bytes` and `reduce_bytes` are bytes an element of activations and weights, and of reduced
    gradients; `pairs` is the mean number of (query, key) pairs of a sequence that attend (by default all
    causal pairs, S·(S+1)/2); with `accumulates`, gradients of several micro-batches are summed before
    they are reduced.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: ModelConfig,
        mesh: MeshConfig,
        *,
        seq_len: int,
        micro_batch_size: int = 1,
        recompute: str = "none",
        compute_bytes: int = 2,
        reduce_bytes: int = 4,
        pairs: float | None = None,
        accumulates: bool = True,
        encoder: EncoderConfig | None = None,
    ) -> None:
        self.hardware, self.model, self.mesh = hardware, model, mesh
        self.seq_len, self.micro_batch_size, self.recompute = seq_len, micro_batch_size, recompute
        self.compute_bytes, self.reduce_bytes = compute_bytes, reduce_bytes
        self.pairs = seq_len * (seq_len + 1) / 2 if pairs is None else pairs
        self.accumulates = accumulates
        self.encoder_config = encoder or EncoderConfig()
        self.shapes = Shapes(model, mesh.tp)
        self._links: dict[str, AxisLinks] = {}

    def links(self, axis: str) -> AxisLinks:
        """Place an axis (tp, cp, pp, dp, dp_cp, world) on the nodes."""
        if axis not in self._links:
            self._links[axis] = axis_links(self.hardware, self.mesh, axis)
        return self._links[axis]

    def collective(self, axis: str, op: str, nbytes: float) -> float:
        """Seconds of a collective; `nbytes` is its larger buffer (gathered tensor, input of a reduction)."""
        return collective_seconds(self.links(axis), op, nbytes)

    @property
    def message_bytes(self) -> int:
        """Bytes of an activation, or its gradient, between two pipeline stages."""
        return self.local_tokens * self.model.dim * self.compute_bytes

    @cached_property
    def message_seconds(self) -> float:
        """Seconds of a message between neighbouring pipeline ranks."""
        return message_seconds(self.links("pp"), self.message_bytes)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one context rank: B · S/cp."""
        return self.micro_batch_size * self.seq_len // self.mesh.cp

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations outside the tensor-parallel regions are split over tp."""
        return self.mesh.sequence_parallel and self.mesh.tp > 1

    @property
    def local_tokens(self) -> int:
        """Tokens of a rank outside the tensor-parallel regions."""
        return self.tokens // self.mesh.tp if self.sequence_parallel else self.tokens

    @property
    def mean_pairs(self) -> float:
        """(Query, key) pairs of a micro-batch on one context rank, were they evenly spread."""
        return self.micro_batch_size * self.pairs / self.mesh.cp

    def attention_seconds(self, phase: Phase, pairs: float | None = None) -> float:
        """Seconds of one layer's attention core on `pairs` pairs of this rank (by default `mean_pairs`).

        Forward multiplies and adds 2 · heads · head width a pair twice; backward is 2.5 times that.
        """
        work = self._attention_flops(pairs)
        efficiency = self.hardware.efficiency
        if phase == "weight":
            return 0.0
        if phase == "forward":
            return work / (self.hardware.flops_per_s * efficiency.attention_forward)
        return 2.5 * work / (self.hardware.flops_per_s * efficiency.attention_backward)

    def layer(
        self, phase: Phase, pairs: float | None = None, kind: LayerKind = "layer"
    ) -> tuple[Operation, ...]:
        """Operations of one decoder layer in their order; `pairs` as in `attention_seconds`."""
        if kind in {"frozen", "unreached"} and phase != "forward":
            phase = "input"
            if kind == "unreached":
                return ()
        attention = self._attention(pairs)
        queries = [
            self._linear("qkv", self.model.dim, self.shapes.qkv_columns),
            self._point("rope", self.tokens * (self.shapes.attention_columns + self.shapes.kv_columns), 2),
        ]
        if kind == "cross":
            attention, queries = [self._cross_attention()], self._cross_queries()
        blocks = [
            self._enter("attention.qkv"),
            self._norm(),
            *queries,
            *attention,
            self._linear("out", self.shapes.attention_columns, self.model.dim),
            self._leave("attention.wo"),
            self._point("residual", self.local_tokens * self.model.dim, 3),
            self._enter("feed_forward.w1"),
            self._norm(),
            self._linear("ffn", self.model.dim, 2 * self.shapes.ffn_columns),
            self._point("activation", self.tokens * self.shapes.ffn_columns, 3),
            self._linear("ffn", self.shapes.ffn_columns, self.model.dim),
            self._leave("feed_forward.w2"),
            self._point("residual", self.local_tokens * self.model.dim, 3),
        ]
        again: tuple[Operation, ...] = ()
        if self.recompute == "full":
            again = in_order(blocks, "forward")
        elif self.recompute == "selective":
            again = in_order(attention, "forward")
        return again + in_order(blocks, phase) if phase in {"backward", "input"} else in_order(blocks, phase)

    def embedding(self, phase: Phase) -> tuple[Operation, ...]:
        """Operations of the embedding."""
        if self.model.frozen and phase != "forward":
            return ()
        rows = self._point("embedding", self.tokens * self.model.dim, 2)
        return in_order([rows, self._leave("tok_embeddings")], phase)

    def head(self, phase: Phase) -> tuple[Operation, ...]:
        """Operations of the last norm, the output projection and the loss."""
        if self.model.frozen and phase != "forward":
            phase = "input"
        logits = self.tokens * self.shapes.vocab_rows
        sums = self._collective("loss", "tp", "all_reduce", self.tokens * 4)
        blocks = [
            self._enter("output"),
            self._norm(),
            self._linear("head", self.model.dim, self.shapes.vocab_rows),
            # FP32 logits: maximum, exponentials and their sum, the target's.
            self._point("loss", logits * 4 // self.compute_bytes, 3),
            Block((*sums, *sums, *sums)),
        ]
        return in_order(blocks, phase)

    @property
    def _kernel_s(self) -> float:
        return self.hardware.host.kernel_us * 1e-6

    @property
    def _memory_rate(self) -> float:
        return self.hardware.device.memory_gb_s * 1e9 * self.hardware.efficiency.memory

    def _attention_flops(self, pairs: float | None) -> float:
        return 4 * self.shapes.attention_columns * (self.mean_pairs if pairs is None else pairs)

    def _attention(self, pairs: float | None) -> list[Block]:
        width = 2 * self.micro_batch_size * self.seq_len * self.shapes.kv_columns * self.compute_bytes
        flops = self._attention_flops(pairs)
        forward = self.attention_seconds("forward", pairs) + self._kernel_s
        backward = self.attention_seconds("input", pairs) + self._kernel_s
        core = Block(
            (Operation("attention", forward, flops=flops),),
            (Operation("attention", backward, flops=2.5 * flops), *self._around_attention()),
        )
        if self.mesh.cp == 1:
            return [core]
        gather = Block(
            self._collective("attention.kv", "cp", "all_gather", width),
            self._collective("attention.kv.grad", "cp", "reduce_scatter", width),
        )
        # The gathered chunks are put into the sequence's order, their gradients back into the ranks'.
        move = element_wise(self.hardware, "reorder", 2 * width)
        return [gather, Block((move,), (move,)), core]

    def _around_attention(self) -> tuple[Operation, ...]:
        """Kernels beside the backward's core, as FlashAttention-2 has them.

        Before it the products of output and its gradient; the queries' gradient is summed in FP32 and
        converted; with grouped heads the gradients of keys and values are written for every query head, then
        summed.
        """
        queries = self.tokens * self.shapes.attention_columns
        moved = 2 * queries * self.compute_bytes + queries * (2 * 4 + self.compute_bytes)
        operations = [element_wise(self.hardware, "attention", moved)]
        if self.shapes.attention_columns != self.shapes.kv_columns:
            elements = 2 * self.micro_batch_size * self.seq_len * self.shapes.attention_columns
            operations.append(element_wise(self.hardware, "attention", 2 * elements * self.compute_bytes))
        return tuple(operations)

    def _collective(self, name: str, axis: str, op: str, nbytes: int) -> tuple[Operation, ...]:
        links = self.links(axis)
        if links.size <= 1:
            return ()
        return (Operation(name, collective_seconds(links, op, nbytes), op=op, axis=axis, nbytes=nbytes),)

    def _enter(self, name: str) -> Block:
        """Into a tensor-parallel region: gather the sequence (its gradient is reduce-scattered), or nothing."""
        nbytes = self.tokens * self.model.dim * self.compute_bytes
        if self.sequence_parallel:
            return Block(
                self._collective(name, "tp", "all_gather", nbytes),
                self._collective(f"{name}.grad", "tp", "reduce_scatter", nbytes),
            )
        return Block((), self._collective(f"{name}.grad", "tp", "all_reduce", nbytes))

    def _leave(self, name: str) -> Block:
        """Out of a tensor-parallel region: sum the parts, each rank keeping its sequence piece or all."""
        nbytes = self.tokens * self.model.dim * self.compute_bytes
        if self.sequence_parallel:
            return Block(
                self._collective(name, "tp", "reduce_scatter", nbytes),
                self._collective(f"{name}.grad", "tp", "all_gather", nbytes),
            )
        return Block(self._collective(name, "tp", "all_reduce", nbytes))

    def _norm(self) -> Block:
        return self._point("norm", self.local_tokens * self.model.dim, 2)

    def _point(self, name: str, elements: float, passes: int) -> Block:
        """Element-wise kernel that moves every element `passes` times; backward reads the gradient as well."""
        nbytes = elements * self.compute_bytes
        return Block(
            (element_wise(self.hardware, name, nbytes * passes),),
            (element_wise(self.hardware, name, nbytes * (passes + 2)),),
        )

    def _linear(self, name: str, inner: int, columns: int, rows: int | None = None) -> Block:
        rows = self.tokens if rows is None else rows
        weights = [matmul(self.hardware, name, inner, rows, columns)]
        if self.accumulates:
            # Read the new gradient, read and write the FP32 sum.
            nbytes = inner * columns * (self.compute_bytes + 2 * self.reduce_bytes)
            weights.append(element_wise(self.hardware, "accumulate", nbytes))
        return Block(
            (matmul(self.hardware, name, rows, inner, columns),),
            (matmul(self.hardware, name, rows, columns, inner),),
            tuple(weights),
        )

    @property
    def image_tokens(self) -> int:
        """Image tokens of a micro-batch, the same on every tensor and context rank."""
        return self.micro_batch_size * self.encoder_config.tokens

    def _cross_queries(self) -> list[Block]:
        """Queries of the text, keys and values of the image tokens, and the sum of the tokens' gradients in FP32."""
        moved = self.image_tokens * self.model.dim * (2 * self.compute_bytes + 2 * 2 * 4)
        cast = element_wise(
            self.hardware, "qkv", self.image_tokens * self.model.dim * (4 + self.compute_bytes)
        )
        return [
            self._linear("qkv", self.model.dim, self.shapes.attention_columns),
            Block((cast,), (element_wise(self.hardware, "accumulate", moved),)),
            self._linear("qkv", self.model.dim, 2 * self.shapes.kv_columns, self.image_tokens),
        ]

    def _cross_attention(self) -> Block:
        """Attention of every text token to all image tokens of its sequence."""
        pairs = self.tokens * self.encoder_config.tokens
        flops = self._attention_flops(pairs)
        forward = self.attention_seconds("forward", pairs) + self._kernel_s
        backward = self.attention_seconds("input", pairs) + self._kernel_s
        return Block(
            (Operation("attention", forward, flops=flops),),
            (Operation("attention", backward, flops=2.5 * flops),),
        )

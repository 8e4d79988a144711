"""Seconds of the kernels and collectives of one layer, of the embedding and of the head, from shapes and hardware.

Sources: a tensor-parallel layer with sequence parallelism, Korthikanti et al. 2022; a context-parallel one,
"Scaling Llama 3 Training" (ISCA'25); work of attention, Dao 2023, "FlashAttention-2", section 3.2.
"""

from typing import Literal

from reftrain.cost.kernels import Block, Operation, Phase, element_wise, in_order, matmul
from reftrain.cost.links import collective_seconds
from reftrain.cost.placed_job import PlacedJob
from reftrain.cost.shapes import LayerKind


class LayerCosts(PlacedJob):
    """Operations of one layer, of the embedding and of the head; the arguments are those of `PlacedJob`."""

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
        branch = [
            self._enter("attention.qkv"),
            *self._norm(),
            *queries,
            *attention,
            self._linear("out", self.shapes.attention_columns, self.model.dim),
            self._leave("attention.wo"),
        ]
        if self.mesh.annotated:
            branch = [*self._norm(), *self._annotated_attention(attention)]
        blocks = [
            *branch,
            self._point("residual", self.local_tokens * self.model.dim, 3),
            self._enter("feed_forward.w1"),
            *self._norm(),
            *(self._experts() if self.model.experts else self._feed_forward(self.tokens)),
            self._leave("feed_forward.w2"),
            self._point("residual", self.local_tokens * self.model.dim, 3),
        ]
        again: tuple[Operation, ...] = ()
        if self.recompute == "full":
            again = in_order(blocks, "forward")
        elif self.recompute == "selective":
            again = in_order(attention, "forward")
        return again + in_order(blocks, phase) if phase in {"backward", "input"} else in_order(blocks, phase)

    def _annotated_attention(self, core: list[Block]) -> list[Block]:
        """SPMD 2-D: products over own features summed and cut into heads, the core, heads gathered, own output rows."""
        model, tp = self.model, self.mesh.tp
        heads, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        rotated = self.tokens * (self.shapes.attention_columns + self.shapes.kv_columns)
        return [
            self._linear("qkv", model.dim // tp, heads + 2 * keys),
            *(
                self._between(f"attention.qkv.{w}", "leave", n)
                for w, n in (("wq", heads), ("wk", keys), ("wv", keys))
            ),
            self._point("rope", rotated, 2),
            *core,
            self._between("attention.wo", "enter", heads),
            self._linear("out", heads, model.dim // tp),
        ]

    def _feed_forward(self, rows: int, held: int = 1) -> list[Block]:
        """SwiGLU of `rows` tokens, by `held` experts with even shares of them."""
        dim, columns = self.model.dim, self.shapes.ffn_columns
        return [
            self._linear("ffn", dim, 2 * columns, rows, held),
            self._point("activation", rows * columns, 3),
            self._linear("ffn", columns, dim, rows, held),
        ]

    def _experts(self) -> list[Block]:
        """Router, rows to the experts' ranks and back, experts with even shares, shared expert."""
        model = self.model
        rows = self.tokens * model.experts_per_token
        nbytes = rows * model.dim * self.compute_bytes
        there, back = (
            Block(
                self._collective(f"experts.{way}", "ep", "all_to_all", nbytes),
                self._collective(f"experts.{way}.grad", "ep", "all_to_all", nbytes),
            )
            for way in ("in", "out")
        )
        counts = Block(self._collective("experts.counts", "ep", "all_to_all", 8 * model.experts))
        sort = self._point("experts", rows * model.dim, 2)
        blocks = [self._linear("router", model.dim, model.experts), sort, counts, there]
        blocks += [*self._feed_forward(rows, model.experts // self.mesh.ep), back, sort]
        return blocks + (self._feed_forward(self.tokens) if model.shared_expert else [])

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
            *self._norm(),
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
        return self._between(name, "enter", self.model.dim)

    def _leave(self, name: str) -> Block:
        """Out of a tensor-parallel region: sum the parts, each rank keeping its sequence piece or all."""
        return self._between(name, "leave", self.model.dim)

    def _between(self, name: str, way: Literal["enter", "leave"], columns: int) -> Block:
        """Communication at one end of a tensor-parallel region, of tensors `columns` wide.

        Residuals that are cut, by tokens or (annotated) by features, are gathered and reduce-scattered.
        """
        nbytes = self.tokens * columns * self.compute_bytes
        if self.sequence_parallel or self.mesh.annotated:
            there, back = ("all_gather", "reduce_scatter")[:: 1 if way == "enter" else -1]
            return Block(
                self._collective(name, "tp", there, nbytes),
                self._collective(f"{name}.grad", "tp", back, nbytes),
            )
        if way == "enter":
            return Block((), self._collective(f"{name}.grad", "tp", "all_reduce", nbytes))
        return Block(self._collective(name, "tp", "all_reduce", nbytes))

    def _norm(self) -> list[Block]:
        """A norm; one that is cut by features sums a number a token over the ranks, in FP32, both ways."""
        point = self._point("norm", self.local_tokens * self.model.dim, 2)
        if not self.mesh.annotated:
            return [point]
        sums = self._collective("norm.squares", "tp", "all_reduce", 4 * self.tokens)
        return [point, Block(sums, sums)]

    def _point(self, name: str, elements: float, passes: int) -> Block:
        """Element-wise kernel that moves every element `passes` times; backward reads the gradient as well."""
        nbytes = elements * self.compute_bytes
        return Block(
            (element_wise(self.hardware, name, nbytes * passes),),
            (element_wise(self.hardware, name, nbytes * (passes + 2)),),
        )

    def _linear(self, name: str, inner: int, columns: int, rows: int = 0, held: int = 1) -> Block:
        """Products with `held` weights (inner, columns) that share `rows` evenly; all tokens if it is 0."""
        rows = rows or self.tokens
        weights = [matmul(self.hardware, name, inner, rows, columns)]
        if self.accumulates:
            # Read the new gradient, read and write the FP32 sum.
            nbytes = held * inner * columns * (self.compute_bytes + 2 * self.reduce_bytes)
            weights.append(element_wise(self.hardware, "accumulate", nbytes))
        return Block(
            (matmul(self.hardware, name, rows, inner, columns),),
            (matmul(self.hardware, name, rows, columns, inner),),
            tuple(weights),
        )

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

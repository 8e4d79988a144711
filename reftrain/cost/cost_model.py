"""Seconds of a rank's work, from the shapes of the job and the constants of the hardware.

`CostModel` has the operations of a layer (`layer_costs`), stage or image encoder in their order (the simulator writes
them as kernels, the planner adds them up), messages between stages, the gathers and reductions of data parallelism, and
the optimiser. Times are those of the device alone; waiting for other ranks is added by `plan.step_time` and
`simulate.engine`.
"""

from dataclasses import dataclass, replace

from reftrain.cost.kernels import Block, Operation, Phase, in_order, total
from reftrain.cost.layer_costs import LayerCosts
from reftrain.cost.links import collective_seconds
from reftrain.cost.shapes import StageShape, encoder_parameters
from reftrain.errors import ConfigError

OPTIMIZER_BYTES = 28
"""AdamW in FP32 reads gradient, weight and two moments and writes the last three: 7 · 4 bytes a parameter."""


@dataclass(frozen=True)
class OffloadedUpdate:
    """AdamW on the host: bytes and seconds of a copy each way, and seconds of the step, none hidden by another.

    Source: Ren et al. 2021, "ZeRO-Offload", section 4; the step reads and writes what it would on the device, at the
    bandwidth of the host's memory.
    """

    nbytes: int
    copy_s: float
    step_s: float

    @property
    def seconds(self) -> float:
        """Gradients to the host, the step, weights to the device."""
        return 2 * self.copy_s + self.step_s


class CostModel(LayerCosts):
    """Costs of one job on one kind of hardware; the arguments are those of `LayerCosts`."""

    def stage(self, shape: StageShape, phase: Phase, pairs: float | None = None) -> tuple[Operation, ...]:
        """Operations of a virtual stage on one micro-batch."""
        parts = [self.layer(phase, pairs, shape.kind(number)) for number in range(shape.layers)]
        if shape.first:
            parts.insert(0, self.embedding(phase))
        if shape.last:
            parts.append(self.head(phase))
        if phase != "forward":
            parts.reverse()
        return tuple(operation for part in parts for operation in part)

    def stage_seconds(self, shape: StageShape, phase: Phase, pairs: float | None = None) -> float:
        """Seconds of a virtual stage on one micro-batch, its tp and cp collectives included."""
        seconds = sum(n * total(self.layer(phase, pairs, kind)) for kind, n in shape.counts.items())
        seconds += total(self.embedding(phase)) if shape.first else 0.0
        return seconds + (total(self.head(phase)) if shape.last else 0.0)

    def gather_weights(self, shape: StageShape) -> Operation:
        """FSDP's gather of a stage's weights over dp and cp."""
        return self._parameters("all_gather", shape, self.compute_bytes)

    def reduce_gradients(self, shape: StageShape) -> Operation:
        """FSDP's reduction of a stage's gradients over dp and cp: a reduce-scatter, or ZeRO-0's all-reduce."""
        return self._parameters(
            "reduce_scatter" if self.mesh.zero else "all_reduce", shape, self.reduce_bytes
        )

    def sum_replicas(self, shape: StageShape, owners: int, shards: int) -> float:
        """Seconds in which `owners` pipeline ranks add up their shards, 1/`shards` of a stage's gradients."""
        links = self.links("pp")
        members = replace(links, size=owners, inside=min(owners, links.inside))
        count = self.shapes.trained_parameters(shape)
        return collective_seconds(members, "all_reduce", count / shards * self.reduce_bytes)

    def optimizer_seconds(self, parameters: float) -> float:
        """Seconds of AdamW on a rank's shard of `parameters` parameters, over dp and cp.

        They are those of its stages, with the experts of all ranks of ep: each rank holds more of fewer experts.
        """
        shards = self.links("dp_cp").size if self.mesh.zero else 1
        return parameters / shards * OPTIMIZER_BYTES / self._memory_rate + self._kernel_s

    def offloaded_update(self, parameters: float) -> "OffloadedUpdate":
        """Return the seconds in which the host steps for a rank, copies and all; `parameters` as above.

        Raises `ConfigError` where the hardware describes no host link.
        """
        link = self.hardware.host_link
        if not link.gb_s:
            raise ConfigError(
                "--hardware",
                f"{self.hardware.name} describes no link to the host, which optimizer.offload needs",
                "add [host_link] with gb_s and memory_gb_s to its file, or leave offload out",
            )
        own = parameters / (self.links("dp_cp").size if self.mesh.zero else 1)
        nbytes = own * self.reduce_bytes  # shards of gradients and weights have one width
        copy = link.latency_s + nbytes / link.bytes_per_s
        return OffloadedUpdate(round(nbytes), copy, own * OPTIMIZER_BYTES / (link.memory_gb_s * 1e9))

    def update_seconds(self, parameters: float) -> float:
        """Seconds of AdamW on a rank's shard, on the device or by the host; `parameters` as in `optimizer_seconds`."""
        if self.offload:
            return self.offloaded_update(parameters).seconds
        return self.optimizer_seconds(parameters)

    @property
    def launch_seconds(self) -> float:
        """Seconds of the host a kernel launch takes."""
        return self.hardware.host.launch_us * 1e-6

    def _parameters(self, op: str, shape: StageShape, width: int) -> Operation:
        whole = self.shapes.stage_parameters(shape.layers, first=shape.first, last=shape.last)
        nbytes = (whole if op == "all_gather" else self.shapes.trained_parameters(shape)) * width
        seconds = self.collective("dp_cp", op, nbytes)
        return Operation(
            "weights" if op == "all_gather" else "gradients", seconds, op=op, axis="dp_cp", nbytes=nbytes
        )

    def encoder(self, phase: Phase) -> tuple[Operation, ...]:
        """Operations of the image encoder on one micro-batch: split over tp, without sequence parallelism."""
        config, rows, tp = self.encoder_config, self.image_tokens, self.mesh.tp
        own, inner = config.dim // tp, config.ffn_dim // tp
        work = 4 * own * rows * config.tokens
        sums = self._collective("encoder", "tp", "all_reduce", rows * config.dim * self.compute_bytes)
        enter, leave = Block((), sums), Block(sums)
        rates = self.hardware.efficiency
        ahead = work / (self.hardware.flops_per_s * rates.attention_forward) + self._kernel_s
        back = 2.5 * work / (self.hardware.flops_per_s * rates.attention_backward) + self._kernel_s
        attention = Block(
            (Operation("encoder", ahead, flops=work),), (Operation("encoder", back, flops=2.5 * work),)
        )
        norm = self._point("encoder", rows * config.dim, 2)
        residual = self._point("encoder", rows * config.dim, 3)
        layer = [
            norm, enter, self._linear("encoder", config.dim, 3 * own, rows), attention,
            self._linear("encoder", own, config.dim, rows), leave, residual,
            norm, enter, self._linear("encoder", config.dim, inner, rows),
            self._point("encoder", rows * inner, 2), self._linear("encoder", inner, config.dim, rows), leave, residual,
        ]  # fmt: skip
        ends = self._linear("encoder", config.dim, self.model.dim, rows)
        blocks = [
            self._linear("encoder", config.patch, config.dim, rows),
            *(layer * config.layers),
            norm,
            ends,
        ]
        return in_order(blocks, phase)

    def exchange_tokens(self, micro_batches: int, encoders: int, *, gradients: bool) -> Operation:
        """Hand-over of all micro-batches' image tokens to the pipeline ranks, or the sum of their gradients."""
        ops = ("all_reduce", "reduce_scatter") if gradients else ("broadcast", "all_gather")
        op = ops[encoders > 1]
        padded = -(-micro_batches // encoders) * encoders
        nbytes = padded * self.image_tokens * self.model.dim * self.token_width(gradient=gradients)
        name = "image_tokens.grad" if gradients else "image_tokens"
        return Operation(name, self.collective("pp", op, nbytes), op=op, axis="pp", nbytes=nbytes)

    def encoder_weights(self, op: str, ranks: int = 1) -> Operation:
        """FSDP's gather (all_gather) or reduction (gradients) of the encoder, or their sum over pipeline ranks."""
        count = encoder_parameters(self.encoder_config, self.model, self.mesh.tp)
        if op == "all_gather":
            nbytes, axis = count * self.compute_bytes, "dp_cp"
        elif op == "replicas":
            links = self.links("pp")
            shards = self.links("dp_cp").size if self.mesh.zero else 1
            nbytes = count * self.reduce_bytes // shards
            members = replace(links, size=ranks, inside=min(ranks, links.inside))
            seconds = collective_seconds(members, "all_reduce", nbytes)
            return Operation("gradients", seconds, op="all_reduce", axis="pp", nbytes=nbytes)
        else:
            op = "reduce_scatter" if self.mesh.zero else "all_reduce"
            nbytes, axis = count * self.reduce_bytes, "dp_cp"
        return Operation("encoder", self.collective(axis, op, nbytes), op=op, axis=axis, nbytes=nbytes)

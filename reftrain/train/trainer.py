"""One rank of a training job: builds mesh, stages, schedule and optimiser, and makes steps.

A step is: data, global count of valid tokens, the pipeline schedule (forwards, backwards, FSDP2's
reductions), the last sums of partial gradients, global norm, clipping, AdamW.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from reftrain.config.run import RunConfig
from reftrain.data.batches import Loader
from reftrain.data.images import patches
from reftrain.execute.carried_tokens import CarriedTokens
from reftrain.execute.encoding import Encoding, Exchange
from reftrain.execute.gradients import global_norm, sum_partial_gradients, sum_tied_gradients
from reftrain.execute.loss import global_loss, global_valid_tokens
from reftrain.execute.pipeline import BufferPool, PipelineExecutor
from reftrain.execute.replica_sums import ReplicaSums, replica_axes
from reftrain.execute.replicated import sum_in_buckets
from reftrain.execute.sharded_stage import ShardedStage, mixed_precision
from reftrain.model.attention import choose_kernel
from reftrain.model.batch import Cutter
from reftrain.model.context import ModelContext
from reftrain.model.decoder import EMBEDDING, Stage, layers_of_stages
from reftrain.model.encoder import EncoderStage
from reftrain.model.parameters import Part, Spec, shard_part
from reftrain.model.segments import Segments
from reftrain.model.spmd import annotate, stage_of
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.comm import Axis, WideAxis
from reftrain.rank.events import Segment
from reftrain.rank.hooks import HookList, RunContext
from reftrain.rank.mesh import Mesh
from reftrain.schedule.actions import ENCODER, Schedule
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES
from reftrain.train.formats import POLICIES
from reftrain.train.optimizer import AdamW, clip_coefficient, learning_rate

OUTPUT = "output.weight"


@dataclass(frozen=True)
class Gradients:
    """Result of a step: loss in nats per token, count of valid targets, global gradient norm (1,)."""

    loss: float
    valid_tokens: int
    norm: torch.Tensor


class Trainer:
    """One rank. Constructed on every rank at the same time, after `init_process_group`."""

    def __init__(self, config: RunConfig, hooks: HookList, device: torch.device) -> None:
        self.config, self.hooks, self.device = config, hooks, device
        self._step = 0
        self.formats = POLICIES[config.numerics.policy]
        self.stacked = config.numerics.loss_log == "stacked"
        self.mesh = Mesh(config.mesh, device, hooks, config.evidence.waiting_s)
        hooks.setup(RunContext(config, self.mesh, self.mesh.rank, device))
        self.axes = {"tp": self.mesh.tp, "kv": self._kv_axis(), "dp_cp": self.mesh.dp_cp}
        self.tied_axis = self._tied_axis()
        model, data = config.model, config.data
        self.loader = Loader(data, model.vocab_size, self.mesh.dp.size, self.mesh.dp.index)
        attention, masks, cp = config.numerics.attention, config.numerics.document_mask, self.mesh.cp.size
        width = model.head_dim
        self.kernel = choose_kernel(attention, device, document_mask=masks, cp=cp, head_dim=width)
        self.cutter = self._cutter()
        self.schedule = self._schedule()
        self.stages = self._stages()
        self.executor = self._executor()
        self.optimizer = self._optimizer()
        hooks.built(self)

    def _tensor_axis(self) -> Axis:
        """Return the tensor axis as activations cross it: sums in the compute format, or in FP32."""
        tp = self.mesh.tp
        if self.config.numerics.tp_reduce == "compute":
            return tp
        return WideAxis(tp.name, tp.index, tp.ranks, tp.group, self.hooks)

    def _kv_axis(self) -> Axis:
        """Return the axis of the tensor ranks that copy one key/value head."""
        tp = self.mesh.tp
        copies = tp.size // self.config.model.kv_heads
        if copies <= 1:
            return Axis("kv", 0, [self.mesh.rank], None, self.hooks)
        first = tp.index // copies * copies
        return self.mesh.subgroup("kv", tp.ranks[first : first + copies])

    def _tied_axis(self) -> Axis | None:
        """Return the axis of the two pipeline ranks that hold the ends of a tied embedding."""
        pp = self.mesh.pp
        if self.config.model.tied_embeddings and pp.size > 1 and pp.index in {0, pp.size - 1}:
            return self.mesh.subgroup("embedding", (pp.ranks[0], pp.ranks[-1]))
        return None

    def _cutter(self) -> Cutter:
        config = self.config
        return Cutter(
            cp=self.mesh.cp,
            ring=config.numerics.cp_method == "ring",
            document_mask=config.numerics.document_mask,
            attention=self.kernel,
            head_dim=config.model.head_dim,
            rope_base=config.model.rope_base,
            wide=self.formats.wide,
            device=self.device,
        )

    def model_context(self) -> ModelContext:
        """Return the settings that the layers of this rank share."""
        config, mesh = self.config, self.mesh
        made = ModelContext(
            model=config.model,
            tp=TensorParallel(self._tensor_axis(), sequence_parallel=config.mesh.splits_sequence),
            cp=mesh.cp,
            segments=Segments(self.hooks),
            parameter_dtype=self.formats.parameter,
            kernel=self.kernel,
            ring=self.cutter.ring,
            recompute=config.numerics.recompute,
            label_smoothing=config.numerics.label_smoothing,
            tokens=config.data.micro_batch_size * config.data.seq_len // mesh.cp.size,
            ep=mesh.ep,
            sequences=config.data.batch_size,
        )
        return annotate(made, mesh.device_mesh) if config.mesh.annotated else made

    def _stages(self) -> dict[int, ShardedStage]:
        config, mesh = self.config, self.mesh
        context = self.model_context()
        stages = {}
        if mesh.pp.index in self.schedule.encoders:
            encoder = EncoderStage(context, config.encoder, config.data.micro_batch_size)
            stages[ENCODER] = self._sharded(encoder)
        held = {stage for _, stage in self.schedule.held_by(mesh.pp.index)}
        for number, layers in enumerate(layers_of_stages(config)):
            if number in held:
                stage = stage_of(context, layers, first=number == 0, last=number + 1 == config.stages)
                stages[number] = self._sharded(stage)
        return stages

    def _sharded(self, stage: Stage | EncoderStage) -> ShardedStage:
        """Shard a stage over data and context parallelism, and give it its first values."""
        config, mesh = self.config, self.mesh
        policy = mixed_precision(self.formats.compute, self.formats.parameter, self.formats.reduce)
        sharding = mesh.device_mesh["dp_shard"] if config.mesh.bucket_mb else mesh.fsdp_mesh
        made = ShardedStage(stage, sharding, config.mesh, policy, self.hooks, mesh.expert_mesh)
        made.materialise(self.device, config.seed, mesh)
        return made

    def _schedule(self) -> Schedule:
        """Return the table that all pipeline ranks run."""
        config, pipeline = self.config, self.config.pipeline
        schedule = make_schedule(
            pipeline.schedule,
            self.mesh.pp.size,
            pipeline.virtual_stages,
            config.micro_batches,
            config.consecutive,
            pipelines=pipeline.pipelines,
            concatenation=pipeline.concatenation,
            steps=1 if SCHEMES[pipeline.schedule].synchronous else config.steps,
        )
        return lower(schedule, config.mesh.zero, pipeline.replica_sync, config.encoder.placed)

    def _executor(self) -> PipelineExecutor:
        config, mesh = self.config, self.mesh
        length = config.data.seq_len // mesh.cp.size
        if config.mesh.splits_sequence:
            length //= mesh.tp.size
        shape = (config.data.micro_batch_size, length, config.model.dim)
        pool = BufferPool(shape, self.formats.compute, self.device)
        apart = self.device.type == "cuda" and mesh.pp.size > 1
        up = mesh.subgroup("pp_up", mesh.pp.ranks) if apart else mesh.pp
        return self._make_executor((mesh.pp, up), pool)

    def _make_executor(self, axes: tuple[Axis, Axis], pool: BufferPool) -> PipelineExecutor:
        replicas = ReplicaSums(replica_axes(self.schedule, self.mesh))
        return PipelineExecutor(
            self.schedule, self.stages, *axes, pool, self.hooks, replicas, self._encoding(axes)
        )

    def _encoding(self, axes: tuple[Axis, Axis]) -> Encoding | None:
        """Return what encodes the images of a multimodal model."""
        config, formats = self.config, self.formats
        if not config.encoder.layers:
            return None
        shape = config.data.micro_batch_size, config.encoder.tokens, config.model.dim
        held = formats.wide if config.encoder.sum_format == "fp32" else formats.compute
        parts = (
            self.schedule, self.stages.get(ENCODER), self.mesh.pp, self.mesh.tp, shape, formats.compute, held,
            self.device, self._patches,
        )  # fmt: skip
        return CarriedTokens(axes, *parts) if self.schedule.carries_tokens else Exchange(*parts)

    def _patches(self, micro_batch: int) -> torch.Tensor:
        """Return the images of a micro-batch of the present step."""
        config, numbers = self.config, self.loader.numbers(self._step)[micro_batch]
        images = patches(config.encoder, config.data.seed, numbers)
        return torch.from_numpy(images).to(self.device, self.formats.compute)

    def _optimizer(self) -> AdamW:
        shards, decays = {}, {}
        for stage in self.stages.values():
            shards.update(stage.trained_parameters())
            decays.update({name: spec.decays for name, spec in stage.specs.items()})
        return AdamW(self.config.optimizer, shards, decays, self.hooks)

    def specs(self) -> dict[str, Spec]:
        """Specs of all parameters on this rank by global name."""
        return {name: spec for stage in self.stages.values() for name, spec in stage.specs.items()}

    def parts(self) -> dict[str, Part]:
        """Box of the global tensor that this rank's shard of each parameter is."""
        return {
            name: shard_part(spec, *self.mesh.shard_of(dealt=spec.dealt))
            for name, spec in self.specs().items()
        }

    def local_parameters(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every parameter by global name."""
        return {n: t for stage in self.stages.values() for n, t in stage.local_parameters().items()}

    def local_gradients(self) -> dict[str, torch.Tensor]:
        """Return this rank's shard of every gradient by global name."""
        return {n: t for stage in self.stages.values() for n, t in stage.local_gradients().items()}

    def optimizer_state(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return this rank's shards of the optimiser state by kind, then by global name."""
        return self.optimizer.state()

    def buffer_bytes(self) -> int:
        """Return the bytes of the buffers made for messages between stages."""
        carried = self.executor.carried
        return self.executor.pool.bytes + (carried.buffer_bytes if carried else 0)

    def host_bytes(self) -> int:
        """Return the bytes of the host's copies of weights and gradients."""
        return self.optimizer.host.bytes if self.optimizer.host else 0

    def compute_gradients(self, step: int) -> Gradients:
        """Run a step up to the global norm; the gradients are in `local_gradients`."""
        self._step = step
        self.hooks.data_begin(step)
        micro_batches = self.loader.step(step)
        self.hooks.data_end(step)
        for name in ("tokens", "targets"):
            whole = torch.cat([getattr(batch, name) for batch in micro_batches])
            self.hooks.value(f"data.{name}", whole)
        own_valid = sum(batch.valid for batch in micro_batches)
        valid = global_valid_tokens(own_valid, self.mesh.dp, self.device)
        self.hooks.value("valid_tokens", torch.tensor(valid))
        sums = self.executor.run([self.cutter.cut(batch) for batch in micro_batches], valid)
        self._finish_gradients()
        self.hooks.gradients_end(step)
        mesh = self.mesh
        norm = global_norm(self._counted_stages(), mesh.tp, mesh.dp_cp, mesh.pp, mesh.replica_index)
        loss = global_loss(sums, valid, mesh.dp_cp, mesh.pp, self.device, stacked=self.stacked)
        self.hooks.value("grad_norm", norm)
        self.hooks.value("loss", torch.tensor(loss, dtype=torch.float64))
        return Gradients(loss, valid, norm)

    def _counted_stages(self) -> list[ShardedStage]:
        """Return the stages with their first replica on this rank: each stage counts once in the norm."""
        own = self.mesh.pp.index
        first = {*self.schedule.stages_of(own), *([ENCODER] if self.schedule.encoders[:1] == (own,) else [])}
        return [stage for number, stage in self.stages.items() if number in first]

    def _finish_gradients(self) -> None:
        if self.config.mesh.bucket_mb:
            ready = [g for stage in self.stages.values() for g in stage.local_gradients().values()][::-1]
            sum_in_buckets(ready, self.mesh.dp_cp, self.config.mesh.bucket_mb)
        sum_partial_gradients(self.stages.values(), self.axes)
        if self.config.model.tied_embeddings:
            grads = self.local_gradients()
            sum_tied_gradients(grads.get(EMBEDDING), grads.get(OUTPUT), self.tied_axis)

    def apply_gradients(self, step: int, norm: torch.Tensor) -> float:
        """Clip, update all parameters, drop the gradients; return the learning rate."""
        config = self.config.optimizer
        rate = learning_rate(config, step, self.config.steps)
        clip = clip_coefficient(norm, config.clip_norm)
        self.hooks.value("learning_rate", torch.tensor(rate, dtype=torch.float64))
        if clip is not None:
            self.hooks.value("clip", clip)
        with self.hooks.segment(Segment("optimizer", -1, "step", 0)):
            self.optimizer.step(self.local_gradients(), rate, clip)
        for stage in self.stages.values():
            stage.clear_gradients()
        return rate

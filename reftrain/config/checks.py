"""Checks that involve more than one table of the configuration: which field, what is wrong, and the remedy.

Called by `RunConfig.__post_init__`, so that no invalid configuration exists.
"""

from reftrain.config.encoder_checks import check_encoder
from reftrain.config.job_checks import check_job
from reftrain.config.spmd_checks import check_spmd
from reftrain.config.tables import Tables
from reftrain.errors import ConfigError
from reftrain.schedule.generators import check_rounds, make_schedule
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec


def divisors(number: int) -> str:
    """Return the divisors of a number as text for an error message, e.g. '1, 2, 4'."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)


def validate(config: Tables) -> None:
    """Raise `ConfigError` for the first contradiction between the tables."""
    _check_tensor_axis(config)
    _check_sequence(config)
    _check_experts(config)
    _check_batch(config)
    _check_stages(config)
    check_encoder(config)
    check_spmd(config)
    _check_schedule(config)
    _check_shadow(config)
    _check_shared_gpus(config)
    _check_snapshot(config)
    _check_traced_steps(config)
    check_job(config)


def _check_tensor_axis(config: Tables) -> None:
    """Refuse heads, widths and vocabularies that tp does not divide."""
    model, tp = config.model, config.mesh.tp
    if model.heads % tp:
        raise ConfigError(
            "mesh.tp",
            f"{model.heads} heads cannot be split over tp {tp}",
            f"choose tp among {divisors(model.heads)}",
        )
    if model.ffn_dim % tp:
        raise ConfigError(
            "mesh.tp", f"ffn_dim {model.ffn_dim} cannot be split over tp {tp}", "choose another tp"
        )
    if model.vocab_size % tp and not model.pad_vocab:
        raise ConfigError(
            "model.vocab_size",
            f"{model.vocab_size} is not a multiple of tp {tp}",
            "set model.pad_vocab = true",
        )
    if model.kv_heads % tp:
        if tp % model.kv_heads:
            raise ConfigError(
                "mesh.tp",
                f"{model.kv_heads} key/value heads and tp {tp} do not divide one another",
                f"choose tp among {divisors(model.kv_heads)} or a multiple of {model.kv_heads}",
            )
        if not model.replicate_kv:
            raise ConfigError(
                "model.kv_heads",
                f"{model.kv_heads} are fewer than tp {tp}",
                "set model.replicate_kv = true or choose a smaller tp",
            )
        if model.fused_qkv:
            raise ConfigError(
                "model.fused_qkv",
                f"cannot copy {model.kv_heads} key/value heads to tp {tp}",
                "set model.fused_qkv = false or choose a smaller tp",
            )


def _check_sequence(config: Tables) -> None:
    """Refuse sequences that cp and tp cannot cut, and kernels that cannot mask the pieces."""
    mesh, length = config.mesh, config.data.seq_len
    if mesh.cp > 1 and length % (2 * mesh.cp):
        raise ConfigError(
            "mesh.cp",
            f"the sequence of {length} tokens cannot be cut into 2·cp = {2 * mesh.cp} chunks",
            f"choose data.seq_len as a multiple of {2 * mesh.cp}",
        )
    if mesh.splits_sequence and (length // mesh.cp) % mesh.tp:
        raise ConfigError(
            "mesh.sequence_parallel",
            f"{length // mesh.cp} tokens a context rank cannot be split over tp {mesh.tp}",
            "choose another data.seq_len or set sequence_parallel = false",
        )
    if config.numerics.attention == "flash" and mesh.cp > 1:
        raise ConfigError(
            "numerics.attention",
            f"flash cannot mask the chunks of cp {mesh.cp}",
            "choose sdpa or flex, or cp = 1",
        )


def _check_experts(config: Tables) -> None:
    """Refuse experts that ep cannot deal out, and capacities of sequences that no rank sees whole."""
    model, mesh = config.model, config.mesh
    if mesh.ep > 1 and (not model.experts or model.experts % mesh.ep):
        raise ConfigError(
            "mesh.ep",
            f"{model.experts} experts cannot be dealt to ep {mesh.ep}",
            f"choose model.experts as a multiple of {mesh.ep}, or ep = 1",
        )
    if model.experts and model.expert_capacity and mesh.cp > 1:
        raise ConfigError(
            "model.expert_capacity",
            f"an expert's share of a sequence cannot be counted in the pieces of cp {mesh.cp}",
            "choose 0, which drops no token, or cp = 1",
        )


def _check_batch(config: Tables) -> None:
    data, dp = config.data, config.mesh.dp
    if data.batch_size % (dp * data.micro_batch_size):
        raise ConfigError(
            "data.batch_size",
            f"{data.batch_size} sequences do not split over dp {dp} by {data.micro_batch_size} a micro-batch",
            f"choose a multiple of {dp * data.micro_batch_size}",
        )
    if data.micro_batches and data.micro_batches != config.micro_batches:
        raise ConfigError(
            "data.micro_batches",
            f"{data.micro_batches} micro-batches of {data.micro_batch_size} on dp {dp} "
            f"make {data.micro_batches * data.micro_batch_size * dp} sequences, not {data.batch_size}",
            f"give {config.micro_batches}, or leave it out",
        )


def _check_shadow(config: Tables) -> None:
    if config.evidence.shadow_gradients and config.mesh.shards_gradients:
        raise ConfigError(
            "evidence.shadow_gradients",
            f"zero {config.mesh.zero} reduces before it accumulates: there is no whole buffer to shadow",
            "choose mesh.zero = 0 or 1",
        )


def _check_shared_gpus(config: Tables) -> None:
    if config.share_gpus and config.device == "cpu":
        raise ConfigError(
            "run.share_gpus", "device = cpu has no GPUs to share", "set it to false, or run.device = cuda"
        )


def _check_snapshot(config: Tables) -> None:
    if config.evidence.memory_snapshot and config.device == "cpu":
        raise ConfigError(
            "evidence.memory_snapshot",
            "torch's allocator keeps no history on a CPU",
            "set it to false (metrics hold memory by kind), or run.device = cuda",
        )


def _check_traced_steps(config: Tables) -> None:
    """Refuse traced steps that the run does not have: they would silently leave a part of the trace out."""
    outside = [step for step in config.evidence.trace_steps if not 0 <= step < config.steps]
    if outside:
        raise ConfigError(
            "evidence.trace_steps",
            f"step {outside[0]} is not among the run's steps 0 to {config.steps - 1}",
            "choose among those, or raise run.steps",
        )


def _check_stages(config: Tables) -> None:
    """Refuse unknown schedules and layers that do not fill the stages."""
    pipeline, stages, layers = config.pipeline, config.stages, config.model.layers
    if pipeline.schedule not in SCHEMES:
        raise ConfigError(
            "pipeline.schedule", f"{pipeline.schedule!r} is unknown", f"choose among {', '.join(SCHEMES)}"
        )
    if pipeline.layers_per_stage:
        if len(pipeline.layers_per_stage) != stages or sum(pipeline.layers_per_stage) != layers:
            raise ConfigError(
                "pipeline.layers_per_stage",
                f"{len(pipeline.layers_per_stage)} numbers with sum {sum(pipeline.layers_per_stage)} "
                f"for {stages} stages and {layers} layers",
                f"give {stages} numbers with sum {layers}",
            )
    elif stages * config.model.group > layers + (2 if pipeline.balanced else 0):
        raise ConfigError(
            "pipeline.virtual_stages",
            f"{layers} layers do not fill {stages} stages (pp {config.mesh.pp}, v {pipeline.virtual_stages})",
            f"choose pp·v at most {layers // config.model.group}, or name pipeline.layers_per_stage",
        )


def _check_schedule(config: Tables) -> None:
    """Let the scheme refuse sizes that it has no meaning for; the flexible schemes take all sizes."""
    pipeline = config.pipeline
    scheme = SCHEMES[pipeline.schedule]
    if pipeline.consecutive and "consecutive" in scheme.options:
        sizes = config.mesh.pp, config.micro_batches, pipeline.virtual_stages, pipeline.consecutive
        check_rounds(ScheduleSpec(pipeline.schedule, *sizes))
    if scheme.splits_backward and config.numerics.recompute != "none":
        raise ConfigError(
            "numerics.recompute",
            f"{pipeline.schedule} splits backwards, which recomputation would run twice",
            "set recompute = none or choose another pipeline.schedule",
        )
    if not scheme.synchronous:
        _check_asynchronous(config)
    if scheme.checked_by_config:
        make_schedule(
            pipeline.schedule,
            config.mesh.pp,
            pipeline.virtual_stages,
            config.micro_batches,
            config.consecutive,
            pipelines=pipeline.pipelines,
            concatenation=pipeline.concatenation,
        )


def _check_asynchronous(config: Tables) -> None:
    """Refuse settings that need all stages to step together, or a moment when nothing is in flight."""
    checkpoint, evidence = config.checkpoint, config.evidence
    contradictions = (
        (config.optimizer.clip_norm, "optimizer.clip_norm", "clips by a norm over all stages", "set it to 0"),
        (
            config.model.tied_embeddings,
            "model.tied_embeddings",
            "ties stages that step apart",
            "set it to false",
        ),
        (config.mesh.bucket_mb, "mesh.bucket_mb", "cannot wait for all gradients", "set it to 0"),
        (
            checkpoint.every or checkpoint.at_end,
            "checkpoint.every",
            "would miss the micro-batches in flight",
            "set it to 0",
        ),
        (checkpoint.resume, "checkpoint.resume", "cannot restore micro-batches in flight", "leave it out"),
        (evidence.capture, "evidence.capture", "needs gradients that are kept until a step ends", "unset it"),
        (
            evidence.shadow_gradients,
            "evidence.shadow_gradients",
            "needs gradients that stay",
            "set it to false",
        ),
    )
    for wrong, field, problem, remedy in contradictions:
        if wrong:
            raise ConfigError(
                field,
                f"stages of {config.pipeline.schedule} step one by one without a flush, so this {problem}",
                f"{remedy}, or choose a synchronous pipeline.schedule",
            )


def check_world(config: Tables, world_size: int) -> None:
    """Raise `ConfigError` when a launcher started another number of ranks than the mesh has."""
    mesh = config.mesh
    if world_size != mesh.world_size:
        sizes = " * ".join(f"{axis} {mesh.sizes[axis]}" for axis in mesh.order)
        raise ConfigError(
            "mesh",
            f"{sizes} = {mesh.world_size} ranks, but {world_size} were started",
            f"start {mesh.world_size} ranks or change the mesh",
        )

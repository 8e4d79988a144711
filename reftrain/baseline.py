"""The 2D baseline: the run's data and tensor parallelism and its micro-batches, without pipeline and context axes.

Executed by the trainer itself. Source: "Scaling Llama 3 Training" (ISCA'25), the section on numerical correctness:
a pipeline is checked against the same micro-batches without one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reftrain.config import EvidenceConfig, MeshConfig, PipelineConfig, RunConfig


def two_dimensional(config: RunConfig, out: Path, level: str, names: Sequence[str]) -> RunConfig:
    """Return the configuration of the 2D run that mimics `config`; it is captured into `out`."""
    mesh = config.mesh
    flat = MeshConfig(
        tp=mesh.tp,
        dp=mesh.dp,
        order=mesh.order,
        sequence_parallel=mesh.sequence_parallel,
        zero=mesh.zero,
        dp_shard=mesh.dp_shard,
    )
    schedule = config.pipeline.schedule if config.pipeline.schedule in {"1f1b", "gpipe"} else "flexible"
    return replace(
        config,
        mesh=flat,
        pipeline=PipelineConfig(schedule=schedule),
        numerics=replace(config.numerics, cp_method="all_gather"),
        evidence=EvidenceConfig(capture=level, capture_names=tuple(names)),
        out=str(out),
    )


def run_two_dimensional(config: RunConfig, out: Path, level: str, names: Sequence[str]) -> None:
    """Execute the 2D baseline on this machine; raises what a run raises."""
    from reftrain.launcher import launch

    launch(two_dimensional(config, out, level, names), lambda _: [])

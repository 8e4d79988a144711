"""Baselines of `numerics replay` that the trainer itself runs: 2D (without pp and cp), and the same run again.

Executed by the trainer itself. Source: "Scaling Llama 3 Training" (ISCA'25), the section on numerical correctness:
a pipeline is checked against the same micro-batches without one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reftrain.config.run import EvidenceConfig, MeshConfig, PipelineConfig, RunConfig
from reftrain.faults.bugs import is_bug


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
    from reftrain.job.launcher import launch

    launch(two_dimensional(config, out, level, names), lambda _: [])


def planted_text(fault: Mapping[str, Any]) -> str:
    """Return a planted bug of run.json in the form in which users write it."""
    described = {"kind", "axis", "what", "shows"}
    values = ",".join(f"{name}={value}" for name, value in fault.items() if name not in described)
    return f"{fault['kind']}:{values}"


def run_again(config: RunConfig, policy: str, faults: Sequence[Mapping[str, Any]], level: str) -> None:
    """Execute a run once more in another policy, on its own mesh; raises what a run raises.

    Planted bugs are planted again; slow and stuck faults are left out.
    """
    from reftrain.job.launcher import launch

    texts = tuple(planted_text(fault) for fault in faults if is_bug(str(fault.get("kind"))))
    evidence = EvidenceConfig(capture=level, faults=texts)
    launch(replace(config, numerics=replace(config.numerics, policy=policy), evidence=evidence), lambda _: [])

"""Settings that decide a rank's bits besides the reductions, as the recorded and the declared plan both list them."""

from reftrain.config.run import RunConfig
from reftrain.schedule.registry import SCHEMES

WHOLE_BACKWARD = frozenset(name for name, scheme in SCHEMES.items() if scheme.whole_backward)
"""Schedules in which each stage has one owner, rank after rank, and a backward is one piece."""


def local_settings(config: RunConfig) -> dict[str, str]:
    """Return the settings that decide a rank's bits besides the reductions: micro-batch shapes, formats, kernels."""
    mesh, numerics = config.mesh, config.numerics
    settings = {
        "tp": mesh.tp,
        "cp": mesh.cp,
        "ep": mesh.ep,
        "sequence_parallel": mesh.splits_sequence,
        "micro_batch_size": config.data.micro_batch_size,
        "policy": numerics.policy,
        "attention": numerics.attention,
        "cp_method": numerics.cp_method if mesh.cp > 1 else "all_gather",
        "optimizer": config.optimizer.implementation,
        "backward": "whole" if config.pipeline.schedule in WHOLE_BACKWARD else "other",
        "threads": config.threads,
        "backend": "gloo",
    }
    if mesh.annotated:
        settings["sharding"] = mesh.sharding
    return {name: str(value) for name, value in settings.items()}

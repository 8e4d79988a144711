"""The update at the end of a step: clipping, then AdamW on the device, or on the host between two copies."""

from reftrain.cost.cost_model import CostModel
from reftrain.simulate.program import Builder
from reftrain.thresholds import NS


def append_clipping(b: Builder, cost: CostModel, parameters: float) -> None:
    """Append the global norm of the gradients of `parameters` parameters, and its sum over all ranks."""
    b.compute("clip", 0.1 * cost.optimizer_seconds(parameters) * NS, launches=2)
    ns = cost.collective("world", "all_reduce", 4.0) * NS
    b.collective("world", "allreduce", ns, (1, 1), dtype="Float")


def append_update(b: Builder, cost: CostModel, parameters: float) -> None:
    """Append AdamW on a rank's shard of `parameters` parameters.

    The host waits for the gradients' copy, steps, and issues the weights' copy; nothing hides these three.
    """
    if not cost.offload:
        b.compute("optimizer", cost.optimizer_seconds(parameters) * NS, launches=4)
        return
    update = cost.offloaded_update(parameters)
    b.sync((b.copy("to_host", update.copy_s * NS, update.nbytes),))
    b.host("optimizer", update.step_s * NS)
    b.copy("to_device", update.copy_s * NS, update.nbytes)

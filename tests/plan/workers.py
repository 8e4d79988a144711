"""Ranks that run two real training steps under torch's memory tracker."""

import torch
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker

from reftrain.config.run import RunConfig
from reftrain.rank.hooks import HookList
from tests.reftrain.workers import trainer


class StepTracker(MemTracker):
    """MemTracker for modules that run once for each micro-batch; peaks by part of the step."""

    def _pre_fw_hook(self, module, inputs):
        self.memory_tracking.pop(module, None)
        super()._pre_fw_hook(module, inputs)

    def restart(self):
        self._peak_mem, self._peak_mem_snap = {}, {}

    @property
    def peak(self):
        return self.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def tracked_peak(rank: int, world: int, store: str, config: RunConfig) -> int:
    """Bytes at the largest moment of the second step.

    The tracker does not count the FP32 masters that the optimiser makes of narrower weights.
    """
    with trainer(rank, world, store, config, HookList()) as made:
        tracker = StepTracker()
        modules = [stage.module for stage in made.stages.values()]
        tracker.track_external(*modules, made.optimizer._inner)
        with tracker:
            for step in range(2):
                tracker.restart()
                got = made.compute_gradients(step)
                made.apply_gradients(step, got.norm)
        masters = sum(
            m.nbytes
            for name, m in made.optimizer.masters.items()
            if m.data_ptr() != made.optimizer.shards[name].data_ptr()
        )
        return tracker.peak + masters


def fsdp_tracked(rank: int, world: int, store: str, config: RunConfig) -> dict[str, int]:
    """Bytes at the largest moment by FSDPMemTracker, which takes one micro-batch."""
    with trainer(rank, world, store, config, HookList()) as made:
        (stage,) = made.stages.values()
        tracker = FSDPMemTracker(stage.module, made.optimizer._inner)
        tracker.track_inputs(())
        with tracker:
            for step in range(2):
                got = made.compute_gradients(step)
                made.apply_gradients(step, got.norm)
                tracker.reset_mod_stats()
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
        return {str(getattr(kind, "value", kind)): int(value) for kind, value in snapshot.items()}

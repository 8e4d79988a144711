"""Keeps the history of CUDA's caching allocator: run/memory/rankN.pickle, for pytorch.org/memory_viz.

Memory by kind (`reftrain.record.memory`) says how much is held; the snapshot says which call stack asked for it and
how the segments are broken up. It begins before the model is built, so that weights have stacks too, and is written
at the end of the last traced step, else at the end of the run, and when an error (out of memory) ends it before.
"""

import errno
import sys
from pathlib import Path

import torch

from reftrain.errors import ConfigError
from reftrain.rank.events import StepMetrics
from reftrain.rank.hooks import Hooks, RunContext
from reftrain.thresholds import ALLOCATOR_ENTRIES


class AllocatorSnapshot(Hooks):
    """Records the allocator's history and writes one snapshot: after step `last`, or at the end where that is None."""

    def __init__(self, last: int | None) -> None:
        self._last = last
        self._path: Path | None = None

    def setup(self, context: RunContext) -> None:
        """Begin to record; raises `ConfigError` where there is no such allocator."""
        if context.device.type != "cuda":
            raise ConfigError(
                "evidence.memory_snapshot",
                f"rank {context.rank} computes on {context.device.type}, where torch's allocator keeps no history",
                "set it to false (metrics hold memory by kind), or run.device = cuda on a machine with GPUs",
            )
        folder = Path(context.config.out) / "memory"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"rank{context.rank}.pickle"
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=ALLOCATOR_ENTRIES)  # noqa: SLF001 - the documented way

    def step_end(self, metrics: StepMetrics) -> None:
        """Write after the last traced step."""
        if metrics.step == self._last:
            self._write()

    def close(self) -> None:
        """Write the snapshot if none was written; an error that passes through stays the run's error."""
        failing = sys.exc_info()[0] is not None
        try:
            self._write()
        except OSError:
            if not failing:
                raise

    def _write(self) -> None:
        """Write under a temporary name, rename, stop recording. Raises OSError."""
        path, self._path = self._path, None
        if path is None:
            return
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            torch.cuda.memory._dump_snapshot(str(temporary))  # type: ignore[no-untyped-call] # noqa: SLF001 - as above
            temporary.replace(path)
        except RuntimeError as error:  # CUDA has failed: there is nothing to be had
            raise OSError(errno.ENODATA, f"the allocator gives no snapshot ({error})", str(path)) from error
        finally:
            temporary.unlink(missing_ok=True)
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above

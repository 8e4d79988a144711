"""Separates floating-point drift from bugs by replaying a run in its own accumulation order.

    from pathlib import Path
    from numerics import Box, Recorder, compare, watch

    watcher = watch(model, optimizer, dp=(rank, world_size))    # record a PyTorch trainer through hooks
    recorder = Recorder("run_a", rank, world_size)              # or tensor by tensor
    finding = compare(Path("run_a"), Path("run_b"))             # a CompareFinding: verdict, proof, first divergence

`watch` and `Recorder` raise `CaptureError` where a tensor or folder cannot be recorded. `compare` raises
`tracekit.errors.InputError` where a capture cannot be read; runs that cannot be compared are a verdict. Both errors are
`tracekit.errors.TracekitError`. Names are imported on first use, so that `import numerics` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numerics.comparison.compare import Options, compare
    from numerics.errors import CaptureError
    from numerics.findings import Cell, CompareFinding, Counts, Divergence, Proof, TensorDifference, Verdict
    from numerics.record.placement import Placed
    from numerics.record.recorder import Recorder
    from numerics.record.watch import Watcher, watch
    from numerics.schema import Box

__all__ = [
    "Box",
    "CaptureError",
    "Cell",
    "CompareFinding",
    "Counts",
    "Divergence",
    "Options",
    "Placed",
    "Proof",
    "Recorder",
    "TensorDifference",
    "Verdict",
    "Watcher",
    "compare",
    "watch",
]

_HOMES: Final = {
    "Box": "schema",
    "CaptureError": "errors",
    "Options": "comparison.compare",
    "Placed": "record.placement",
    "Recorder": "record.recorder",
    "Watcher": "record.watch",
    "compare": "comparison.compare",
    "watch": "record.watch",
}
"""Module of each public name; the others are findings."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'numerics' has no attribute {name!r}")
    found = getattr(import_module(f"numerics.{_HOMES.get(name, 'findings')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

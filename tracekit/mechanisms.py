"""What within a cause takes the time, as data: the name, the cause, the meaning and the remedy of each mechanism.

A cause says whether to look at the device, the host or the network; its mechanism says what to look for there. To add
one, add an entry here and the measurement to `tracekit.analysis.slowrank.mechanisms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tracekit.findings import Cause


@dataclass(frozen=True)
class MechanismEntry:
    """One mechanism: `meaning` completes "the excess is …", `excluded_by` says what would speak against it."""

    name: str
    cause: Cause
    meaning: str
    excluded_by: str
    next_step: str


_ENTRIES: Final = (
    MechanismEntry(
        "clock", "gpu_compute",
        "all kinds of kernels longer by one factor",
        "kinds of kernels that take as long as on peers",
        "compare clocks, power cap and temperature with a peer's: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE",
    ),
    MechanismEntry(
        "throttling", "gpu_compute",
        "all kinds of kernels longer by one factor, which grows from step to step",
        "a factor that is the same in the first and in the last step",
        "watch temperature and throttle reasons while the job runs: nvidia-smi -q -d TEMPERATURE,PERFORMANCE; check "
        "cooling and neighbours of that device",
    ),
    MechanismEntry(
        "matrix_products", "gpu_compute",
        "matrix products longer, kernels that move memory not",
        "kernels that move memory longer by as much",
        "look for a power cap (it slows dense kernels first) and for another cuBLAS or CUDA version on that host",
    ),
    MechanismEntry(
        "memory_bandwidth", "gpu_compute",
        "kernels that move memory longer, matrix products not",
        "matrix products longer by as much",
        "check remapped rows and the memory clock of that device (nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK), and for "
        "other processes on it",
    ),
    MechanismEntry(
        "one_kernel", "gpu_compute",
        "one kernel longer, the others not",
        "other kernels of that kind longer by as much",
        "compare this kernel's shapes and its version with a peer's: an autotuned or recompiled kernel may differ",
    ),
    MechanismEntry(
        "attention", "gpu_compute",
        "attention longer, other kernels not",
        "matrix products longer by as much",
        "compare the lengths of documents that this rank gets with its peers': attention grows with their squares",
    ),
    MechanismEntry(
        "experts", "gpu_compute",
        "kernels of experts longer, other kernels not",
        "other kernels longer by as much",
        "compare the tokens that this rank's experts get with its peers'",
    ),
    MechanismEntry(
        "garbage_collection", "host_stall",
        "garbage collection of Python while the device is idle",
        "gaps without a span of the collector",
        "call gc.freeze() after set-up and collect at the same step on all ranks, or less often",
    ),
    MechanismEntry(
        "recompilation", "host_stall",
        "compilation of kernels while the device is idle",
        "gaps without a span of the compiler",
        "find what changes with TORCH_LOGS=recompiles; mark dynamic shapes, or warm up with all shapes",
    ),
    MechanismEntry(
        "synchronisation", "host_stall",
        "calls that wait for the device, behind which the host launches anew",
        "gaps that do not begin where such a call returns",
        "find the call that reads a value back (.item(), .cpu(), nonzero, print) and move it out of the step",
    ),
    MechanismEntry(
        "input_output", "host_stall",
        "reading, writing or saving while the device is idle",
        "gaps without such a span",
        "save and log from another thread or less often, and compare that host's file system with a peer's",
    ),
    MechanismEntry(
        "cpu_quota", "host_stall",
        "pauses without any event at one phase of a period of 100 ms, as a quota of processor time makes them",
        "pauses at any phase of that period",
        "read cpu.stat (nr_throttled) of the container on that host, and raise or remove its CPU limit",
    ),
    MechanismEntry(
        "no_event", "host_stall",
        "pauses in which no thread of the process began or ended anything",
        "events of the host within the pauses",
        "the process stood still, or ran Python between operators: py-spy dump of it, or with_stack=True, shows which; "
        "look for swapping, a stopped process and a full disk on that host",
    ),
    MechanismEntry(
        "host_span", "host_stall",
        "one span of the host while the device is idle",
        "gaps outside that span",
        "look at what that span does on this rank alone",
    ),
)  # fmt: skip

MECHANISMS: Final[Mapping[str, MechanismEntry]] = {entry.name: entry for entry in _ENTRIES}
"""Every mechanism by name; those of the device first."""

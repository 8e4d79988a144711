"""What within a cause takes the time, as data: the name, the meaning and the remedy of each mechanism.

A cause says whether to look at the device, the host or the network; its mechanism says what to look for there. To add
one, add an entry here and its measurement to `tracekit.analysis.mechanisms`.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class MechanismEntry:
    """One mechanism: `meaning` completes "the excess is …", `excluded_by` says what would speak against it."""

    name: str
    meaning: str
    excluded_by: str
    next_step: str
    decided_by: str = ""  # what to record where its pauses lack a span of their own


MORE_WORK: Final = MechanismEntry(
    "more_work",
    "work that this rank runs and its peers do not, or larger work",
    "as many kernels (on a CPU: operators) of every name as on peers, and matrix products as large",
    "find what this rank alone runs (evaluation, averaging of weights, checks, a loss for the log): do it less often, "
    "in another process, or on all ranks alike; compare the size of its batch with its peers'",
)

OTHER_DEVICE: Final = MechanismEntry(
    "other_device",
    "a device of another model than its peers'",
    "a device of the same name, as the trace gives it",
    "give this rank a smaller batch, or all ranks devices of one model",
)

OF_DEVICE: Final = (
    MORE_WORK,
    OTHER_DEVICE,
    MechanismEntry(
        "clock",
        "all kinds of kernels longer by one factor",
        "kinds of kernels that take as long as on peers",
        "compare clocks, power cap and temperature with a peer's: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE",
    ),
    MechanismEntry(
        "throttling",
        "all kinds of kernels longer by one factor, which grows from step to step",
        "a factor that is the same in the first and in the last step",
        "watch temperature and throttle reasons while the job runs: nvidia-smi -q -d TEMPERATURE,PERFORMANCE; check "
        "cooling and neighbours of that device",
    ),
    MechanismEntry(
        "matrix_products",
        "matrix products longer, kernels that move memory not",
        "kernels that move memory longer by as much",
        "look for a power cap (it slows dense kernels first) and for another cuBLAS or CUDA version on that host",
    ),
    MechanismEntry(
        "memory_bandwidth",
        "kernels that move memory longer, matrix products not",
        "matrix products longer by as much",
        "check remapped rows and the memory clock of that device (nvidia-smi -q -d ECC,ROW_REMAPPER,CLOCK), and for "
        "other processes on it",
    ),
    MechanismEntry(
        "one_kernel",
        "one kernel longer, the others not",
        "other kernels of that kind longer by as much",
        "compare this kernel's shapes and its version with a peer's: an autotuned or recompiled kernel may differ",
    ),
    MechanismEntry(
        "attention",
        "attention longer, other kernels not",
        "matrix products longer by as much",
        "compare the lengths of documents that this rank gets with its peers': attention grows with their squares",
    ),
    MechanismEntry(
        "experts",
        "kernels of experts longer, other kernels not",
        "other kernels longer by as much",
        "compare the tokens that this rank's experts get with its peers'",
    ),
)  # fmt: skip
"""Which kernels of a slow device are longer, or additional."""

OF_HOST: Final = (
    MechanismEntry(
        "garbage_collection",
        "garbage collection of Python while the device is idle",
        "gaps without a span of the collector, where collections are recorded; pauses within operators",
        "call gc.freeze() after set-up and collect at the same step on all ranks, or less often",
        "collections: with_stack=True and, from torch 2.9 on, _ExperimentalConfig(record_python_gc_info=True), or "
        "times in gc.callbacks; stacks alone show only calls of gc.collect()",
    ),
    MechanismEntry(
        "lock",
        "the thread that launches waits for a lock or a queue of another thread",
        "gaps without such a span of that thread, where stacks are recorded; pauses within operators",
        "find the thread that holds it (py-spy dump shows all of them), and hold it for less, or wait outside the step",
        "the stacks of all threads in a pause (py-spy dump)",
    ),
    MechanismEntry(
        "recompilation",
        "compilation of kernels while the device is idle",
        "gaps without a span of the compiler",
        "find what changes with TORCH_LOGS=recompiles; mark dynamic shapes, or warm up with all shapes",
    ),
    MechanismEntry(
        "synchronisation",
        "calls that wait for the device, behind which the host launches again",
        "gaps that do not begin where such a call returns, or in which the host does one thing, or nothing",
        "find the call that reads a value back (.item(), .cpu(), nonzero, print) and move it out of the step",
    ),
    MechanismEntry(
        "input_output",
        "reading, writing or saving while the device is idle",
        "gaps without such a span",
        "save and log from another thread or less often, and compare that host's file system with a peer's",
    ),
    MechanismEntry(
        "cpu_quota",
        "pauses without any event that end at one phase of a period of 100 ms, as a quota of processor time makes them",
        "pauses that end at any phase of that period",
        "read cpu.stat (nr_throttled) of the container on that host, and raise or remove its CPU limit",
    ),
    MechanismEntry(
        "process_stopped",
        "pauses at any moment, also within operators, which run no Python: the whole process does nothing",
        "pauses between operators alone, where operators fill most of the host's time",
        "look for a stopped or frozen process, swapping and a full disk on that host: vmstat 1, and State and "
        "voluntary_ctxt_switches in /proc/PID/status",
        "/proc/PID/schedstat of that rank once a second, which shows time without a turn",
    ),
    MechanismEntry(
        "host_code",
        "Python of the program at one place of the step, between two operators",
        "pauses at changing places, or within operators",
        "look at what the program does behind that operator on this rank alone",
        "the stacks of Python (with_stack=True)",
    ),
    MechanismEntry(
        "host_span",
        "one span of the host while the device is idle",
        "gaps outside that span",
        "look at what that span does on this rank alone",
    ),
)  # fmt: skip
"""What a paused host does while its device waits for work."""

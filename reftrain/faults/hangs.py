"""Faults that end a run: a rank that never comes to a communication, leaves it out, makes another one, or dies."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch

from reftrain.config.fault_kinds import FAULT_KINDS
from reftrain.config.fault_spec import FaultSpec
from reftrain.errors import ConfigError
from reftrain.faults.fault import Fault
from reftrain.faults.next_call import resize_next, skip_next
from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import RunContext
from reftrain.thresholds import FOREVER_S, MORE_THAN_ANY_MEMORY

CALLS_OF = {
    "tp": {"tp", "kv"},
    "cp": {"cp"},
    "pp": {"pp", "embedding"},
    "dp": {"dp", "dp_cp", "edp"},
    "ep": {"ep"},
}
"""Names of `CollectiveCall.axis` that a fault's axis includes: FSDP2's reductions are data parallel."""


class Hang(Fault):
    """Strikes once, at the rank's first communication of the step (on the axis and of the kind named).

    `reached` is the last step that an earlier attempt of an elastic job had begun: what struck there does not again.
    """

    def __init__(self, spec: FaultSpec, reached: int = -1) -> None:
        super().__init__(spec)
        self.reached = reached

    def setup(self, context: RunContext) -> None:
        """Find out whether the fault strikes this rank."""
        super().setup(context)
        self.axes = None if self.spec.axis is None else CALLS_OF[self.spec.axis]
        self.device = context.device
        self.struck = False
        self._resumes = bool(context.config.checkpoint.resume)  # then the step may have been before

    def step_begin(self, step: int) -> None:
        """Find out whether the fault strikes in this step, for the first time."""
        super().step_begin(step)
        due = step if FAULT_KINDS[self.spec.kind].repeats else self.spec.first
        self.active = self.active and due > self.reached

    def collective_begin(self, call: CollectiveCall) -> None:
        """Strike at the first call that matches."""
        on_axis = self.axes is None or call.axis in self.axes
        if self.active and not self.struck and on_axis and self.spec.op in {None, call.op}:
            self.struck = True
            self.strike(call)

    def close(self) -> None:
        """Raise `ConfigError` where the run has come to its end and the fault never struck."""
        due = self.here and not self._resumes and not self.struck
        if due and sys.exc_info()[0] is None:
            on = "" if self.spec.axis is None else f" on {self.spec.axis}"
            raise ConfigError(
                "fault",
                f"{self.spec.kind} never struck: in its steps rank {self.spec.rank} made no "
                f"{self.spec.op or 'communication'}{on}",
                "choose another axis, op or rank",
            )

    def strike(self, call: CollectiveCall) -> None:
        """Act as the kind does, in place of this call or before it."""
        raise NotImplementedError


class HostStall(Hang, kind="host_stall"):
    """Never comes to the call: asleep on the host."""

    def strike(self, call: CollectiveCall) -> None:
        """Sleep for good."""
        del call
        time.sleep(FOREVER_S)


class HoldGil(Hang, kind="hold_gil"):
    """Never comes to the call: a library call keeps the interpreter's lock."""

    def strike(self, call: CollectiveCall) -> None:
        """Sleep for good in a C function that holds the interpreter's lock (`PyDLL`); no signal may end the sleep."""
        del call
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            ctypes.PyDLL(None).sleep(FOREVER_S)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Deadlock(Hang, kind="deadlock"):
    """Never comes to the call: waits for a lock that it holds itself."""

    def strike(self, call: CollectiveCall) -> None:
        """Take one lock twice."""
        del call
        lock = threading.Lock()
        with lock:
            lock.acquire(timeout=FOREVER_S)


class StuckIo(Hang, kind="stuck_io"):
    """Never comes to the call: reads what never arrives, as from a file system that does not answer."""

    def strike(self, call: CollectiveCall) -> None:
        """Read from a pipe into which nothing is written."""
        del call
        reader, _ = os.pipe()
        os.read(reader, 1)


class Stop(Hang, kind="stop"):
    """Never comes to the call: the whole process is stopped, with all its threads."""

    def strike(self, call: CollectiveCall) -> None:
        """Stop this process; only SIGCONT from outside lets it go on."""
        del call
        os.kill(os.getpid(), signal.SIGSTOP)


class OutOfMemory(Hang, kind="out_of_memory"):
    """Dies before the call of the allocator's error, which nothing catches."""

    def strike(self, call: CollectiveCall) -> None:
        """Ask for more memory than any device or host has."""
        del call
        torch.empty(MORE_THAN_ANY_MEMORY, dtype=torch.uint8, device=self.device)


class Leave(Hang, kind="leave"):
    """Ends before the call as if all were done: a loader that is exhausted early, a limit on time."""

    def strike(self, call: CollectiveCall) -> None:
        """End this process with exit code 0."""
        del call
        os._exit(0)


class Crash(Hang, kind="crash"):
    """Dies before the call."""

    def strike(self, call: CollectiveCall) -> None:
        """Kill this process as the out-of-memory killer does."""
        del call
        os.kill(os.getpid(), signal.SIGKILL)


class Kill(Crash, kind="kill"):
    """Dies before the call, in each of its steps: an elastic job goes on after it."""


class SkipCollective(Hang, kind="skip_collective"):
    """Leaves the call out and goes on: a branch that the other ranks do not take."""

    def strike(self, call: CollectiveCall) -> None:
        """Leave out what follows."""
        skip_next(call.op)


class WrongSize(Hang, kind="wrong_size"):
    """Makes the call with another size than its peers."""

    def strike(self, call: CollectiveCall) -> None:
        """Change what follows."""
        resize_next(call.op)

"""Errors a user can act on: which field or rank, what is wrong, and the remedy.

`cli` turns them into one sentence on stderr and an exit code; `launcher` carries them from a rank to its
parent.
"""

from tracekit.errors import TracekitError


class ReftrainError(TracekitError):
    """Root of the reference trainer's errors (exit 3, where nothing below says otherwise)."""


class ConfigError(ReftrainError):
    """A field of the configuration contradicts another one or the machine (exit 2)."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class ScheduleError(ConfigError):
    """A schedule cannot be built for these stages and micro-batches, or breaks a rule (exit 2)."""


class MachineError(ReftrainError):
    """The machine refuses: a port in use, a full disk, a folder that cannot be written (exit 3)."""


class RankDiedError(ReftrainError):
    """A rank ended before its work did; the message names the rank and how it ended (exit 3)."""


class StuckError(RankDiedError):
    """A rank gave up waiting for another one, which may still live (exit 3)."""


class CheckpointError(ReftrainError):
    """A checkpoint is absent, incomplete or of another model (exit 3)."""

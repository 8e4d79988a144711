"""Errors a user can act on: what happened, where, and the remedy.

`cli` turns them into one sentence on stderr and an exit code; nothing else does.
"""


class TracekitError(Exception):
    """Root of all errors that are not a fault of ours."""

    exit_code = 3


class UsageError(TracekitError):
    """The command line contradicts itself or the input (exit 2)."""

    exit_code = 2


class InputError(TracekitError):
    """The input cannot be read, or is incomplete beyond use (exit 3)."""


class MeshError(InputError):
    """The mesh cannot be inferred from the input; the message says which flag to give (exit 3)."""

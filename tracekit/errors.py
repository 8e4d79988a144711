"""The root of all errors that a user can act on: each says what happened, where, and the remedy.

`numerics.errors` and `reftrain.errors` build on it. The programs turn an error into one sentence on stderr and an
exit code (`tracekit_cli.exit_codes` holds the only table of these); nothing else does.
"""

from collections.abc import Iterable


class TracekitError(Exception):
    """Root of all errors that are not a fault of ours (exit 3, where nothing below says otherwise)."""


def with_rejected(error: TracekitError, rejected: Iterable[tuple[str, str]]) -> TracekitError:
    """Return `error` with a note for each file that could not be used, (path, reason): a refusal may be due to one."""
    for path, reason in rejected:
        error.add_note(f"rejected {path}: {reason}")
    return error


class UsageError(TracekitError):
    """The command line contradicts itself or the input (exit 2)."""


class InputError(TracekitError):
    """The input cannot be read, or is incomplete beyond use (exit 3)."""


class OutputError(TracekitError):
    """The answer or a run cannot be written: no place, no permission, a full disk (exit 3)."""


class MissingExtraError(TracekitError):
    """A package of an extra is not installed, or is too old; the message gives the line that installs it (exit 3)."""


class MeshError(InputError):
    """The mesh cannot be inferred from the input; the message says which flag to give (exit 3)."""


class MeshUnknownError(MeshError):
    """The input neither determines the mesh nor contradicts one (exit 3)."""

"""Exit codes of the three programs, decided in one place (docs/cli.md)."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

import click

from reftrain.errors import ConfigError
from tracekit.errors import TracekitError, UsageError

from .streams import ReaderLeftError

OK: Final = 0
FAILED_ON: Final = 1
USAGE: Final = 2
INPUT: Final = 3
UNDECIDED: Final = 4
FAULT: Final = 70
INTERRUPTED: Final = 130

OF_ERRORS: Final[Mapping[type[BaseException], int]] = MappingProxyType(
    {
        TracekitError: INPUT,  # the root of all errors that are not a fault of ours
        UsageError: USAGE,
        ConfigError: USAGE,
        click.ClickException: USAGE,
        OSError: INPUT,  # a file, folder or disk refused, and nobody said it better
        BrokenPipeError: OK,
        ReaderLeftError: OK,  # whoever read the answer has left, as `head` does
        click.Abort: INTERRUPTED,
        KeyboardInterrupt: INTERRUPTED,
        Exception: FAULT,
    }
)
"""The exit code of every error; a class that is not listed has that of its nearest base."""

NOBODY = ("healthy", "none", "unchanged", "steady", "inconclusive")
"""Verdicts that `--fail-on any` lets pass."""


def of_error(error: BaseException) -> int:
    """Exit code of a program that `error` ended."""
    return next(OF_ERRORS[kind] for kind in type(error).__mro__ if kind in OF_ERRORS)


def of_verdict(verdict: str, fail_on: Collection[str]) -> int:
    """0; 1 where the verdict is among `fail_on`; 4 where it is inconclusive and `fail_on` was given."""
    if verdict in fail_on or ("any" in fail_on and verdict not in NOBODY):
        return FAILED_ON
    if fail_on and verdict == "inconclusive":
        return UNDECIDED
    return OK


def of_comparison(verdict: str) -> int:
    """Exit code of `numerics compare` and `ladder`.

    1 for what must be fixed, 3 for runs that cannot be compared, 4 for undecided.
    """
    return {
        "bug": FAILED_ON,
        "precision_policy": FAILED_ON,
        "incomparable": INPUT,
        "undecided": UNDECIDED,
    }.get(verdict, OK)

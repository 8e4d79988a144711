"""Exit codes of every command, decided in one place (docs/cli.md)."""

from collections.abc import Collection

OK = 0
FAILED_ON = 1
USAGE = 2
INPUT = 3
UNDECIDED = 4
FAULT = 70
INTERRUPTED = 130

NOBODY = ("healthy", "none", "inconclusive")
"""Verdicts that `--fail-on any` lets pass."""


def of_verdict(verdict: str, fail_on: Collection[str]) -> int:
    """0; 1 where the verdict is among `fail_on`; 4 where it is inconclusive and `fail_on` was given."""
    if verdict in fail_on or ("any" in fail_on and verdict not in NOBODY):
        return FAILED_ON
    if fail_on and verdict == "inconclusive":
        return UNDECIDED
    return OK


def of_comparison(verdict: str) -> int:
    """Exit code of `numerics compare`: 1 for what must be mended, 3 for what cannot be compared, 4 for undecided."""
    return {
        "bug": FAILED_ON,
        "precision_policy": FAILED_ON,
        "incomparable": INPUT,
        "undecided": UNDECIDED,
    }.get(verdict, OK)

"""The program as the tests of commands call it."""

from tests.cli.conftest import tracekit

__all__ = ["tracekit"]

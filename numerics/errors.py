"""Errors of a capture, apart from tracekit's so that a trainer that records needs nothing of tracekit."""


class CaptureError(Exception):
    """A tensor or a folder that cannot be recorded; the message says what, where and the remedy."""

    exit_code = 3

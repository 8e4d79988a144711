"""The error of recording: what cannot be recorded, where, and the remedy."""

from tracekit.errors import TracekitError


class CaptureError(TracekitError):
    """A tensor, a file or a folder that cannot be recorded or read back."""

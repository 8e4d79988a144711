"""The command that would decide more about a run, given what was captured and which trainer wrote it."""

from numerics.order.replayer import REPLAY, replayer
from numerics.store import Capture
from tracekit.errors import InputError


def what_decides(capture: Capture) -> str:
    """Return the command: a matched replay where the trainer offers one, else a local proof."""
    folder = capture.folder
    try:
        replayer(capture.source)
    except InputError:
        proof = "numerics compare --model FILE.py:FUNCTION --parallel"
        if capture.values:
            return f"{proof} {folder}"
        return f"numerics capture --level tensors --out {folder}_values -- CMD, then {proof} {folder}_values"
    return f"numerics replay {folder} --out {folder / REPLAY}"

"""The command that would decide more about a run, given what was captured and which trainer wrote it."""

from pathlib import Path

from numerics.order.replayer import REPLAY, replayer
from numerics.store import Capture
from tracekit.errors import InputError


def what_decides(capture: Capture, baseline: Path | None = None, *, refused: bool = False) -> str:
    """Return the command: a matched replay where the trainer offers one (a ladder where it `refused`), else a proof."""
    folder = capture.folder
    if _has_replayer(capture):
        return (
            ladder_of(capture, baseline) if refused else f"numerics replay {folder} --out {folder / REPLAY}"
        )
    proof = "numerics compare --model FILE.py:FUNCTION --parallel"
    beside = "" if baseline is None else f" --baseline {baseline}"
    if capture.values:
        return f"{proof} {folder}{beside}"
    return (
        f"numerics capture --level tensors --out {folder}_values -- CMD, then {proof} {folder}_values{beside}"
    )


def ladder_of(capture: Capture, baseline: Path | None) -> str:
    """Return the ladder's command, for a run that neither a matched replay nor a local proof decides.

    It repeats runs of a trainer that offers a replayer; of others the pair is captured in two formats.
    """
    other = baseline or "BASELINE"
    if _has_replayer(capture):
        return f"numerics ladder --parallel {capture.folder} --baseline {other}"
    return (
        "numerics ladder --pair RUN_FP32 BASELINE_FP32 --pair RUN_FP64 BASELINE_FP64, after capturing both runs in two "
        'formats with watch(config={"dtype_policy": "fp32"}) and "fp64"'
    )


def _has_replayer(capture: Capture) -> bool:
    try:
        replayer(capture.source)
    except InputError:
        return False
    return True


def what_tells_rounding(capture: Capture) -> str | None:
    """Return what would separate rounding from a bug; None if the capture holds values already."""
    if capture.values:
        return None
    return (
        f"run again with --capture tensors --out {capture.folder}_values, "
        f"then numerics compare --parallel {capture.folder}_values"
    )


def what_explains(capture: Capture, tensor: str) -> str | None:
    """Return how to capture the values of a tensor with an unexplained difference; None if they were captured."""
    if capture.values:
        return None
    folder = capture.folder
    if _has_replayer(capture):
        again = f"run again with --capture tensors --set evidence.capture_names='[\"{tensor}\"]' --out {folder}_values"
        return f"to see where {tensor} differs, {again}, then numerics compare --parallel {folder}_values"
    return f"to see where {tensor} differs, numerics capture --level tensors --out {folder}_values -- CMD"

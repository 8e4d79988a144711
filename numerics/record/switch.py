"""Environment variables by which `numerics capture -- CMD` switches capture on in a trainer that calls `watch`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from numerics.errors import CaptureError
from numerics.schema import Level

OUT: Final = "NUMERICS_CAPTURE"
LEVEL: Final = "NUMERICS_CAPTURE_LEVEL"
NAMES: Final = "NUMERICS_CAPTURE_NAMES"
STEPS: Final = "NUMERICS_CAPTURE_STEPS"


@dataclass(frozen=True)
class Switch:
    """The folder to record into, the level, and the tensors to keep with values."""

    out: Path
    level: Level
    names: tuple[str, ...]


def chosen_steps() -> frozenset[int] | None:
    """Return the steps that the environment asks for, None for all; CaptureError where it names no list of steps."""
    text = os.environ.get(STEPS, "")
    try:
        return frozenset(int(step) for step in text.split(",")) if text else None
    except ValueError:
        raise CaptureError(f"{STEPS}: {text[:40]!r} is not a list of steps; write 0,8,16") from None


def switched_on() -> Switch | None:
    """Return what the environment asks for, None where it asks for nothing. CaptureError for an unknown level."""
    out = os.environ.get(OUT)
    if not out:
        return None
    level = os.environ.get(LEVEL) or "digest"
    names = tuple(name.strip() for name in os.environ.get(NAMES, "").split(",") if name.strip())
    if level == "digest":
        return Switch(Path(out), "digest", names)
    if level == "tensors":
        return Switch(Path(out), "tensors", names)
    raise CaptureError(f"{LEVEL}: {level!r} is not a level; choose digest or tensors")

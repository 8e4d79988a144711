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


@dataclass(frozen=True)
class Switch:
    """Where to record, how much, and of which tensors the values."""

    out: Path
    level: Level
    names: tuple[str, ...]


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
    raise CaptureError(f"{LEVEL}: {level!r} is no level; choose digest or tensors")

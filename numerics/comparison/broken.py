"""A broken invariant: what ought to hold within one correct run, and does not."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Broken:
    """A broken invariant: its name, a sentence, the odd row, and all rows that contradict each other."""

    name: str
    sentence: str
    row: int
    rows: tuple[int, ...]

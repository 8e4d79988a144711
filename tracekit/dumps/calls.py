"""The signature of a call in a dump, and the kind under which timed calls are compared.

Both are named tuples: a job has few of them, a dump repeats them thousands of times, and a tuple is hashed, compared
and sent between processes by C code. `signatures` makes one object of all that are equal.
"""

import json
from functools import lru_cache
from math import prod
from typing import NamedTuple


class Signature(NamedTuple):
    """Operation, sizes and dtypes of a call; the last four are lists as text: "[[8192, 1, 5120]]", "['BFloat16']"."""

    op: str
    """Operation without its backend: "all_reduce", "send 0->1"."""
    input_sizes: str
    output_sizes: str
    input_dtypes: str
    output_dtypes: str

    @property
    def dtypes(self) -> str:
        """The input's dtypes, or the output's where no input is recorded (a receive)."""
        return self.input_dtypes or self.output_dtypes


class CallKind(NamedTuple):
    """The properties that calls share if their durations can be compared; -1 where an integer is unknown."""

    op: str
    dtype: str
    input_elements: int
    output_elements: int
    source: int
    """Rank that sends; -1 in a collective."""
    destination: int
    """Rank that receives; -1 in a collective."""


@lru_cache(4096)
def numel(text: str) -> int | None:
    """Count the elements of the tensors in "[[8192, 1, 5120], …]"; None where the text is no list of shapes."""
    shapes = sizes(text)
    return None if shapes is None else sum(prod(s) for s in shapes)


def sizes(text: str) -> tuple[tuple[int, ...], ...] | None:
    """Give the shapes in "[[8192, 1, 5120], …]", also of a coalesced call's parts; None for any other text."""
    try:
        value = [shape for part in text.split("; ") for shape in json.loads(part)]
        shapes = tuple(tuple(int(n) for n in shape) for shape in value)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None
    return shapes

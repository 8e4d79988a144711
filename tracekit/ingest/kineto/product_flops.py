"""What the shapes of an operator's inputs say, which `record_shapes=True` records: FLOPs of products, sizes on Gloo.

Operators that only call others (`aten::linear`, `aten::matmul`) are not counted. A product of m × k
by k × n needs 2mkn FLOPs; attention two such products forward and four backward, without a mask (PaLM, appendix B).

A call on Gloo has no other sign of its size.
"""

import json
import math
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import from_ints
from tracekit.thresholds.ingest import MAX_CODED_DIGITS, MAX_COUNT, MAX_FLOPS

SHAPES_KEY: Final = "Input Dims"
SHAPES_MARK: Final = b'"Input Dims"'
_SHAPES: Final = re.compile(rb'"Input Dims"\s*:\s*(\[[\[\]0-9,\s]*\])')
_BLANK: Final = re.compile(rb"\s+")
_PRODUCTS: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::_scaled_mm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
}
"""Operators by the place of their first factor among the inputs; the second one follows."""
_ATTENTION: Final = re.compile(r"aten::_scaled_dot_product_\w*attention(_for_cpu)?(_backward)?")
_COLLECTIVE: Final = re.compile(r"gloo:(all_reduce|broadcast|reduce|all_gather|gather|all_to_all|send|recv)")
"""Calls that give the rank's input, of a receive what it fills; only the root of a scatter has inputs.

torch 2.13 on Gloo: a reduce-scatter is an all-reduce of its input.
"""
_DIMENSIONS: Final = (2, 3)
_HEADS: Final = 4
_MOST_DIMENSIONS: Final = 64
"""The most that a tensor of torch has."""


def with_shapes_as_text(block: bytes, key: str) -> bytes:
    """Return a block of JSON in which lists of shapes are strings of another key, so that any nesting has one type."""
    begin = f'"{key}":"'.encode()
    return _SHAPES.sub(lambda found: begin + _BLANK.sub(b"", found[1]) + b'"', block)


def flops_of(name: str | None, shapes: Any) -> int | None:
    """Return the FLOPs of an operator with inputs of these `shapes` (lists of whole numbers); None where not known."""
    if not isinstance(shapes, list) or name is None:
        return None
    if name in _PRODUCTS:
        found = _product(*_sizes(shapes, _PRODUCTS[name], 2))
    elif matched := _ATTENTION.fullmatch(name):
        found = _attention(_sizes(shapes, 1 if matched[2] else 0, 2), backward=bool(matched[2]))
    else:
        return None
    return found if found is not None and 0 < found < MAX_FLOPS else None


def elements_of(name: str | None, shapes: Any) -> int | None:
    """Return the elements of the inputs of a collective on Gloo, with these `shapes`; None where not known."""
    if not isinstance(shapes, list) or not _COLLECTIVE.fullmatch(name or ""):
        return None
    sizes = [
        math.prod(size) if 0 < len(size) <= _MOST_DIMENSIONS else 0 for size in _sizes(shapes, 0, len(shapes))
    ]
    return sum(sizes) if sizes and min(sizes) > 0 and sum(sizes) <= MAX_COUNT else None


def of_shapes(names: pa.Array, shapes: pa.Array, elements: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return (FLOPs of each row, `elements` with those of collectives on Gloo), int64; null where not known.

    Names and shapes are dictionaries of text, `elements` what arguments say.
    """
    words, texts = names.dictionary.to_pylist(), shapes.dictionary.cast(pa.binary()).to_pylist()
    asked = {n: elements_of for n, word in enumerate(words) if _COLLECTIVE.fullmatch(word or "")}
    asked |= {
        n: flops_of for n, word in enumerate(words) if word in _PRODUCTS or _ATTENTION.fullmatch(word or "")
    }
    known: dict[tuple[int, int], int | None] = {}
    found: dict[Any, list[int | None]] = {ask: [None] * len(names) for ask in (flops_of, elements_of)}
    for row, (name, shape) in enumerate(
        zip(names.indices.to_pylist(), shapes.indices.to_pylist(), strict=True)
    ):
        if name in asked and shape is not None:
            if (name, shape) not in known:
                known[name, shape] = asked[name](words[name], parsed(texts[shape]))
            found[asked[name]][row] = known[name, shape]
    sizes = from_ints(found[elements_of])
    return from_ints(found[flops_of]), elements if sizes.null_count == len(sizes) else pc.coalesce(
        elements, sizes
    )


def parsed(text: bytes) -> Any:
    """Return the JSON value of a text; None where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sizes(shapes: list[Any], first: int, count: int) -> list[list[int]]:
    """Return `count` shapes from the place `first` on; an empty one where it holds anything but whole numbers."""
    taken = shapes[first : first + count]
    sizes = [[_whole(n) for n in shape] if isinstance(shape, list) else [-1] for shape in taken]
    kept = [shape if all(n >= 0 for n in shape) else [] for shape in sizes]
    return [*kept, *([[]] * (count - len(kept)))]


def _whole(value: Any) -> int:
    """Return a size; -1 for anything else, as a list, a text or a number with a point."""
    text = "" if isinstance(value, str | list | dict) else str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_CODED_DIGITS else -1


def _product(left: list[int], right: list[int]) -> int | None:
    if (
        len(left) != len(right)
        or len(left) not in _DIMENSIONS
        or left[-1] != right[-2]
        or left[:-2] != right[:-2]
    ):
        return None
    batch = left[0] if len(left) > min(_DIMENSIONS) else 1
    return 2 * batch * left[-2] * left[-1] * right[-1]


def _attention(sizes: list[list[int]], *, backward: bool) -> int | None:
    query, key = sizes
    if len(query) != _HEADS or len(key) != _HEADS:
        return None
    batch, heads, length, width = query
    return (8 if backward else 4) * batch * heads * length * key[2] * width

"""The capture: one row for each recorded tensor and rank, as Parquet. Everything else of `numerics` meets here.

    RUN/capture/stamp.json                     "numerics.capture/1": world size, level, environment, configuration
    RUN/capture/rank00003.parquet              rows of ROWS, in execution order
    RUN/capture/values_rank00003.safetensors   values, at level `tensors`
    RUN/capture/rank00003.parquet.partial      only while rank 3 is recording: found later, the run broke off

Every producer (a trainer's `Recorder`, the matched replay) writes these columns and every analysis reads only these.
A row names the *global* tensor and the part of it that a rank held, so runs of other meshes meet on the same names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from numerics.thresholds.reading import MAX_DIMENSIONS, MAX_RANKS
from tracekit.axes import AXES
from tracekit.text import whole_number

CAPTURE_SCHEMA: Final = "numerics.capture/1"
FOLDER: Final = "capture"
STAMP: Final = "stamp.json"
PARTIAL_SUFFIX: Final = ".partial"
SKETCH: Final = 8
"""Projections in a sketch."""

Level = Literal["digest", "tensors"]
Phase = Literal["init", "forward", "backward", "reduce", "step", "save"]
Kind = Literal[
    "input",  # tokens, targets, positions, tables: what a rank computes on
    "activation",  # output of a module
    "activation_grad",  # gradient of an activation
    "param",  # a parameter
    "param_grad_local",  # its gradient as this rank computed it, before any reduction
    "param_grad",  # its gradient after all reductions
    "optimizer",  # state of the optimiser
    "scalar",  # loss, norm, clip coefficient: what feeds the computation
    "metric",  # what is only reported
    "collective_in",
    "collective_out",
]
PHASES: Final = ("init", "forward", "backward", "reduce", "step", "save")
KINDS: Final = (
    "input",
    "activation",
    "activation_grad",
    "param",
    "param_grad_local",
    "param_grad",
    "optimizer",
    "scalar",
    "metric",
    "collective_in",
    "collective_out",
)

COLLECTIVES: Final = ("collective_in", "collective_out")
"""Kinds of rows that collectives leave."""

WATCHED: Final = "watch"
"""Source of captures by hooks: they record a step's state before a trainer sends results to other ranks."""

RUN_ID: Final = "numerics.run"
"""Key of the run's id in the metadata of a rank's file; stamp.json holds it as `run`."""

TARGET: Final = "target."
"""Start of an input's name that only the loss function reads; its number follows."""

RANDOM: Final = "rng."
"""Start of an input's name that holds the state of a random-number generator before a forward; its device follows."""

BUFFER: Final = "buffer."
"""Start of an input's name that holds a buffer of the model; its name follows. Each rank records its own."""

AUTOCAST: Final = "autocast."
"""Start of an input's name that says how a forward casts by itself; the device and the format follow."""

BESIDE: Final = "beside: "
"""Start of an activation's name that the model leaves beside its first output; what it is follows."""

EVALUATION: Final = "evaluation"
"""Name of the input that holds the modules of a forward in evaluation mode: lines in UTF-8, (bytes,) uint8.

It is recorded where any is; an empty line is the model.
"""

TWICE: Final = "create_graph"
"""Name of the input that says that a micro-batch's gradients were computed to be differentiated themselves."""

HOOKED: Final = "register_hook."
"""Starts the name of an input for each hook of a trainer that runs after the recorder's: its number and parameter."""

TAKEN: Final = "autograd.grad"
"""Name of the input that says that a step computed gradients that no backward added to a parameter's."""

CALL: Final = "call"
"""Name of the input that holds the form of a call of more than tensors: JSON in UTF-8, (bytes,) uint8."""

COMPLEX: Final = "complex"
"""Label of an input that was complex: real and imaginary parts are in its last dimension."""

LEARNING_RATE: Final = "optimizer.lr."
"""Start of a scalar's name that holds the learning rate of a parameter group; the group's number follows."""

SETTINGS: Final = "optimizer.settings"
"""Name of the scalar with the settings of an optimiser before a step: JSON in UTF-8, (bytes,) uint8."""

_NAME = pa.dictionary(pa.int32(), pa.string())

ROWS: Final = pa.schema(
    [
        pa.field("order", pa.int64(), nullable=False),  # execution order within the rank, from 0
        pa.field("step", pa.int32(), nullable=False),  # -1 before the first step
        pa.field("phase", _NAME, nullable=False),  # of PHASES
        pa.field("micro_batch", pa.int32(), nullable=False),  # within the data-parallel rank; -1: none
        pa.field("module", _NAME, nullable=False),  # global name, "layers.1.attention"; "" the whole model
        pa.field("tensor", _NAME, nullable=False),  # global name, "layers.1.attention.wk.weight.grad"
        pa.field("kind", _NAME, nullable=False),  # of KINDS
        pa.field("axis", _NAME),  # collectives: tp, cp, pp, dp, dp_cp, ...
        pa.field("op", _NAME),  # collectives: all_reduce, all_gather, reduce_scatter, send, recv
        pa.field("label", _NAME),  # collectives: what for
        pa.field("group", _NAME),  # collectives: global ranks in group order, "0,1,2,3"
        pa.field("dtype", _NAME, nullable=False),  # "float32", "bfloat16", ...
        pa.field("global_shape", _NAME, nullable=False),  # "12x64x256"; "" a scalar
        pa.field("boxes", _NAME, nullable=False),  # see `format_boxes`
        pa.field("replica", pa.int32(), nullable=False),  # 0: the copy that counts
        pa.field("partial", _NAME),  # "tp=1", "dp=2,cp=0": one addend of a sum; null: the value itself
        pa.field("rank", pa.int32(), nullable=False),
        *(pa.field(axis, pa.int32(), nullable=False) for axis in AXES),  # coordinates of the rank
        pa.field("digest", pa.uint64(), nullable=False),  # additive over the parts of a tensor, mod 2^64
        pa.field("digest_nz", pa.uint64(), nullable=False),  # the same with -0.0 taken as +0.0
        pa.field("numel", pa.int64(), nullable=False),  # elements of the boxes, padding left out
        pa.field("sum", pa.float64(), nullable=False),  # of the finite elements, as are the next four
        pa.field("sum_squares", pa.float64(), nullable=False),
        pa.field("abs_max", pa.float64()),  # null: no finite element
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("non_finite", pa.int64(), nullable=False),
        pa.field("lowbits", pa.bool_(), nullable=False),  # every value is a bfloat16 number
        pa.field("sketch", pa.list_(pa.float64(), SKETCH), nullable=False),  # additive random projections
        pa.field("values", pa.string()),  # key in the safetensors file
    ]
)
"""Columns of the capture: one row for each recorded tensor and rank, in the rank's execution order."""


UNPLACED: Final = "rank="
"""Start of `partial` where a trainer did not say which part a plain tensor is."""

REFUSES: Final = (
    "machine",
    "processor",
    "cpu_capability",
    "onednn",
    "torch",
    "mkl",
    "gpus",
    "cuda",
    "nccl",
    "deterministic",
    "float32_matmul",
    "settings",
)
"""Fields of the environment in which two runs must agree before their bits may be compared."""


@dataclass(frozen=True)
class Box:
    """A box of a global tensor: `offsets` and `sizes` by dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements in the box."""
        count = 1
        for size in self.sizes:
            count *= size
        return count


def whole(shape: Sequence[int]) -> tuple[Box, ...]:
    """Return the one box that is the whole tensor."""
    return (Box((0,) * len(shape), tuple(shape)),)


def linear_index(shape: Sequence[int], box: Box) -> np.ndarray:
    """Return the row-major indices of the box's elements in the global tensor, (numel,) int64."""
    index = np.zeros((), np.int64)
    for size, offset, extent in zip(shape, box.offsets, box.sizes, strict=True):
        index = index[..., None] * size + np.arange(offset, offset + extent, dtype=np.int64)
    return np.ascontiguousarray(index.reshape(-1))


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as text: (12, 64) becomes "12x64", a scalar's is empty."""
    return "x".join(str(int(size)) for size in shape)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape that `format_shape` wrote. ValueError where the text is not a shape."""
    if not text:
        return ()
    shape = tuple(int(part) for part in text.split("x"))
    if any(size < 0 for size in shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{text[:40]!r} is not a shape")
    return shape


def format_boxes(boxes: Sequence[Box]) -> str:
    """Return boxes as text, offset+size by dimension, in the order of the rank's own tensor: "0+4,8+16|0+4,56+16"."""
    return "|".join(
        ",".join(f"{int(o)}+{int(n)}" for o, n in zip(box.offsets, box.sizes, strict=True)) for box in boxes
    )


def ranks_in(group: str) -> list[int]:
    """Return the ranks that the name of a group lists, as in "0,4,8"; what is no rank is left out."""
    ranks = (whole_number(part, MAX_RANKS) for part in group.split(","))
    return [rank for rank in ranks if rank is not None]


def parse_boxes(text: str) -> tuple[Box, ...]:
    """Return the boxes that `format_boxes` wrote. ValueError where the text is not a list of boxes."""
    boxes = []
    for part in text.split("|"):
        pairs = [item.partition("+") for item in part.split(",")] if part else []
        if len(pairs) > MAX_DIMENSIONS or not all(plus for _, plus, _ in pairs):
            raise ValueError(f"{text[:40]!r} is not a list of boxes")
        box = Box(tuple(int(o) for o, _, _ in pairs), tuple(int(n) for _, _, n in pairs))
        if any(v < 0 for v in (*box.offsets, *box.sizes)):
            raise ValueError(f"{text[:40]!r} is not a list of boxes")
        boxes.append(box)
    return tuple(boxes)


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's rows."""
    return f"rank{rank:05d}.parquet"


def values_file(rank: int) -> str:
    """Return the name of the file with a rank's values."""
    return f"values_rank{rank:05d}.safetensors"

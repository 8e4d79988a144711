"""Work beside the program of a step, which planted faults make, and its rows in a trace.

Only the ranks that a fault strikes have it, so that its rows are no part of the template of a pipeline rank.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from reftrain.simulate.grid import F64
from reftrain.simulate.kernel_names import kernel_names


@dataclass(frozen=True)
class OtherWork:
    """What ranks did in one step: `kind` of `reftrain faults`, begin and end, (width,) ns; not where both are equal."""

    kind: str
    step: int
    begin: F64
    end: F64


class Part(NamedTuple):
    """One row: category and name, begin and end as shares of the work, and whether the device ran it."""

    cat: str
    name: str
    begin: float
    end: float
    on_device: bool = False


_LAYERS: Final = 8
_FORWARD: Final = ("norm", "qkv", "attention", "out", "ffn")


def _evaluation() -> Iterator[Part]:
    """The rows of forwards, one kernel after the other, which the host launches at the begin and waits for."""
    yield Part("user_annotation", "evaluate", 0.0, 1.0)
    count = _LAYERS * len(_FORWARD)
    for at, label in enumerate(_FORWARD * _LAYERS):
        names = kernel_names(label, backward=False)
        begin = 0.2 * at / count
        yield Part("cpu_op", names.operator, begin, begin + 0.1 / count)
        yield Part("cuda_runtime", "cudaLaunchKernel", begin + 0.02 / count, begin + 0.08 / count)
        yield Part("kernel", names.kernel, max(at, 0.2) / count, (at + 1) / count, on_device=True)
    yield Part("cuda_runtime", "cudaStreamSynchronize", 0.25, 1.0)


PARTS: Final = {
    "allocator_retries": (
        Part("cuda_runtime", "cudaFree", 0.0, 0.3),
        Part("cuda_runtime", "cudaFree", 0.3, 0.5),
        Part("cuda_runtime", "cudaMalloc", 0.5, 1.0),
    ),
    "checkpoint": (Part("user_annotation", "save_checkpoint", 0.0, 1.0),),
    "evaluation": tuple(_evaluation()),
}
"""The rows of each kind."""


def moments(work: Sequence[OtherWork], place: int) -> F64:
    """Return begin and end of every row of the rank at `place`, (rows, 2) ns since the job's begin."""
    shares = [np.array([(part.begin, part.end) for part in PARTS[w.kind]]) for w in work]
    rows = [w.begin[place] + share * (w.end - w.begin)[place] for w, share in zip(work, shares, strict=True)]
    return np.concatenate([np.zeros((0, 2)), *rows])


def rows_of(work: Sequence[OtherWork], pid: int, device: int, first: int, stream: int) -> list[str]:
    """Return the rows as JSON with places for their times; calls and kernels have numbers from `first` on."""
    out = []
    for parts in (PARTS[w.kind] for w in work):
        for part in parts:
            first += part.cat == "cpu_op" or part.name in {"cudaFree", "cudaMalloc", "cudaStreamSynchronize"}
            args: dict[str, object] = {"External id": first + 1}
            if part.cat in {"cuda_runtime", "kernel"}:
                args["correlation"] = first
            if part.on_device:
                args |= {"device": device, "context": 1, "stream": stream}
            where = {"pid": device, "tid": stream} if part.on_device else {"pid": pid, "tid": 1}
            head = json.dumps({"ph": "X", "cat": part.cat, "name": part.name, **where})[:-1].replace(
                "%", "%%"
            )
            out.append(f'{head},"ts":%d.%03d,"dur":%d.%03d,"args":{json.dumps(args)}}}')
    return out

"""Hypotheses about number formats: a replay that rounds somewhere other than declared, to explain a difference.

`rope=bf16` rounds the rotary table, `reduce=bf16` the data-parallel reduction, `accumulate=bf16` the sums over
micro-batches, `compute=fp32` changes the format of computation. A run that equals such a replay in every bit was
computed so.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from reftrain.replay.formats import Formats
from reftrain.replay.manifest import ReplayError

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
FIELDS = ("rope", "reduce", "accumulate", "compute")


def with_variants(formats: Formats, variants: Sequence[str]) -> Formats:
    """Return the formats with `field=format` texts applied; `ReplayError` for an invalid text."""
    for text in variants:
        name, equals, value = text.partition("=")
        if not equals or name not in FIELDS or value not in FORMATS:
            raise ReplayError(
                f"{text[:40]!r} is not a variant; write one of {', '.join(FIELDS)} = one of {', '.join(FORMATS)}"
            )
        formats = replace(formats, **{name: FORMATS[value]})
    return formats

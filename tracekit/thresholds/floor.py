"""Thresholds of `breakdown` and `floor`, which divide a step into parts and say what each brings."""

from typing import Final

SMALL_KERNEL_NS: Final = 5_000
"""A kernel that runs no longer than this takes about as long to begin and to drain (3 µs on an H100) as to compute, and
its host needs as long to launch it (4 to 6 µs): fusing it or launching it in a graph pays."""

LEAST_SAVING: Final = 0.01
"""Share of the step below which the answer recommends no remedy: one per cent lies within the spread of steps."""

ATTENTION_FLOPS: Final = 12
"""FLOPs of attention a layer, token, unit of width and token attended: two products of 2 FLOPs forward, twice that
backward (PaLM, appendix B); causal attention is counted whole there, as usual for MFU."""

PARAMETER_FLOPS: Final = 6
"""FLOPs a parameter and token: 2 forward and 4 backward (PaLM, appendix B)."""

MAX_GIVEN: Final = 1e30
"""Largest number of an option: no machine or model comes near, and products stay finite."""

MAX_PEAK_TFLOPS: Final = 1e6
"""Largest peak of a device that an option may say, TFLOP/s: a thousand times that of an H100 in 16 bits."""

MAX_PLAN_BYTES: Final = 64 << 20
"""Largest file of a plan or of hardware that is read: a plan for 100 000 devices takes some megabytes."""

CLASSES_SHOWN: Final = 3
"""Classes of kernel that the text lists without --verbose, the largest losses first: they fit a screen."""

VOLUME_ERROR: Final = 0.02
"""Share by which a recorded volume may miss a formula that it follows: shards are padded, and losses and norms add a
few elements."""

SIZES_SHOWN: Final = 3
"""Sizes of small all-reduces shown as possible losses: the loss has one, norms and biases have one or two others."""

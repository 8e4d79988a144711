"""Thresholds of comparison: how much is looked at, and when a relation holds, each with its reason."""

from typing import Final

MAX_ELEMENTS: Final = 1 << 22
"""Largest tensor with values that are read to explain a difference: 32 MiB in float64."""

MAX_SLICES: Final = 1 << 17
"""Most slices of a dimension that are compared by their bytes."""

DISTANCE_CHUNK: Final = 1 << 21
"""Elements to measure the distance of at a time, so that the float64 copies stay small."""

MAX_ADDENDS: Final = 64
"""Most addends fitted to a difference: more than that many unknowns fit noise."""

MAX_FITTED_ROWS: Final = 16
"""Most rows of a tensor to fit addends to; further ranks repeat the first."""

MAX_FITTED_NUMBERS: Final = 1 << 15
"""Most numbers a fit uses; longer vectors are thinned out evenly."""

MAX_PAIRED_ADDENDS: Final = 24
"""Most addends to try all pairs of: 276 fits."""

NO_DIVISOR: Final = 1e-300
"""Least magnitude that a relative tolerance is taken of, so that nothing is divided by zero."""

VALUES_TOLERANCE: Final = 4
"""Roundoffs that a relation of values may leave: each side was rounded, and so was the product or sum."""

SKETCH_TOLERANCE: Final = 12
"""Roundoffs that a relation of sketches may leave: projections add the roundings of many elements."""

LEAST_TOLERANCE: Final = 1e-9
"""Least tolerance of a relation; statistics in float64 carry rounding of their own."""

FACTOR_MARGIN: Final = 4
"""Tolerances by which a factor must differ from 1, and factors of one group may differ from each other."""

NAMED_FACTOR_TOLERANCE: Final = 1e-6
"""Least tolerance with which a factor is named by a size of the run; sizes are small whole numbers."""

ADDEND_MARGIN: Final = 4
"""Multiples of the rounding noise that a difference must exceed before addends are fitted to it."""

LEAST_FIT: Final = 4e-6
"""Least residual allowed to a fit of addends, relative to the difference: float32 partials are rounded themselves."""

LOOSEST_FIT: Final = 0.2
"""Largest residual allowed to a fit of addends, relative to the difference: a fifth still separates -1 from 0."""

WEIGHT_TOLERANCE: Final = 0.03
"""How close a fitted weight must come to -1, 0 or 1 to be taken for missing, irrelevant or doubled."""

CONSTANT_TOLERANCE: Final = 0.01
"""Largest residual of a constant shift, and how close the constant must come to a logarithm, both relative."""

TOKEN_TOLERANCE: Final = 0.02
"""How close a shift of losses must come to a whole number of logarithms."""

LEAST_TOKENS: Final = 0.5
"""Logarithms that a shift of losses must have: less is not one token."""

LEAST_SHIFTS: Final = 3
"""Distinct shifts of losses needed: any two numbers are multiples of something."""

LEAST_FITTED: Final = 8
"""Elements of a tensor from which factors, constants and addends are fitted: few numbers fit something by chance."""

LEAST_REARRANGED: Final = 8
"""Elements needed to call equal statistics a rearrangement: few numbers agree by chance."""

SAME_SQUARES: Final = 1e-12
"""Relative difference of two sums of squares of the same values in another order, in float64."""

SAME_SUM: Final = 1e-9
"""Difference of two sums of the same values in another order, relative to √n times the norm, in float64."""

FEW_PLACES: Final = 3
"""A difference is on few indices if these are at most one third of at least so many."""

LEAST_SHIFTED: Final = 2
"""Slices that must have moved alike before a shift is claimed."""

BLOCK_COUNTS: Final = (2, 3, 4, 6, 8)
"""Numbers of equal blocks with a recognised permutation: those of head-tail chunks and small groups."""

ROUNDED_ONCE: Final = 64
"""Roundoffs of bfloat16 up to which a difference may be that of computing in bfloat16 instead."""

ROUNDED_WEIGHTS: Final = 2
"""Roundoffs of the narrower format up to which weights are the baseline's in another format: one rounding is at most
one, and the difference is estimated from sketches."""

ROUNDING_ONLY: Final = 8
"""Roundoffs of its own format up to which a difference is of the size of roundings."""

OTHER_FORMAT: Final = 2.0**-5
"""Relative size up to which a difference may be that of another number format: 8 roundoffs of bfloat16."""

OTHER_FORMAT_LEAST: Final = 1 / 16
"""Roundoffs of bfloat16 from which on a difference may be that of another format. A value rounded to p bits moves by
0.4 roundoffs in the root mean square, whatever its size; a sixteenth leaves room for tensors with a small rounded part
(rare words of an embedding)."""

SUDDEN_GROWTH: Final = 1000.0
"""Growth from one step to the next that feedback through the weights does not explain without a replay."""

CHAOTIC_GROWTH: Final = 10.0
"""Growth over all steps from which the answer says that an order difference grew."""

THREADED_SUM: Final = 32768
"""Elements from which ATen splits a sum over threads, so that their number changes its order."""

DRAWN_APART: Final = 16
"""Roundoffs of its format from which an output that random numbers change may differ by these: order moves the first
outputs of a forward by a few."""

DRAWN_BEFORE: Final = 8
"""How many times as far an output must differ as all before it, so that what was drawn there is the cause."""

SAME_EXAMPLE: Final = 0.5
"""Share of its ids from which a sequence is one of the baseline's: masking and noise change a sixth of them or so, and
other documents share few."""

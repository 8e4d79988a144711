"""Every threshold, tolerance and bound of numerics, each with its reason.

Sizes of untrusted input are bounded so that a damaged or hostile file ends in one sentence and not in exhausted
memory. Tolerances are multiples of unit roundoffs where rounding is the only other cause of a difference.
"""

from typing import Final

# Reading: bounds of untrusted input

MAX_RANKS: Final = 1 << 20
"""Largest world size believed; the largest known jobs have 10^5 ranks."""

MAX_ORDINAL: Final = 1 << 40
"""Steps, micro-batches and rows of a rank are counted below this: keys that add or hash them stay within 64 bits."""

MAX_EXTENT: Final = 1 << 48
"""Elements of a tensor, a buffer or a dimension: 10^5 times the largest parameter known."""

MAX_DIMENSIONS: Final = 16
"""Most dimensions of a tensor; training uses at most 6."""

MAX_JSON_BYTES: Final = 64 << 20
"""Largest stamp or manifest read; real ones have kilobytes."""

MAX_PLAN_BYTES: Final = 256 << 20
"""Largest order plan or shadow sums read; a plan of 1 000 ranks has megabytes."""

READER_BYTES: Final = 16 << 30
"""Address space that a process may take to read one file of a run: Arrow reserves far more than it uses."""

READER_SECONDS: Final = 3600.0
"""Time for one file of a run. The largest take seconds; only a reader that loops needs an hour."""

MAX_HEADER_BYTES: Final = 256 << 20
"""Largest safetensors header read; 10^6 tensors need 100 MiB."""

MAX_CELLS: Final = 1 << 22
"""Most cells of the grid on which boxes are laid to see whether they cover a tensor; real shardings need hundreds."""

MAX_REPLAYER_LINE: Final = 2000
"""Characters kept of a line that the replayer prints."""

REPLAYER_LINES: Final = 20
"""Lines kept of the replayer's output; the last one is the reason of a failure."""

MAX_LAYER_DIGITS: Final = 9
"""Most digits of a layer's number; longer numbers in names are hashes or dates."""

# Recording

ROWS_PER_GROUP: Final = 16384
"""Rows held in memory before they are written: about 10 MiB."""

KEY_CACHE_BYTES: Final = 256 << 20
"""Memory for keys of boxes: a run of preset small needs this much every step, and would make them anew with less."""

MIX_CHUNK: Final = 1 << 15
"""Elements mixed at a time on a CPU: their 256 KiB stay in its cache, and are memory that malloc has at hand."""

SCRATCH_ELEMENTS: Final = 1 << 23
"""Elements up to which a thread keeps the memory (64 MiB) of a tensor's float64 copy for the next."""

HASH_CHUNK: Final = 1 << 18
"""Elements hashed at a time, so that the 64-bit copies stay in the cache."""

LOW_BITS_SAMPLE: Final = 1024
"""Elements looked at first when a tensor is tested for bfloat16 numbers; nearly always enough to say no."""

# Comparing: how much is looked at

MAX_ELEMENTS: Final = 1 << 22
"""Largest tensor whose values are read to explain a difference: 32 MiB in float64."""

MAX_SLICES: Final = 1 << 17
"""Most slices of a dimension that are compared by their bytes."""

DISTANCE_CHUNK: Final = 1 << 21
"""Elements whose distance is measured at a time, so that the float64 copies stay small."""

MAX_ADDENDS: Final = 64
"""Most addends fitted to a difference: more than that many unknowns fit noise."""

MAX_FITTED_ROWS: Final = 16
"""Most rows of a tensor whose addends are fitted; further ranks repeat the first."""

MAX_FITTED_NUMBERS: Final = 1 << 15
"""Most numbers a fit uses; longer vectors are thinned out evenly."""

MAX_PAIRED_ADDENDS: Final = 24
"""Most addends of which all pairs are tried: 276 fits."""

# Comparing: when a relation holds

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
"""Largest residual allowed to a fit of addends, relative to the difference: a fifth still tells -1 from 0."""

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
"""A difference stands on few indices when these are at most one third of at least so many."""

LEAST_SHIFTED: Final = 2
"""Slices that must have moved alike before a shift is claimed."""

BLOCK_COUNTS: Final = (2, 3, 4, 6, 8)
"""Numbers of equal blocks whose permutation is recognised: those of head-tail chunks and small groups."""

ROUNDED_ONCE: Final = 64
"""Roundoffs of bfloat16 up to which a difference may be that of computing in bfloat16 instead."""

ROUNDING_ONLY: Final = 8
"""Roundoffs of its own format up to which a difference is of the size of roundings."""

OTHER_FORMAT: Final = 2.0**-5
"""Relative size up to which a difference may be that of another number format: 8 roundoffs of bfloat16."""

OTHER_FORMAT_LEAST: Final = 1 / 16
"""Roundoffs of bfloat16 from which on a difference may be that of another format. A value rounded to p bits moves by
0.4 roundoffs in the root mean square, whatever its size; a sixteenth leaves room for tensors of which a small part only
was rounded (rare words of an embedding)."""

SUDDEN_GROWTH: Final = 1000.0
"""Growth from one step to the next that feedback through the weights does not explain without a replay."""

CHAOTIC_GROWTH: Final = 10.0
"""Growth over all steps from which the answer says that an order difference grew."""

THREADED_SUM: Final = 32768
"""Elements from which ATen splits a sum over threads, so that their number changes its order."""

# Precision

ADDITION_ERROR: Final = 0.44
"""RMS error of one rounded addition, over u times the RMS of its result.

A number's error is uniform within half a last place: u/√3 of its power of two. Averaged over the numbers between two
powers of two, whose mean square is 2.16 to 7/3, that is 0.38 to 0.39. The sum of two numbers of one format has only d
bits too many, and ties among them: its mean square error is 1 + 2·4^-d times as large, 1.5 times for one bit. So the
factor lies between 0.39 and 0.48; running sums of 2 to 128 gradients showed 0.43 to 0.46.
"""

BUDGET: Final = 2.0
"""Error of a BF16 buffer, in errors of a single rounding, from which it needs FP32. Two addends cost 1.1 times,
four 1.6, sixteen three times."""

STEEP: Final = 0.5
"""Least slope of rounding: log of the distances' ratio over log of the roundoffs' ratio. Rounding has about 1 (0.87 to
0.99 seen), a bug 0. Half way lets rounding fall with its square root only, and finds a bug of that size in FP64."""

FLOOR: Final = 1024
"""A distance of so many roundoffs of the finest format is rounding, whatever the coarser rung says (a tensor may be
equal there by accident): tens of roundoffs are seen in shallow models, and a bug is millions of them."""

LEAST_RATIO: Final = 1e-30
"""Least ratio of two distances whose logarithm is taken."""

# Reporting: how much is shown

WORST_TENSORS: Final = 10
"""Tensors listed as those that differ most."""

MODULES_DRAWN: Final = 120
"""Modules in the picture: more do not fit on a page."""

STEPS_DRAWN: Final = 60
"""Steps in the picture: more do not fit on a page."""

INVARIANTS_LISTED: Final = 20
"""Broken invariants listed: one bug breaks hundreds."""

PLAN_LISTED: Final = 50
"""Differences between order plans listed in an answer."""

DIFFERENCES_SHOWN: Final = 12
"""Differences between order plans in the terminal's answer without --verbose."""

TENSORS_SHOWN: Final = 4
"""Affected tensors named for each group in the terminal's answer without --verbose."""

RUNGS_SHOWN: Final = 12
"""Tensors of the ladder in the terminal's answer without --verbose."""

BUFFERS_SHOWN: Final = 20
"""Gradient buffers in the terminal's answer without --verbose."""

LARGEST_SHOWN: Final = 3
"""Largest differences in the terminal's answer without --verbose."""

LINES_SHOWN: Final = 4
"""Lines of each list in the terminal's answer without --verbose."""

RANKS_IN_PAGE: Final = 64
"""Ranks named in the HTML page."""

RANKS_TOLD: Final = 4
"""Ranks whose explanations stand for all where they differ."""

RANKS_IN_SENTENCE: Final = 8
"""Ranks named in a sentence before "…"."""

RANKS_IN_TEXT: Final = 16
"""Ranks named in the terminal's answer before "…"."""

NAMES_IN_SENTENCE: Final = 6
"""Addends named in a sentence before "…"."""

OPERANDS_IN_SENTENCE: Final = 12
"""Entries of a plan's field shown before "…"."""

LONGEST_VALUE: Final = 60
"""Characters of a configured value shown in a sentence."""

# Local proof

FUNCTION_ROUNDINGS: Final = 40
"""Roundings that a function (exponential, square root) may cost: the quickest vectorised exponential errs by 20 ulp."""

MOST_EXPONENT: Final = 700.0
"""Largest exponent taken of an error: beyond it FP64 overflows, and the bound says nothing anyway."""

SCALE_TOLERANCE: Final = 1e-3
"""Relative distance from 1, 1/dp and the like at which a factor of all gradients is taken to be that number."""

ADDEND_MISFIT: Final = 0.02
"""Relative misfit of a gradient by its ranks' gradients at which the fit explains it: BF16 sums err by a percent."""

NEARLY_WHOLE: Final = 0.01
"""Relative distance at which a factor counts as the size of an axis: the bound lets ratios err by less."""

LOSS_SCALE: Final = 0.02
"""Distance from 1 of the ratio of all gradients to the baseline's that order cannot explain: BF16 moves it by 0.1 %."""

# Forced replay

LONE_RANK_CHANCE: Final = 1e-3
"""Chance, with rows alike, that all rows that differ fall on one rank by accident: below it the rank differs alone."""

LONE_ELEMENT_OF: Final = 64
"""Elements of a tensor of which one may not differ alone: a kernel that rounds otherwise does so in many places."""

LONE_ELEMENT_ULP: Final = 2
"""Units in the last place up to which one element may differ alone: its rounding turned over."""

NO_ROUNDING: Final = 0.25
"""Relative size of a first divergence from which no forced replay is asked whether it is rounding: 64 of BF16's."""

PROBED_STEPS: Final = 8
"""Steps that a round of a bisection records: a ninth of the steps is left after it, so that a thousand need four rounds
of two runs, while a capture of eight steps costs far less than the runs themselves."""

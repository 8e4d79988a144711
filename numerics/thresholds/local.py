"""Thresholds of the local proof's sums and lone differences, each with its reason."""

from typing import Final

MAX_ORDER_WORK: Final = 1 << 30
"""Additions that the search for one sum's order may cost; beyond it (64 ranks of 10^5 elements) the bound judges."""

MAX_LEARNING_RANKS: Final = 64
"""Ranks of a group up to which orders are tried: rings of more have thousands of orders, each of thousands of sums."""

LEAST_PIECE: Final = 16
"""Elements that a piece of a ring's buffer has on average, at least: smaller pieces would fit any values."""

SUM_ROUNDINGS: Final = 3
"""Roundings that a sum over ranks may cost besides its additions: scaled before, scaled after, stored."""

GROUPS_TOLD: Final = 12
"""Groups to report learned orders of: a mesh of three axes has all its groups among so many."""

LEAST_GRADIENTS: Final = 4
"""Parameters with gradients that must agree on a factor before it is applied to another gradient."""

MOSTLY: Final = 0.9
"""Share of gradients that must follow a rule before the others are said to break it."""

MOSTLY_NEAR: Final = 1e-2
"""Relative distance within which factors estimated from sketches of 16-bit gradients agree."""

WHOLE_INVERSE: Final = 1e-3
"""Relative distance from 1/n at which a factor of gradients is that of an average."""

NAMES_TRIED: Final = 4
"""Wrong gradients of a step that are held against all others of their shape: the first of them is to be explained."""

FUNCTION_ROUNDINGS: Final = 40
"""Roundings that a function (exponential, square root) may cost: the quickest vectorised exponential errs by 20 ulp."""

MOST_EXPONENT: Final = 700.0
"""Largest exponent taken of an error: beyond it FP64 overflows, and the bound says nothing anyway."""

SCALE_TOLERANCE: Final = 1e-3
"""Relative distance from 1, 1/dp and the like at which a factor of all gradients is taken to be that number."""

ADDEND_MISFIT: Final = 0.02
"""Relative misfit of a gradient by its ranks' gradients at which the fit explains it: BF16 sums err by a percent."""

LOSS_SCALE: Final = 0.02
"""Distance from 1 of the ratio of all gradients to the baseline's that order cannot explain: BF16 moves it by 0.1 %. It
says that gradients are others, and never that they are a multiple."""

LONE_RANK_CHANCE: Final = 1e-3
"""Chance, with rows alike, that all rows that differ fall on one rank by accident: below it the rank differs alone."""

LONE_ELEMENT_OF: Final = 64
"""Elements of a tensor from which on a single one may not differ: another kernel rounds differently in many places."""

LONE_ELEMENT_ULP: Final = 2
"""Units in the last place up to which one element may differ alone: its rounding turned over."""

REWRITTEN_ROUNDINGS: Final = 16
"""Roundings of a tensor's usual size (root mean square) by which an element of a formula written otherwise may miss. A
hundred pairs of formulas (sums, norms, losses, attention, gates, gradients) take up to 10; 16 of FP32 are 1e-6."""

REWRITTEN_MEAN: Final = 1.25
"""Such roundings by which its elements miss in root mean square: the pairs take up to 0.9, since roundings fall either
way, and a factor rounded once adds one at most; a factor of 1.01 in BF16 takes 1.85 or more."""

REWRITTEN_SPREAD: Final = 4
"""Standard deviations by which that mean of few elements may be larger, each its share over the root of their count."""

NO_ROUNDING: Final = 0.25
"""Relative size of a first divergence from which no forced replay is asked whether it is rounding: 64 of BF16's."""

PROBED_STEPS: Final = 8
"""Steps that a round of a bisection records: a ninth of the steps is left after it, so that a thousand need four rounds
of two runs, while a capture of eight steps costs far less than the runs themselves."""

ERROR_SHOWN: Final = 160
"""Characters of a user's error that a refusal repeats: its first sentence, without a traceback."""

RATE_TOLERANCE: Final = 1e-5
"""Relative distance within which learning rates are equal: some trainers keep them in FP32, which errs by 1e-7."""

RATES_TOLD: Final = 6
"""Learning rates of one group to report: a schedule's shape shows in so many."""

LEAST_LAGGING: Final = 2
"""Rates that must fit another group's earlier ones before a group is said to come late: one fits any other."""

MOST_SCHEDULED: Final = 100_000
"""Steps of a scheduler that are made to learn its rates, in a second or two; later ones are held against nothing."""

LEAST_CLASSES: Final = 8
"""Classes from which on a row of logits shows its weight: fewer numbers fit a cross entropy's form by chance."""

FIRM_ROW: Final = 0.1
"""Distance of a label's probability from 1 from which on a row's gradient shows its weight: nearer, digits cancel."""

WEIGHT_TOLERANCE: Final = 1e-4
"""Relative distance within which weights are equal, and rows have a cross entropy's form: FP32 errs by 1e-5 at most."""

WEIGHT_ULPS: Final = 8
"""Roundings of the gradients' format that weights may be apart by: 6 % in BF16, where rows err by two roundings."""

FAINT_ROW: Final = 0.01
"""Share of the largest row of a gradient from which a row shows how much its position counts beside a baseline's."""

LOSS_SENSITIVITY: Final = 100.0
"""Times the difference of two runs' outputs that the gradients of one loss may differ by: a cross entropy's differ by
twice the difference of its logits, a squared error's by as much as outputs exceed the errors."""

ROWS_AT_ONCE: Final = 1 << 22
"""Logits that are turned to FP64 at once: 32 MiB."""

FACTOR_STEADY: Final = 1e-5
"""Relative distance within which the factors of all gradients are one in all steps: FP32 sums give them to 1e-6, while
clipping follows the norm, which another batch moves by percents."""

LEAST_STEADY: Final = 2
"""Steps from which on a constant factor is reported: in a single step it may be that of clipping."""

ORDER_ROUNDINGS: Final = 256
"""Roundoffs of its format by which an order of sums may move a tensor's norm: FP32 gradients move by 1e-6, a fifteenth
of that; the faintest bugs of benchmarks move them by 5e-4, thirty times it."""

LEAST_LOSS_SCALE: Final = 16.0
"""Scale of a loss from which it is one against underflow: scales start at thousands, and halve after overflows."""

LARGEST_LOSS_SCALE: Final = 2.0**127
"""Scale of a loss up to which it is one: a greater power of two is no number of FP32."""

MASK_ELEMENTS: Final = 4096
"""Elements of a dropout layer's output to keep the mask of: no two draws agree on so many, and steps stay cheap."""

MASK_SIGMAS: Final = 6.0
"""Standard deviations by which the dropped elements may miss their expected number: chance goes so far once in 10^9."""

REPEATED_BY_CHANCE: Final = -9.0
"""Decimal logarithm of the chance, over all pairs of steps, below which equal masks are no accident."""

CHANCE_SHOWN: Final = 300
"""Digits of a chance to report: beyond them a longer mask says nothing more."""

OTHER_SEED: Final = 1 << 40
"""Seed of a generator's state that no run starts from: what changes with it depends on random numbers."""

PAD_RUN: Final = 2
"""Equal ids from which the end of a sequence may be padding: one alone is the end that a sequence has."""

PADDING_BY_CHANCE: Final = -6.0
"""Decimal logarithm of the chance of a step's runs of one id at ends of sequences below which they are padding."""

MOSTLY_COUNTED: Final = 0.5
"""Share of whole numbers that are one more than the one before from which they count positions: words do not."""

LEAST_COUNTED: Final = 2
"""Positions that a rank's piece must have before its ids are said to count: one number counts nothing."""

SITES_TRIED: Final = 6
"""Lines of a model's code to make positions local in, one at a time: a model makes them in one place or two."""

APART_IN_FP64: Final = 1e-5
"""Relative distance from which outputs of one sequence depend on others: FP64 errs by 1e-13, a part in FP32 by 1e-6."""

MOST_BATCHES_TRIED: Final = 64
"""Sizes of a batch that are tried for one that divides no other dimension: a prime is among them."""

STATISTICS_APART: Final = 1e-3
"""Relative distance from which outputs differ by other statistics: roundings of FP32 stay below, two halves of a batch
of a thousand differ by percents."""

STATISTICS_ULPS: Final = 4
"""Roundings of a narrow format up to which outputs do not differ by other statistics."""

ALSO_WORDS: Final = 0.5
"""Share of the different ids of one input that another must have to hold words too: kinds and segments have few."""

DRAWN_NUMBER: Final = -6.0
"""Decimal logarithm of the chance that a uniform or normal number is drawn again: FP32 has 24 bits, BF16 fewer."""

ELEMENT_ROUNDOFFS: Final = 64
"""Roundings of its own size and of its tensor's by which an element of a gradient may miss a multiple of another run's:
order moves it by a few for each layer that it came through."""

LEAST_SHARE: Final = 0.01
"""Share of the largest weight below which a rank adds nothing to a gradient: then the fit of weights shows no clip."""

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
"""Groups whose learned orders are told: a mesh of three axes has them all among so many."""

LEAST_GRADIENTS: Final = 4
"""Parameters whose gradients must agree on a factor before another gradient is held against it."""

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

NEARLY_WHOLE: Final = 0.01
"""Relative distance at which a factor counts as the size of an axis: the bound lets ratios err by less."""

LOSS_SCALE: Final = 0.02
"""Distance from 1 of the ratio of all gradients to the baseline's that order cannot explain: BF16 moves it by 0.1 %."""

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

ERROR_SHOWN: Final = 160
"""Characters of a user's error that a refusal repeats: its first sentence, without a traceback."""

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

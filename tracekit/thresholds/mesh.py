"""Thresholds that identify an unnamed axis by the amount and the kind of its communication."""

from typing import Final

MANY_CALLS: Final = 24
"""Collectives of a group from which it may be tensor or context parallel: those communicate in every layer."""

MOSTLY_EXPOSED: Final = 0.6
"""Share of collectives that compute waits for, above which an axis is inside the layers: data parallelism overlaps."""

ALTERNATING: Final = 0.93
"""Share of collectives that differ in kind from the one before, above which gathers and scatters take turns (tp)."""

UNEVEN_SIZES: Final = 1 / 8
"""Share of all-to-alls that must differ in elements for them to send tokens: another number goes to experts each
time, and back, and again in backward and recomputation, so that one in six differs. Sequence parallelism moves
heads in the same few sizes in each of many layers."""

RING_GAP_NS: Final = 100_000
"""Ranks of a ring send and receive within this time of each other, ns: a stage computes for far longer in between."""

RING_SHARE: Final = 0.9
"""Share of messages between two ranks that go both ways at once: a pipeline's first and last ones go alone, in every
step, and windows may cut a ring's."""

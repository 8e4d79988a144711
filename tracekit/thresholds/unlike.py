"""Bounds of `slowrank` for what no peer or other step shows: an only group, accidents; each with its reason."""

from typing import Final

FAST_BUS_GB_S: Final = 100.0
"""Bus bandwidth that only sound links reach: 145 to 370 GB/s within a node of NVLink, as much over a card a GPU."""

SOLE_GROUP_SHARE: Final = 0.15
"""Share of a step that the only group could save at `FAST_BUS_GB_S`, from which a job is not called healthy unseen."""

LIKE_RATIO: Final = 2.5
"""A collective may take this many times as long as another that moves as much: NVLS and tuning make up to twice."""

AS_LARGE: Final = 2.0
"""An operation of up to this many times the bytes shows what a network does with fewer; larger ones are quicker."""

ACCIDENT_STEPS: Final = 2.0
"""What holds a step up for longer than this many steps is no whim of a scheduler: a compiler or a retry may return."""

UNSTEADY_CALLS: Final = 3
"""Calls of one step alone that are late before its links count as irregular: one or two are a whim of the network."""

MEMBERS_TO_LOOK_AT: Final = 8
"""Members of an irregular group that are listed as candidates: a host's worth of cards, which a person can look at."""

STALLS: Final = 3
"""Long gaps in one step from which on a host stalls again and again: an accident, as a garbage collection, is one."""

STALL_TIMES: Final = 2.0
"""Times the longest gap of a typical peer that each of them must last."""

STALL_SHARE: Final = 0.03
"""And this share of all that the rank worked longer: shorter ones are launches, and every step has many."""

LAG_BEFORE: Final = 0.05
"""Share of a step by which a rank's first one is shorter than its peers' where it began that step late. A third of it
is missing from the price of three steps."""

EXPERTS_ONLY: Final = 0.3
"""Share of a rank's excess that kernels which follow no data may show where experts are all that is longer on it: a
device that is slow throughout shows all of it."""

FEW_LINKS: Final = 16
"""Ways of messages in a pipeline that is short: up to nine stages. Of more links those of one rank are a small part."""

"""Which ranks are named for a hang, and which are not."""

from typing import Final

MAX_WITNESSES: Final = 64
"""Ranks or replicas asked about an order or a version: all of them run one program, so more show nothing new."""

MIN_WITNESSES: Final = 2
"""Peers that must show the usual order before a rank is named for a different one: a single peer may be the odd one."""

MIN_ALIKE: Final = 2
"""Times that members must make the same calls between two calls of their group before one of them counts as leaving
the pattern."""

MAX_CALLS_MOVED: Final = 8
"""Calls that a rank makes more or fewer than its peers before both go on alike: a save or a log makes one to four."""

MIN_MOVED_CALLS: Final = 4
"""Calls that must continue equally, shifted by some, if no stacks separate them: fewer fit by chance."""

PATTERN_CALLS: Final = 12
"""Last calls of two groups that must agree for one past: a layer makes about ten on one group."""

STALE_DUMPS_SHARE: Final = 0.25
"""Share of dumps older than their peers' beyond which they are those of a live job, written one after another."""

LIVE_DUMPS_SHARE: Final = 0.5
"""Share of dumps that must show calls just finished before a job counts as live: a stopped watchdog shows them, too."""

STATES_OF_A_HANG: Final = 2
"""Last finished calls that members of a group may show in a hang: the stuck call ended on some of them, or on none."""

FROZEN_SHARE: Final = 0.25
"""Share of the others' time after their last call that a stopped process may have run on: waiting processes run on
for about their calls' time-out, and a stopped one for a second or two."""

FROZEN_LEAST_S: Final = 4
"""Least time between the last signs of life of a stopped process and of its peers: recorders note one each second, and
on an overloaded host with some seconds' delay."""

STRAGGLER_CALLS: Final = 8
"""Timed collectives below which coming last says nothing of a rank."""

STRAGGLER_SHARE: Final = 0.5
"""Share of all waiting in its calls that a straggler must cause itself: with less, others are late as often."""

STRAGGLER_CHANCE: Final = 1e-3
"""Probability, over all ranks together, with which chance (1/size a call) may make a rank last as often as it was."""

RANKS_SHOWN: Final = 8
"""Members of a group shown in a refusal: enough to recognise it."""

MAX_ASKED: Final = 256
"""Ranks to test for whether all waiting can start from each: a second for a job of as many."""

NAMED_A_SIDE: Final = 4
"""Ranks named of each side of a mismatch in doubt; the group shows the rest."""

NAMED_IN_SENTENCE: Final = 8
"""Culprits of a kind named in the verdict's sentence; the list below it names all."""

NAMED_IN_DOUBT: Final = 16
"""Ranks named as possible explanations of a standstill; more are no lead."""

"""Bounds by which `slowrank` names the mechanism of a cause."""

from typing import Final

NAMED_SHARE: Final = 0.8
"""Share of the excess that a mechanism explains before it is named; else the two best are listed."""

RIVAL_SHARE: Final = 0.5
"""Share from which a second explanation of the same excess keeps the first one from being named."""

MECHANISMS_LISTED: Final = 2
"""Mechanisms of a suspect that are listed: the two between which a further recording decides."""

LEAST_KIND: Final = 0.03
"""Share of compute from which a kind of kernels shows whether it is longer: a tenth of it is 0.3 % of the step."""

STEADY_KIND: Final = 0.25
"""A kind that is longer by less than this part of the common factor counts as not longer."""

GROWTH: Final = 1.5
"""Ratio of the last to the first excess from which the excess counts as growing."""

GROWTH_RANKED: Final = 0.8
"""Least rank correlation of excess and step for growth: of five steps, chance exceeds it in one job of fifteen."""

BESIDE_COMMUNICATION: Final = 0.1
"""Share beside communication from which the length of a kernel says nothing about its device."""

GAP_NS: Final = 100_000
"""Shortest idle time of a device that is looked into: shorter ones are launches."""

GAP_PART: Final = 0.1
"""Part of the longest gap from which others are looked into as well."""

GAPS_READ: Final = 400
"""Longest gaps of a rank that are looked into."""

RETURN_NS: Final = 100_000
"""A call that waits for the device returns within this time of its end."""

INSIDE: Final = 0.5
"""Share of a span's whole time in gaps from which it may explain them: spans around whole steps lie mostly outside."""

QUOTA_PERIOD_NS: Final = 100_000_000
"""Period of Linux's quota of processor time, `cpu.cfs_period_us`, unless it was changed."""

QUOTA_CHANCE: Final = 0.01
"""Most probability by chance (Rayleigh's test) of pauses at one phase of that period."""

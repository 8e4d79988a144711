"""Thresholds of `breakdown`, which divides a step into parts."""

from typing import Final

VOLUME_ERROR: Final = 0.02
"""Share by which a recorded volume may miss a formula that it follows: shards are padded, and losses and norms add a
few elements."""

SIZES_SHOWN: Final = 3
"""Sizes of small all-reduces shown as possible losses: the loss has one, norms and biases have one or two others."""

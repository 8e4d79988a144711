"""Thresholds of `breakdown`, which divides a step into parts."""

from typing import Final

LAUNCH_NS: Final = 20_000
"""How long after its launch a kernel may begin on an idle device: 3 to 10 µs are usual, 20 µs on a busy
bus. A longer gap behind a launch is not the host's."""

VOLUME_ERROR: Final = 0.02
"""Share by which a recorded volume may miss a formula that it follows: shards are padded, and losses and norms add a
few elements."""

SIZES_SHOWN: Final = 3
"""Sizes of small all-reduces shown as possible losses: the loss has one, norms and biases have one or two others."""

"""Thresholds for messages of pipelines without peers: how well the order of a schedule must fit them."""

from typing import Final

DEALT_MARGIN: Final = 0.5
"""A stage's messages are assigned to its neighbours only if any other way has misfits in this many more steps out of
one: a message at the wrong neighbour misfits wherever a rank waited for the right one."""

BACKWARD_LONGER: Final = 1.25
"""Backward work takes twice as long as forward work, or three times; by this much they are clearly of two kinds."""

DEALT_MISFITS: Final = 0.1
"""Share of a stage's messages that may misfit: a slow link is late in its own replica, and clocks are not exact."""

CLEARLY_DEALT_MISFITS: Final = 0.25
"""The same where every other way has twice the misfits: transfers beside compute take longer than the quickest ones."""

MOST_DEALT_MESSAGES: Final = 256
"""Messages of a stage and step assigned to its neighbours: 64 micro-batches; the work grows with the cube."""

MOST_DEALT_STEPS: Final = 64
"""Steps, of all replicas, in which messages are compared: more make nothing clearer."""

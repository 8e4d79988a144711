"""Thresholds of answers about operation tables, in which every dependency between operations is known."""

from typing import Final

BATCHES_VARY: Final = 0.02
"""Coefficient of variation that all places of a micro-batch must share for its work to be uneven: less is free."""

BATCHES_ALIKE: Final = 0.5
"""Correlation of a micro-batch's work between stages from which it is the micro-batch's, and no place's own."""

UNEXPLAINED: Final = 0.04
"""Share of the step that typical work would save from which an operation table is not healthy: twice the threshold of a
verdict, because noise of 3 % in every computation makes 1.5 %."""

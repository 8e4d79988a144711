"""Thresholds of reports: how much is shown, each with its reason."""

from typing import Final

WORST_TENSORS: Final = 10
"""Tensors listed as the most different ones."""

MODULES_DRAWN: Final = 120
"""Modules in the picture: more do not fit on a page."""

STEPS_DRAWN: Final = 60
"""Steps in the picture: more do not fit on a page."""

DECADES_DRAWN: Final = 16
"""Powers of ten over which the pictures of a ladder's rungs fade: FP64 rounds at 1e-16."""

INVARIANTS_LISTED: Final = 20
"""Broken invariants listed: one bug breaks hundreds."""

PLAN_LISTED: Final = 50
"""Differences between order plans listed in an answer."""

DIFFERENCES_SHOWN: Final = 12
"""Differences between order plans in the terminal's answer without --verbose."""

TENSORS_SHOWN: Final = 4
"""Affected tensors named for each group in the terminal's answer without --verbose."""

COLUMNS: Final = 80
"""Width of tables in the terminal's answer: that of a terminal of default width."""

RUNGS_SHOWN: Final = 12
"""Tensors of the ladder in the terminal's answer without --verbose."""

BUFFERS_SHOWN: Final = 20
"""Gradient buffers in the terminal's answer without --verbose."""

LARGEST_SHOWN: Final = 3
"""Largest differences in the terminal's answer without --verbose."""

LINES_SHOWN: Final = 4
"""Lines of each list in the terminal's answer without --verbose."""

RANKS_IN_PAGE: Final = 64
"""Ranks named in the HTML page."""

RANKS_TOLD: Final = 4
"""Ranks to give explanations of if they differ."""

RANKS_IN_SENTENCE: Final = 8
"""Ranks named in a sentence before "…"."""

RANKS_IN_TEXT: Final = 16
"""Ranks named in the terminal's answer before "…"."""

NAMES_IN_SENTENCE: Final = 6
"""Addends named in a sentence before "…"."""

OPERANDS_IN_SENTENCE: Final = 12
"""Entries of a plan's field shown before "…"."""

LONGEST_VALUE: Final = 60
"""Characters of a configured value shown in a sentence."""

STEPS_IN_SENTENCE: Final = 4
"""Steps that a sentence lists: the last one is the usual case."""

LISTED_NAMES: Final = 3
"""Names of tensors that a sentence lists of one capture: enough to recognise how its modules are named."""

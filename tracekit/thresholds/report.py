"""Limits on what reports show."""

from typing import Final

CULPRITS_SHOWN: Final = 16
REJECTED_SHOWN: Final = 5
"""Culprits and rejected files of a hang listed without --verbose: a screen holds them beside the stacks."""

FRAMES_SHOWN: Final = 12
"""Innermost frames of a stack: these lead from the collective to the training step."""

RANK_RUNS_SHOWN: Final = 24
"""Runs of consecutive ranks shown of a list: two lines of text."""

SHAPES_SHOWN: Final = 4
"""Shapes shown of a call's inputs: an all-to-all may have one a member."""

ROWS_SHOWN: Final = 8
"""Suspects and rejected files that the text lists without --verbose: they fit a screen."""

NUMBER_RUNS_SHOWN: Final = 12
"""Runs of step or rank numbers that one line of text lists."""

TIGHT_INTERVAL: Final = 0.1
"""Relative difference between the ends of a price from which the text shows both."""

KERNEL_ROWS: Final = 12
"""Classes of kernels that a page shows unfolded, most lost first: the rest lose little."""

TIMELINE_PARTS: Final = 1500
"""Gaps below this part of a step are closed in a time line: they are narrower than a dot of the screen."""

MAP_CELLS: Final = 200_000
"""Cells of one heat map in a page: 16 384 ranks × 12 steps; more are drawn in blocks of steps."""

CELL_PARTS: Final = 999
"""Parts of a colour scale that a cell is rounded to: more shades look the same, and three digits are short."""

PAGE_ROWS: Final = 500
"""Rows of one table in a page: more are not read, and --json holds all."""

BARS_DRAWN: Final = 24
"""Bars of one chart of changes: more have no room for their names, and the table below lists them."""

LINES_DRAWN: Final = 64
"""Ranks drawn as lines over time: ranks that get slower come first, and more lines cover each other."""

MARKDOWN_ITEM_CHARACTERS: Final = 1_000
"""Characters of one line of Markdown: names in a trace may be megabytes long."""

MARKDOWN_CHARACTERS: Final = 60_000
"""Characters of a whole answer as Markdown: a comment on GitHub holds 65 536."""

PERFETTO_SUSPECTS: Final = 64
"""Suspects with a track in a Perfetto trace: more tracks than a screen shows; the JSON holds all."""

NOTEBOOK_ROWS: Final = 32
"""Rows of a finding that a notebook shows below a cell: one screen; the table itself has all."""

CELL_CHARACTERS: Final = 400
"""Characters of one cell of such a table: names in a trace may be megabytes long."""

CHANGES_SHOWN: Final = 0.005
"""Share of the step from which the text lists a change: a quarter of what a verdict counts."""

NAME_CHARACTERS: Final = 22
"""Characters of a name in a table of changes: 80 columns hold it beside three times."""

MOSTLY_THEIRS: Final = 0.9
"""Share of a saving below which it is not the suspects' alone: a model's scale moves a price by a few per cent."""

PARTS_IN_HEADLINE: Final = 3
"""Parts of the step that the headline of a page names: a line holds them, and they make most of a step."""

ALONE: Final = 0.5
"""Share of the largest change that no other rank may reach for the headline of a page to name one rank."""

PROBED_RANKS: Final = 16
"""Suspects and candidates that a script of `tracekit next` compares with all ranks."""

HOSTS_STARTED: Final = 8
"""Hosts for which the script of `next` lists the command: the others differ by their number alone."""

PROBED_GROUPS: Final = 64
"""Groups along an axis that such a script lets reduce: each one takes a communicator."""

RANKS_SHOWN: Final = 8
"""Ranks that an answer or a page shows one by one: the cards of one host, which an engineer can check."""

PAGE_HOLDS: Final = 64
"""Indices of an axis that a page draws, and ranks whose time lines it holds: no screen distinguishes more."""

"""Bounds on logs, stacks and other evidence that nobody vouches for, and what they must show before a rank is named."""

from typing import Final

SCAN_BLOCK: Final = 1 << 22
"""Bytes of a log that are searched at a time: 4 MiB, so that costs of a block vanish and memory stays constant."""

SCAN_PIECE: Final = 1 << 14
"""Bytes of which the quick search says whether they hold a line of interest: few lines are looked at for each hit."""

LOOK_BACK: Final = 1 << 10
"""Bytes before a line in which the rest of a report is looked for: a failure of torchrun has five lines."""

LOOK_AHEAD: Final = 1 << 16
"""Bytes after a line in which the rest is looked for: a Python traceback of 200 frames fits."""

LONGEST_LINE: Final = 1 << 12
"""Bytes of a line that are read: what PyTorch and NCCL write is shorter."""

MAX_FRAME_LINES: Final = 400
"""Lines of a traceback that are followed to its exception."""

MAX_REPORT_LINES: Final = 4096
"""Lines of a desync report that are read: a state of a few members each."""

MAX_TEXT: Final = 300
"""Characters kept of a message: enough to recognise it."""

MAX_LOG_RANKS: Final = 1 << 17
"""Ranks of a log or a RAS answer are below this: eight times the largest job, and a false one costs seconds at most."""

MAX_MARKS: Final = 200_000
"""Ranks times groups kept of one log: 16 384 ranks with a dozen groups each."""

MAX_DEATHS: Final = 4096
"""Deaths kept of one log: the first ones count, and later ones repeat them."""

MAX_SIGNS: Final = 256
"""Warnings kept of one log (NCCL, Xid, memory): the first tell the kind."""

MAX_SAMPLES: Final = 2_000_000
"""Values read of one file of counters: a day of a host of eight GPUs, ten values of each every four seconds."""

HOSTS_SHOWN: Final = 4
"""Hosts that the line of a file of counters names."""

HOT_C: Final = 90
"""Degrees Celsius from which a GPU's heat is shown: data-centre GPUs slow down from there on."""

LOW_CLOCK: Final = 0.85
"""Share of the other GPUs' clock below which a GPU's clock is shown: boost differs by a few per cent."""

PRESSURE_SHARE: Final = 0.2
"""Share of the time that tasks waited, or that other guests took, from which it is shown."""

SCARCE_MEMORY: Final = 0.03
"""Share of the memory that is left, below which the kernel begins to end processes."""

FIRST_CALENDAR_S: Final = 1_000_000_000
"""Seconds since 1970 (September 2001) before which a clock is taken as counted from a start, not from a calendar."""

LAST_CALENDAR_MS: Final = 253_402_214_400_000
"""Milliseconds since 1970 (the end of the year 9999) from which no calendar can write a time."""

MAX_PREFIX: Final = 300
"""Bytes before the message of a kernel in which its host is looked for: a time and a few names."""

ZONE_MS: Final = 900_000
"""Zones of time differ by whole quarters of an hour."""

ZONES: Final = 56
"""Quarters of an hour by which a zone is before or behind UTC at most: 14 hours."""

MAX_STACKS: Final = 4096
"""Stacks read of one file: a host has eight ranks of some tens of threads each."""

MAX_STACK_FRAMES: Final = 128
"""Frames of one stack that are kept."""

MAX_RAS_BYTES: Final = 1 << 28
"""Largest answer of `ncclras` that is read whole, 256 MiB: 16 384 ranks in twenty communicators take about 150."""

KIND_HEAD: Final = 1 << 16
"""Bytes of a file by which its kind is recognised."""

TEXT_SHARE: Final = 0.95
"""Share of printable bytes from which a file without a known beginning is searched as a log."""

MAX_MEMBERS: Final = 10_000
"""Files of one archive that are unpacked."""

MAX_UNPACKED: Final = 1 << 34
"""Bytes that one archive may unpack to, 16 GiB: a disk must not fill from a crafted one."""

LOG_EXPANSION: Final = 1100
"""Times its size that a log may expand to: gzip makes a thousandth of one repeated line, and lines are not kept."""

MAX_RATIO: Final = 200
"""Times its size that one archive may unpack to: logs and traces shrink by 10 to 60."""

LEAST_UNPACKED: Final = 1 << 28
"""Bytes that any archive may unpack to, 256 MiB: a log of one repeated line shrinks a thousand times."""

MIN_STACKS: Final = 3
"""Ranks whose stacks are needed before the odd one is named: of two, either is."""

WAITING_SHARE: Final = 0.5
"""Share of ranks with stacks that must wait in a collective before the rest count as the odd ones."""

MAX_ODD_STACKS: Final = 0.25
"""Share of ranks outside a collective beyond which the program, and not a rank, is the reason."""

DIED_TOGETHER_S: Final = 5.0
"""Seconds within which ranks that die of one exception die of one cause."""

FILES_IN_ANSWER: Final = 40
"""Files of one kind listed in the text of `triage`; JSON lists all."""

FEWEST_WITNESSES: Final = 2
"""Ranks that lost a peer, from which on the one without an error is named: one witness may have lost it itself."""

MAX_CALLS_KEPT: Final = 512
"""Calls kept of one communicator that NCCL's lines show: a host runs ahead of its device by fewer."""

FEWEST_CALLS_KEPT: Final = 8
"""Calls kept of each communicator of the largest job: the last ones show where members part."""

FEWEST_IN_ORDER: Final = 2
"""Calls needed to show an order: fewer have no place between them where one can be lost."""

MOST_CALLS_KEPT: Final = 1 << 20
"""Calls kept of one log in all, a hundred bytes each: beyond that fewer are kept of each communicator."""

MAX_BESIDE: Final = 1000
"""Files beside traces that are looked at for counters: a hundred hosts leave a few each, and each costs a read."""

MAX_KERNEL_LOG: Final = 16 << 20
"""Largest text that is searched for errors of a GPU beside traces: kernels keep some megabytes, jobs log more."""

BESIDE_SHOWN: Final = 3
"""Files and folders beside traces that one line names."""

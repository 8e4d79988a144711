"""Remedies for an open answer: the ends of reasons, and the evidence that decides between candidates."""

from typing import Final

LONGER_RINGS: Final = "TORCH_FR_BUFFER_SIZE, in older versions TORCH_NCCL_TRACE_BUFFER_SIZE"
AGAIN: Final = "dump a second time to see whether it does"
TIMED: Final = (
    "with start times recorded (TORCH_NCCL_ENABLE_TIMING=1) the dumps would show which device never began it"
)
ADDED: Final = (
    "add the dumps of the candidates; if there are none, check whether their hosts answer, and search the logs of "
    "these hosts for the process that ended first"
)
UNTIMED: Final = (
    "; no start times were recorded (TORCH_NCCL_ENABLE_TIMING=1), so a device of another rank that never began a call "
    "would look the same"
)
STACKS: Final = f"take py-spy dumps of the candidates, or record longer rings ({LONGER_RINGS})"
NEW_GROUPS: Final = (
    "compare the new_group calls of these ranks: every rank must make all of them, including calls for groups that it "
    "is not in, in the same order and with the same members"
)
WHICH_GROUP: Final = (
    "compare the group that each side passes: without one, a call is made in that of all ranks"
)
OUTSIDE: Final = "take dumps or stacks of the other processes of that group; these dumps show none of them"

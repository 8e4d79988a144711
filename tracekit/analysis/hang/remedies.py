"""What would tell where the dumps do not: the ends of reasons, and what decides between candidates."""

from typing import Final

LONGER_RINGS: Final = "TORCH_FR_BUFFER_SIZE, in older versions TORCH_NCCL_TRACE_BUFFER_SIZE"
AGAIN: Final = "dump a second time, to see whether it does"
TIMED: Final = (
    "with start times recorded (TORCH_NCCL_ENABLE_TIMING=1) the dumps would tell which device never began it"
)
ADDED: Final = (
    "add the dumps of the candidates; where there are none, look whether their hosts answer, and in the logs of these "
    "hosts for the first that ended"
)
UNTIMED: Final = (
    "; no start times were recorded (TORCH_NCCL_ENABLE_TIMING=1), so that a device of another rank which never began a "
    "call would look the same"
)
STACKS: Final = f"take py-spy dumps of the candidates, or record longer rings ({LONGER_RINGS})"
NEW_GROUPS: Final = (
    "compare the new_group calls of these ranks: every rank must make all of them, also those for groups without it, "
    "in one order and with the same members"
)

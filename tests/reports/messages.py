"""Jobs that hang in sends and receives, as their authors' flight-recorder dumps would show them."""

from tests.reports.dumps import Writer
from tests.reports.report import MISLEADING, RIGHT, WRONG, Answer
from tests.reports.stuck import logged, seen


def swap(writer: Writer, where: str = "exchange") -> None:
    """Send to the other of two, then receive from it."""
    for sends in (True, False):
        writer.message(1 - writer.rank, 1_048_576, where, sends=sends)
        writer.sync()


def both_send(writer: Writer) -> None:
    """Two ranks exchange tensors, each with a blocking send first."""
    logged(writer)
    swap(writer)


def stages_send(writer: Writer) -> None:
    """Two pipelines of two stages with two parts each: a step behind, both stages send before they receive."""
    peer = writer.rank + 2 if writer.rank < 2 else writer.rank - 2
    writer.message(peer, 65_536, "step.first_forward", "pp", sends=writer.rank < 2)
    writer.work()
    for sends in (True, False):
        writer.message(peer, 65_536, "step.forward", "pp", sends=sends)
        writer.sync()


def told_order(answer: Answer) -> str:
    """Right where no rank is named and the order of sends is said; wrong where a rank is named."""
    if answer.ranks("culprits"):
        return WRONG
    return RIGHT if "wait first in a send" in answer.text else MISLEADING


REPORTS = [
    seen(
        "NVIDIA/nccl#479",
        "two ranks exchange tensors, each with a blocking send before its receive",
        "no rank: both send first; one must receive first, or both in one group",
        both_send,
        2,
        told_order,
        quick=True,
    ),
    seen(
        "pytorch/pytorch#172668",
        "two pipelines of two stages with two parts each; behind the first forward both stages send "
        "before they receive",
        "no rank: the stages wait for each other in their sends",
        stages_send,
        4,
        told_order,
        roles={"pp": ("mesh_pp", [(0, 2), (1, 3)])},
    ),
]

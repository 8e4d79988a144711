"""Reports with NCCL's lines of calls, fingerprints of torch's DETAIL mode, or a few watchdog lines, as pasted."""

from collections.abc import Iterable
from pathlib import Path

from tests.evidence.watchdog import Spelling, log
from tests.reports.logs import no_blame_of, pasted, waiting, written
from tests.reports.report import named

CALL = (
    "host{host}:{pid}:{pid} [{device}] NCCL INFO {kind}: opCount {number:x} sendbuff 0x7f00 recvbuff 0x7f01 "
    "count {count} datatype {dtype} op 0 root {root} comm 0x7f88e005a{rank:03x} [nranks={size}] stream 0x55f2\n"
)
PRINT = (
    "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes={}, TensorDeviceTypes="
    "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default)))"
)


def call(rank: int, number: int, kind: str, count: int, size: int, dtype: int = 7, root: int = 0) -> str:
    """A line of NCCL about one call."""
    host, device = divmod(rank, 8)
    return CALL.format(
        host=host, pid=32615 + rank, device=device, kind=kind, number=number, count=count, dtype=dtype, root=root,
        rank=rank, size=size,
    )  # fmt: skip


def other_parameters(folder: Path) -> None:
    """Rank 0 of eight broadcasts its weights first, where the others broadcast a small buffer."""
    text = call(0, 0, "Broadcast", 25_503_912, 8, 6) + call(0, 1, "Broadcast", 53, 8, 4)
    for rank in range(1, 8):
        text += call(rank, 0, "Broadcast", 53, 8, 4) + call(rank, 1, "Broadcast", 25_503_912, 8, 6)
    written(folder, text)


def uneven_shares(folder: Path) -> None:
    """The first call of four ranks reduces the rank's own share, and no two groups of ranks are a majority."""
    counts = (251, 251, 250, 250)
    written(folder, "".join(call(rank, 0, "AllReduce", count, 4, 8) for rank, count in enumerate(counts)))


def more_batches(folder: Path) -> None:
    """Rank 2 of four has twice the batches; the others have ended without a word."""
    written(folder, log({2: waiting(4, 1201, size=2_360_832)[2]}, Spelling("2.1")))


def aborted(folder: Path) -> None:
    """Rank 7 of eight times out, and the agent ends the others and reports the abort of rank 7."""
    work = "WorkNCCL(SeqNum=806, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1801027 milliseconds before timing out."
    lines = ["terminate called after throwing an instance of 'std::runtime_error'"]
    lines += [f"  what():  [Rank 7] Watchdog caught collective operation timeout: {work}"]
    lines += [
        f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {561635 + n} closing signal SIGTERM"
        for n in range(7)
    ]
    lines += [
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 7 (pid: 561642)"
    ]
    written(folder, "\n".join(lines) + "\n")


def after_validation(folder: Path) -> None:
    """The lines of rank 1 alone, in the words of torch 2.4."""
    written(folder, log({1: waiting(2, 284)[1]}, Spelling("2.4")))


def saves_alone(folder: Path) -> None:
    """Seven of eight ranks wait behind the end of an epoch; rank 0 writes a checkpoint and prints nothing of a call."""
    written(folder, log(waiting(8, 28956, late=(0,)), Spelling("2.5")))


def unlike_prints(sides: Iterable[tuple[int, str, str]], seq: int) -> str:
    """The exception of torch's DETAIL mode about two ranks."""
    (one, op, shape), (two, other, form) = sides
    first, second = PRINT.format(seq, op, shape, "BFloat16"), PRINT.format(seq, other, form, "BFloat16")
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {one} is running collective: {first}, but "
        f"Rank {two} is running collective: {second}.Collectives differ in the following aspects: \t Tensor shapes\n"
    )


def own_length(folder: Path) -> None:
    """Each of four ranks gathers a share of its own length: two exceptions name two pairs."""
    shapes = {rank: f"359, 1, {1435 + rank % 2}, 16" for rank in range(4)}
    text = unlike_prints([(1, "_ALLGATHER_BASE", shapes[1]), (2, "_ALLGATHER_BASE", shapes[2])], 0)
    written(
        folder,
        text + unlike_prints([(3, "_ALLGATHER_BASE", shapes[3]), (0, "_ALLGATHER_BASE", shapes[0])], 0),
    )


def other_keys(folder: Path) -> None:
    """Rank 1 broadcasts a size where rank 0 has come to a barrier, since they log unlike names."""
    written(folder, unlike_prints([(1, "BROADCAST", "1"), (0, "ALLREDUCE", "1")], 21))


REPORTS = [
    pasted(
        "NVIDIA/nccl#147",
        "NCCL's lines of eight ranks: rank 0 first broadcasts 25503912 halves, the others 53 integers",
        "rank 0, with both calls",
        other_parameters,
        named("culprits", (0,), "broadcast"),
        quick=True,
    ),
    pasted(
        "r-ccs-cms/sbd#69",
        "NCCL's lines of four ranks: the first call reduces 251 elements on two ranks and 250 on two",
        "open: no side is a majority",
        uneven_shares,
        no_blame_of(0, 1, 2, 3),
    ),
    pasted(
        "deepspeedai/DeepSpeed#2223",
        "the lines of rank 2 of four, which has more batches than the others, in the words of torch 2.1",
        "open: the other ranks are needed",
        more_batches,
        no_blame_of(2),
    ),
    pasted(
        "snap-research/discoscene#5",
        "the time-out of rank 7 as the text of its abort, and the agent that ends the others",
        "open: rank 7 was the first to time out, and no other rank is shown",
        aborted,
        no_blame_of(7),
    ),
    pasted(
        "Lightning-AI/litData#280",
        "the lines of rank 1 alone",
        "open: the other ranks are needed",
        after_validation,
        no_blame_of(1),
    ),
    pasted(
        "meta-pytorch/torchtune#2093",
        "the log of eight ranks: seven wait for one element, rank 0 is one call behind and times out in none",
        "rank 0",
        saves_alone,
        named("culprits", (0,)),
    ),
    pasted(
        "aurekaresearch/OpenDDE#23",
        "two exceptions of torch's DETAIL mode about four ranks: two gather 1435 rows and two 1436",
        "open: every rank's share has its own length",
        own_length,
        no_blame_of(0, 1, 2, 3),
    ),
    pasted(
        "Lightning-AI/pytorch-lightning#19106",
        "an exception of torch's DETAIL mode: rank 1 broadcasts where rank 0 reduces",
        "open: no other rank shows which call is right",
        other_keys,
        no_blame_of(0, 1),
    ),
]

"""Logs with errors of devices, networks, launchers and shapes that end or stop a job, and dumps of unlike sizes."""

from pathlib import Path

from tests.evidence.watchdog import Spelling, log
from tests.hang_shapes.calls import Collective, Message, Messages
from tests.reports.dumps import Writer
from tests.reports.endings import raised
from tests.reports.logs import Judge, pasted, waiting, written
from tests.reports.parted import names_no_rank
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.stuck import any_of, backward, logged, seen

NET = (
    "node{0}:{1}:{2} [{3}] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.3.0.{4}<39430> "
    "with status=12 opcode=129 len=0 vendor err 129 (Recv) localGid ::ffff:10.3.16.{5} remoteGid ::ffff:10.3.16.{4}\n"
)


def no_answer(folder: Path) -> None:
    """Two hosts of four ranks: cards of the first get no answer from one card of the second, and all time out."""
    text = "".join(NET.format(0, 700 + r, 900 + r, r, 61, 3) for r in (2, 3))
    written(folder, text + log(waiting(8, 515, size=4_194_304), Spelling("2.5")))


def own_memory(folder: Path) -> None:
    """All four ranks run out of memory in one gather of an evaluation, and are stuck in the end of their group."""
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total of 80 GiB"
    )
    written(folder, "".join(raised(r, error, ("histograms", 31, "gather_all_tensors")) for r in range(4)))
    for rank in range(4):
        text = (
            f"Process {90 + rank}: python train.py\nPython v3.11.9 (python3.11)\n\n"
            f'Thread {90 + rank} (idle): "MainThread"\n'
            "    destroy_process_group (torch/distributed/distributed_c10d.py:2170)\n"
            "    cleanup_distributed (train.py:61)\n    main (train.py:201)\n    <module> (train.py:230)\n"
        )
        written(folder, text * 2, f"rank_{rank}.txt")


def one_card(folder: Path) -> None:
    """All ranks of a host took the first card."""
    line = (
        "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1727, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.19.3\n[rank{0}]: ncclInvalidUsage: This usually reflects "
        "invalid usage of NCCL library.\n[rank{0}]: Last error:\n"
        "[rank{0}]: Duplicate GPU detected : rank {0} and rank {1} both on CUDA device f000\n"
    )
    head = "[rank{0}]: Traceback (most recent call last):\n"
    frame = '[rank{0}]:   File "/job/initialize.py", line 156, in _compile_dependencies\n'
    written(folder, "".join((head + frame + line).format(rank, 0 if rank else 1) for rank in range(4)))


def other_length(folder: Path) -> None:
    """A rank of another host sent fewer bytes than the receiver asked for."""
    written(
        folder,
        "10.10.23.10: node7:1367:1586 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer "
        "10.10.23.6<58683> collective mismatch error, local size 496640 remote size 65536\n"
        "10.10.23.10: node7:1367:1586 [0] NCCL INFO include/net.h:32 -> 5\n"
        "10.10.23.10: node7:1367:1586 [0] NCCL INFO proxy.cc:684 -> 5 [Proxy Thread]\n",
    )


def step_memory(folder: Path) -> None:
    """Slurm ends task 11 of 16 for memory; the ranks of the other host time out long after."""
    text = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=640423.0. Some of the tasks have been OOM Killed.\n"
        "srun: error: gpu-b12: task 11: Out Of Memory\n"
    )
    written(folder, text + log({r: waiting(16, 3077)[r] for r in range(8)}, Spelling("2.8", "srun")))


def no_store(folder: Path) -> None:
    """Agents of two hosts do not reach the store of the first."""
    line = (
        "[E socket.cpp:793] [c10d] The client socket has timed out after 60s while trying to connect to "
        "(10.0.0.1, 2222).\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed. See inner exception for details.\n"
    )
    written(folder, line * 2)


def splits(folder: Path) -> None:
    """Rank 3 of eight cuts its tokens by other numbers than it has, and raises; the others wait in the exchange."""
    error = "RuntimeError: Split sizes doesn't match total dim 0 size"
    text = raised(3, error, ("token_dispatcher", 412, "all_to_all_single"))
    written(folder, text + log(waiting(8, 88, "ALLTOALL_BASE", 65_536, silent=(3,)), Spelling("2.8")))


def lost_card(folder: Path) -> None:
    """The card of rank 2 fell off the bus: its driver says so, the rank raises, the others time out."""
    kernel = (
        "[Wed Aug 26 15:27:32 2026] node1 kernel: NVRM: GPU at PCI:0000:17:00: GPU-f114b259\n"
        "[Wed Aug 26 15:27:32 2026] node1 kernel: NVRM: Xid (PCI:0000:17:00): 79, pid=4102, GPU has fallen off the "
        "bus.\n"
    )
    error = "RuntimeError: CUDA error: unspecified launch failure"
    text = raised(2, error, ("train", 55, "backward"))
    written(folder, text + log(waiting(4, 1207, size=8_192_000, silent=(2,)), Spelling("2.4")))
    written(folder, kernel, "dmesg.txt")


def exchange(writer: Writer) -> None:
    """Tokens go to experts; in step 2 rank 2 sends 300 rows less to rank 1 than that expects."""
    group = writer.groups.get("ep", writer.rank)
    assert group is not None
    for number in range(3):
        for _ in range(2):
            sent = (4096 - (300 if writer.rank == 2 and number == 2 else 0), 512)
            writer.program.add(
                Collective(group, "all_to_all", (sent,), ((4096, 512),), "BFloat16", "dispatch", "dispatch")
            )
            writer.wait("dispatch")
            writer.work()
        logged(writer)
        writer.step_end(number)


def crossed(writer: Writer) -> None:
    """Two stages post sends and receives to both neighbours, which are one rank: gradients meet activations."""
    group = writer.groups.get("world", writer.rank)
    assert group is not None
    peer, back, forth = 1 - writer.rank, (1536, 512), (2048, 512)
    logged(writer)
    for number in range(3):
        shapes = (back, forth, forth, back) if number == 2 else (forth,) * 4
        parts = tuple(
            Message(group, sends, peer, shape)
            for sends, shape in zip((True, False, True, False), shapes, strict=True)
        )
        writer.program.add(Messages(group, parts, batched=True, where="send_forward_backward"))
        writer.work()
        writer.sync()


def other_shape(writer: Writer) -> None:
    """Rank 0 of eight reduces 409600 elements where the others reduce 32768000."""
    for number in range(3):
        backward(writer)
        writer.step_end(number)
    writer.call("all_reduce", 409_600 if writer.rank == 0 else 32_768_000, "sync_metrics", dtype="Float")
    writer.sync()


def own_order(writer: Writer) -> None:
    """Each of four ranks walks through a set of names in its own order, and broadcasts what it meets."""
    sizes = [1_048_576, 524_288, 4096, 2_097_152]
    barrier_first = [(0, 1, 2, 3), (2, 0, 3, 1), (1, 3, 0, 2), (3, 2, 1, 0)][writer.rank]
    logged(writer)
    for place in barrier_first:
        writer.call("_all_gather_base", sizes[place], "sync_bucket")
        writer.sync()


def says_of_all(*words: str) -> Judge:
    """Right where all ranks or none are named and the words are said; wrong where some are."""

    def judge(answer: Answer) -> str:
        found = answer.ranks("culprits")
        if 0 < len(found) < 4:
            return WRONG
        return RIGHT if answer.says(*words) else MISLEADING if answer.verdict == "none" else OPEN

    return judge


EP = {"ep": ("EXPERT_MODEL_PARALLEL_GROUP", [range(8)])}

REPORTS: list[Report] = [
    pasted(
        "NVIDIA/nccl#1814",
        "two hosts of four: cards of the first get no answer from one card of the second, then all eight time out",
        "no rank; the network between the hosts, with the address that did not answer",
        no_answer,
        says_of_all("10.3.0.61"),
    ),
    pasted(
        "goodfire-ai/spd#552",
        "four ranks run out of memory in a gather of an evaluation, and py-spy shows them in the end of their group",
        "memory of all ranks; no single one",
        own_memory,
        says_of_all("out of memory"),
    ),
    pasted(
        "NVIDIA/Megatron-LM#661",
        "four ranks raise: each is on the same card as rank 0",
        "that the ranks use one card",
        one_card,
        says_of_all("duplicate gpu"),
    ),
    pasted(
        "NVIDIA/nccl#969",
        "one warning of NCCL: 496640 bytes were expected of a peer and 65536 came",
        "open: ranks call with unlike sizes, the peer's address",
        other_length,
        says_of_all("collective mismatch"),
    ),
    pasted(
        "goodfire-ai/spd#537",
        "srun: task 11 of 16 was out of memory; ranks 0 to 7 time out",
        "rank 11, memory",
        step_memory,
        named("culprits", (11,), "memory"),
    ),
    pasted(
        "pytorch/pytorch#79388",
        "agents of two hosts: a client timed out while it connected to the store",
        "no rank; that nothing answers at the store's address",
        no_store,
        says_of_all("10.0.0.1"),
    ),
    pasted(
        "radixark/miles#1002",
        "rank 3 of eight raises as its splits do not add up; the others time out in the exchange",
        "rank 3, with its error",
        splits,
        named("culprits", (3,), "split sizes"),
    ),
    pasted(
        "pytorch/pytorch#43685",
        "the driver's log: a card fell off the bus; rank 2 raises a launch failure, the others time out",
        "rank 2, its device",
        lost_card,
        named("culprits", (2,), "xid 79", "fallen off"),
    ),
    seen(
        "pytorch/pytorch#194559",
        "8 ranks: in one exchange rank 2 sends 300 rows less than are expected",
        "rank 2, with both numbers",
        exchange,
        8,
        named("culprits", (2,), "1943552"),
        roles=EP,
        dead={("1", 5): None},
    ),
    seen(
        "NVIDIA/Megatron-LM#5271",
        "two stages post messages to both neighbours, which are one rank, so that gradients meet activations",
        "both ends, with both sizes: each sends a gradient where an activation is expected",
        crossed,
        2,
        any_of((0, 1), ()),
        dead={("0:0>1", 5): None},
    ),
    seen(
        "NVIDIA/nccl#1417",
        "8 ranks: rank 0 reduces 409600 elements where the others reduce 32768000",
        "rank 0, with both sizes",
        other_shape,
        8,
        named("culprits", (0,), "409600", "409,600"),
    ),
    seen(
        "RLinf/RLinf#1355",
        "4 ranks walk through a set of names, each in an order of its own, and gather what they meet",
        "no rank: all four make unlike calls",
        own_order,
        4,
        names_no_rank("sync_bucket"),
    ),
]

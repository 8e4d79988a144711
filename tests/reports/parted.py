"""Jobs that hang since ranks part, or whose dumps came only in part, as their authors' dumps would show them."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.reports.dumps import RECORDER, Writer, hung
from tests.reports.report import OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.stuck import HANG, STAGES, backward, barrier, logged, seen
from tracekit.plain_pickle import loads_plain


def overlapped(writer: Writer) -> None:
    """Tokens go to experts and back on one group; ranks 2 and 5 once send back before they send."""
    for number in range(4):
        for layer in range(3):
            order = [(65_536, "dispatch"), (98_304, "combine")]
            if writer.rank in {2, 5} and (number, layer) == (3, 1):
                order.reverse()
            for size, where in order:
                writer.call("all_to_allv", size, where, "ep", key=where)
                writer.work()
            writer.wait("dispatch")
            writer.wait("combine")
        logged(writer)
        writer.step_end(number)


def both_receive(writer: Writer) -> None:
    """Two stages: behind the first micro-batch each posts the receive of a gradient or an activation, then sends."""
    logged(writer)
    writer.message(1 - writer.rank, 65_536, "warmup", sends=writer.rank == 0)
    for sends in (False, True):
        writer.message(1 - writer.rank, 65_536, "steady", sends=sends)
    writer.sync()


def without_group(writer: Writer) -> None:
    """TP 4, PP 2: while graphs are captured, the second stage reduces in the group of all ranks by mistake."""
    second = writer.rank >= 4
    barrier(writer, "init_device")
    for _ in range(6):
        for _ in range(4):
            writer.call("all_reduce", 8192, "profile_run", "tp")
            writer.work()
        peer = writer.rank - 4 if second else writer.rank + 4
        writer.message(peer, 8192, "profile_run", "pp", sends=not second)
    writer.sync()
    for _ in range(5):
        for _ in range(4):
            writer.call("all_reduce", 8192, "capture_model", "world" if second else "tp")
            writer.work()
        writer.sync()


def file_unseen(writer: Writer) -> None:
    """Rank 2 does not see the checkpoint's file yet and skips both broadcasts of the object."""
    writer.call("all_reduce", 1, "load.begin", dtype="Byte")
    writer.sync()
    if writer.rank != 2:
        writer.call("broadcast", 1, "load.broadcast_object_list", dtype="Long")
        writer.sync()
        writer.call("broadcast", 4_381, "load.broadcast_object_list", dtype="Byte")
        writer.sync()
    for number in range(3):
        for layer in range(2):
            writer.call("_all_gather_base", 524_288 + layer, "forward")
            writer.work()
        writer.step_end(number)


def saves_alone(writer: Writer) -> None:
    """FSDP: rank 0 alone gathers the state for a checkpoint, while the others begin the next forward pass."""
    for number in range(4):
        for _ in range(3):
            writer.call("_all_gather_base", 1_048_576, "forward")
            writer.work()
        for _ in range(3):
            writer.call("_all_gather_base", 1_048_576, "backward")
            writer.work()
            writer.call("_reduce_scatter_base", 8_388_608, "backward")
        logged(writer)
        if number == 2 and writer.rank == 0:
            for _ in range(3):
                writer.call("_all_gather_base", 1_048_576, "save.state_dict")
            writer.sync()
        writer.step_end(number)


def unmatched_send(writer: Writer) -> None:
    """Rank 0 sends a message that rank 1 never asks for; both then meet in a barrier."""
    logged(writer)
    if writer.rank == 0:
        writer.message(1, 1_048_576, "send_extra", sends=True)
    writer.work()
    barrier(writer, "end")


def updates_engine(writer: Writer) -> None:
    """ZeRO-3: each weight is gathered by all trainers, then rank 0 broadcasts it to the engines' workers."""
    if writer.rank >= 4:
        for _ in range(7):
            writer.call("broadcast", 8_388_608, "receive_weights", "update")
            writer.sync()
        writer.stop()
    for number in range(3):
        for layer in range(3):
            writer.call("_all_gather_base", 2_097_152 + layer, "forward", "trainers")
            writer.work()
        writer.call("_reduce_scatter_base", 4_194_304, "backward", "trainers")
        writer.sync()
        for layer in range(3):
            writer.call("_all_gather_base", 2_097_152 + layer, "update_weights", "trainers")
            writer.sync()
            writer.call("broadcast", 8_388_608, "broadcast_to_engine", "update")
            writer.sync()
        writer.step_end(number)


def engine(ranks: str, folder: Path) -> None:
    """The dumps of the four trainers, a job of their own; the group with the engines has this list of members."""
    roles = {"trainers": ("default_pg", [tuple(range(4))]), "update": ("", [(0, 4, 5)])}
    hung(folder, 6, updates_engine, roles, gone=(4, 5))
    for path in folder.iterdir():
        dump = loads_plain(path.read_bytes())
        dump["pg_config"] = {name: config for name, config in dump["pg_config"].items() if name != "0"}
        for config in dump["pg_config"].values():
            if config["ranks"] == "[0, 4, 5]":
                config["ranks"] = ranks
        path.write_bytes(pickle.dumps(dump, protocol=2))


def busy_interpreter(writer: Writer) -> None:
    """Rank 2 is stuck in code that holds the interpreter's lock, in the middle of a step."""
    for number in range(4):
        if writer.rank == 2 and number == 3:
            writer.stop()
        backward(writer)
        logged(writer)
        writer.step_end(number)


def reasons(folder: Path) -> None:
    """JSON dumps that a controller asked for; for the rank that did not answer it wrote the reason."""
    hung(folder, 4, busy_interpreter, recorder=replace(RECORDER, json=True, version=(2, 10)), gone=(2,))
    (folder / "nccl_trace_rank_2.json").write_text(
        json.dumps({"ok": False, "reason": "timed out after 30 s"})
    )


def emptied(folder: Path) -> None:
    """Rank 2's dump was opened and never written."""
    hung(folder, 4, busy_interpreter, gone=(2,))
    (folder / "nccl_trace_rank_2").write_bytes(b"")


def one_host(folder: Path) -> None:
    """Two hosts of 8 (TP 8, DP 2): the dumps of the first host alone; rank 11 of the second has stopped."""

    def program(writer: Writer) -> None:
        for number in range(4):
            for layer in range(3):
                if writer.rank == 11 and (number, layer) == (3, 1):
                    writer.stop()
                writer.call("all_reduce", 4_194_304, "mlp.forward", "tp")
                writer.work()
            writer.call("all_reduce", 8_388_608, "backward", "dp")
            writer.step_end(number)

    roles = {
        "tp": ("TENSOR_MODEL_PARALLEL_GROUP", [range(8), range(8, 16)]),
        "dp": ("DATA_PARALLEL_GROUP", [(r, r + 8) for r in range(8)]),
    }
    hung(folder, 16, program, roles, gone=tuple(range(8, 16)))  # type: ignore[arg-type]


def names_no_rank(*words: str) -> Callable[[Answer], str]:
    """Right where no rank is named and one of the words is said; open where none is said; wrong where one is named."""

    def judge(answer: Answer) -> str:
        if answer.ranks("culprits") or answer.verdict == "none":
            return WRONG
        return RIGHT if answer.says(*words) else OPEN

    return judge


def made(
    source: str,
    input_: str,
    expected: str,
    make: Callable[[Path], None],
    judge: Callable[[Answer], str],
    *,
    quick: bool = False,
) -> Report:
    """A report whose folder of dumps is made in a way of its own."""
    return Report(source, "stuck", input_, expected, make, HANG, judge, quick)


EXPERTS = {"ep": ("EXPERT_MODEL_PARALLEL_GROUP", [tuple(range(8))])}

REPORTS: list[Report] = [
    seen(
        "NVIDIA/Megatron-LM#1810",
        "8 ranks send tokens to experts and back on one group; ranks 2 and 5 once send back before they send",
        "ranks 2 and 5, with both calls",
        overlapped,
        8,
        named("culprits", (2, 5), "combine"),
        roles=EXPERTS,
        dead={("1", 21): None},
    ),
    seen(
        "pytorch/pytorch#109401",
        "two stages that both post a receive before their send",
        "no rank: both receive first",
        both_receive,
        2,
        names_no_rank("wait first in a receive"),
    ),
    seen(
        "flagos-ai/vllm-plugin-FL#348",
        "TP 4, PP 2: the second stage captures graphs with reductions in the group of all ranks, not in its own",
        "no rank of the first stage; that one place of the program calls two groups",
        without_group,
        8,
        names_no_rank("wrong group"),
        roles=STAGES,
        quick=True,
    ),
    seen(
        "KempnerInstitute/KempnerForge#50",
        "4 ranks load a checkpoint; rank 2 does not see its file and skips the two broadcasts of an object",
        "rank 2, which gathers where the others broadcast",
        file_unseen,
        4,
        named("culprits", (2,), "broadcast"),
    ),
    seen(
        "pytorch/pytorch#143536",
        "FSDP on 4 ranks; rank 0 alone gathers the state for a checkpoint, in calls like those of a forward pass",
        "rank 0, with the place of its calls",
        saves_alone,
        4,
        named("culprits", (0,), "state_dict"),
    ),
    seen(
        "pytorch/pytorch#108378",
        "two ranks: rank 0 sends a message that rank 1 never receives, then both meet in a barrier",
        "no rank; the send without a receive",
        unmatched_send,
        2,
        names_no_rank("has not joined a message"),
    ),
    made(
        "allenai/open-instruct#536",
        "the dumps of 4 trainers; rank 0 sends weights to engines, in a group that its dump numbers from 0",
        "no trainer; the call in which rank 0 waits for processes of another job",
        partial(engine, "[0, 1, 2]"),
        names_no_rank("another job"),
        quick=True,
    ),
    made(
        "OpenRLHF/OpenRLHF#265",
        "the same where the dump numbers the engines' processes behind the trainers",
        "no trainer; the ranks without a dump",
        partial(engine, "[0, 4, 5]"),
        names_no_rank("one of ranks 4, 5"),
    ),
    made(
        "ray-project/ray#66203",
        "JSON dumps of 4 ranks that a controller collected; for rank 2, which does not answer, it wrote the reason",
        "rank 2",
        reasons,
        named("culprits", (2,)),
    ),
    made(
        "pytorch/pytorch#167023",
        "dumps of 4 ranks; rank 2 holds the interpreter's lock, and its file is empty",
        "rank 2",
        emptied,
        named("culprits", (2,)),
    ),
    made(
        "pytorch/pytorch#140879",
        "two hosts of 8 ranks (TP 8, DP 2), the dumps of the first alone; rank 11 of the second has stopped",
        "open: the dumps of the second host are needed",
        one_host,
        names_no_rank("ranks 8-15"),
    ),
]

"""Jobs that hang, as their authors' flight-recorder dumps would show them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.reports.dumps import Writer, hung, timed
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, accuses_none, named

BUCKETS = (4_718_592, 2_359_296, 38_400)
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]


def backward(writer: Writer, *, buckets: tuple[int, ...] = BUCKETS) -> None:
    """DDP's backward pass."""
    for place, size in enumerate(buckets):
        writer.work()
        writer.call("all_reduce", size, "backward", dtype="Float", key=f"bucket{place}")
    for place in range(len(buckets)):
        writer.wait(f"bucket{place}")


def logged(writer: Writer, where: str = "log_loss") -> None:
    """The mean loss, which the host reads."""
    writer.call("all_reduce", 1, where, dtype="Float")
    writer.sync()


def barrier(writer: Writer, where: str) -> None:
    """A barrier as NCCL records it."""
    writer.call("all_reduce", 1, where, dtype="Byte")
    writer.sync()


def uneven(writer: Writer) -> None:
    """The last rank's share of the data is one batch shorter; it waits in the barrier behind the epoch."""
    for number in range(6 if writer.rank == 3 else 7):
        backward(writer)
        writer.step_end(number)
    writer.sync()
    barrier(writer, "end_of_epoch")


def uneven_and_gone(writer: Writer) -> None:
    """A rank with fewer batches leaves the program."""
    for number in range(6 if writer.rank == 2 else 8):
        backward(writer)
        logged(writer)
        writer.step_end(number)


def text_only(without: tuple[int, ...], writer: Writer) -> None:
    """ZeRO-3: ranks whose batch holds no image gather no part of the vision tower in step 3."""
    for number in range(4):
        sees = writer.rank not in without or number < 3
        for size in (1_048_576, 786_432) if sees else ():
            writer.call("_all_gather_base", size, "vision_tower.forward")
            writer.work()
        for layer in range(3):
            writer.call("_all_gather_base", 2_097_152 + 256 * layer, "language_model.forward")
            writer.work()
        for _ in range(3):
            writer.call("_reduce_scatter_base", 2_097_152, "backward")
        logged(writer)
        writer.step_end(number)


def generates(writer: Writer) -> None:
    """ZeRO-3 rollout: rank 1 ends its sequence at token 4 and begins the teacher's forward; the others go on."""
    for number in range(2):
        tokens = 4 if writer.rank == 1 and number else 9
        for _ in range(tokens):
            for layer in range(2):
                writer.call("_all_gather_base", 1_835_008 + 512 * layer, "student.generate")
                writer.work()
        for layer in range(2):
            writer.call("_all_gather_base", 9_437_184 + 512 * layer, "teacher.forward")
        logged(writer)
        writer.step_end(number)


def preprocessing(firsts: tuple[int, ...], writer: Writer) -> None:
    """The first rank of each host maps the data set, all others wait in the job's first barrier."""
    if writer.rank in firsts:
        writer.stop()
    barrier(writer, "main_process_first")


def out_of_memory(writer: Writer) -> None:
    """Rank 1 catches an out-of-memory error in its forward pass and goes on with the next batch."""
    for number in range(5):
        writer.call("broadcast", 25_600, "sync_buffers", dtype="Float")
        writer.work()
        if writer.rank == 1 and number == 3:
            continue
        backward(writer)
        writer.step_end(number)


def skipped(writer: Writer) -> None:
    """Rank 2 skips the backward pass of a batch that has nothing to learn from; its later calls pair one step late."""
    for number in range(6):
        if not (writer.rank == 2 and number == 3):
            backward(writer)
        writer.step_end(number)
    writer.sync()
    writer.stop()


def first_stage(writer: Writer) -> None:
    """TP 4, PP 2: all ranks of the first stage run out of memory behind micro-batch 5 and wait in their cleanup."""
    first = writer.rank < 4
    for number in range(8):
        if first and number == 5:
            writer.stop()
        for _ in range(2):
            writer.call("all_reduce", 8192, "mlp.forward", "tp")
            writer.work()
        peer = writer.rank + 4 if first else writer.rank - 4
        writer.message(peer, 8192, "send_forward" if first else "recv_forward", "pp", sends=first)


def order_of_groups(writer: Writer) -> None:
    """Two groups of all ranks: ranks 6 and 7 call the second one first, and all hosts wait for their own call."""
    for number in range(3):
        calls: list[Callable[[], None]] = [
            partial(writer.call, "all_to_all", 65_536, "embedding_exchange", "shard"),
            partial(writer.call, "all_reduce", 4096, "replicate_sum", "replicate"),
        ]
        if writer.rank >= 6 and number == 2:
            calls.reverse()
        for call in calls:
            call()
            writer.sync()
        writer.step_end(number)


def two_waits(writer: Writer) -> None:
    """Two ranks, each in another group's call: one gathers logits, the other waits for the next request."""
    for number in range(6):
        writer.call("broadcast", 64, "recv_requests", "cpu", dtype="Long")
        writer.sync()
        if writer.rank == 1 or number != 4:
            writer.call("_all_gather_base", 151_936, "logits_processor", "tp")
            writer.sync()


def dead_link(writer: Writer) -> None:
    """All ranks make the same calls; one reduce-scatter of one group never ends anywhere."""
    for number in range(4):
        for layer in range(2):
            writer.call("_all_gather_base", 524_288 + layer, "unshard", "dp")
            writer.work()
        writer.call("_reduce_scatter_base", 1_048_576, "finish_grad_sync", "dp")
        logged(writer)
        writer.step_end(number)


def buffers(writer: Writer) -> None:
    """Rank 0 walks through the buffers in another order than the ranks that it sends them to."""
    sizes = [256, 512, 256, 1024]
    for size in [512, 256, 256, 1024] if writer.rank == 0 else sizes:
        writer.call("broadcast", size, "load_full_state_dict", dtype="Float")
        writer.sync()


def experts(writer: Writer) -> None:
    """ZeRO-3 gathers only the experts that a rank's tokens chose: each rank makes another number of equal calls."""
    chosen = (5, 4, 6, 3)
    for number in range(3):
        for layer in range(2):
            writer.call("_all_gather_base", 3_145_728, "attention.forward")
            for _ in range(4 if number < 2 else chosen[(writer.rank + layer) % 4]):
                writer.call("_all_gather_base", 1_572_864, "experts.forward")
                writer.work()
        writer.sync()
        logged(writer)
        writer.step_end(number)


def metrics(writer: Writer) -> None:
    """Rank 3 alone saw a class in its validation batches and reduces one metric more than the others."""
    for number in range(3):
        backward(writer)
        writer.step_end(number)
    writer.sync()
    for name in ("val_loss", "val_accuracy"):
        logged(writer, f"log_{name}")
    if writer.rank == 3:
        logged(writer, "log_val_recall_of_class_7")
    for number in range(3, 5):
        backward(writer)
        writer.step_end(number)


def stuck_interpreter(writer: Writer) -> None:
    """Rank 7 stops in the middle of a backward pass."""
    for number in range(4):
        for layer in range(3):
            writer.call("_all_gather_base", 2_048_000 + layer, "fetch_sub_module")
            writer.work()
        if writer.rank == 7 and number == 3:
            writer.stop()
        writer.call("_reduce_scatter_base", 4_096_000, "reduce_ready_partitions")
        logged(writer)
        writer.step_end(number)


def any_of(*allowed: tuple[int, ...]) -> Callable[[Answer], str]:
    """Right where one of these sets is named; open where nobody is."""

    def judge(answer: Answer) -> str:
        found = answer.ranks("culprits")
        if found:
            return RIGHT if found in allowed else WRONG
        return MISLEADING if answer.verdict == "none" else OPEN

    return judge


def shows_calls(*calls: str) -> Callable[[Answer], str]:
    """Right where nobody is named and the text shows each of these calls; open where it lacks one."""

    def judge(answer: Answer) -> str:
        if answer.ranks("culprits"):
            return WRONG
        return RIGHT if all(call in answer.text for call in calls) else OPEN

    return judge


def kinds_of(kind: str) -> Callable[[Answer], str]:
    """Right where culprits are of this kind alone, or where nobody is named."""

    def judge(answer: Answer) -> str:
        culprits = answer.document.get("culprits") or []
        assert isinstance(culprits, list)
        return RIGHT if {row["kind"] for row in culprits} <= {kind} else MISLEADING

    return judge


def same_name(folder: Path) -> None:
    """Ranks 0 and 3 make one group, ranks 1 and 2 another, each with a single `new_group`: both bear one name."""

    def program(writer: Writer) -> None:
        barrier(writer, "setup")
        writer.call("all_reduce", 1, "barrier", "pair", dtype="Byte")
        writer.sync()
        writer.call("all_reduce", 4096, "train", "pair", dtype="Float")
        writer.sync()

    roles = {"pair": ("undefined", [(0, 3), (1, 2)])}
    hung(folder, 4, program, roles, dead={("2", 0): None})
    for path in folder.iterdir():
        data = path.read_bytes()
        path.write_bytes(data.replace(b"X\x01\x00\x00\x002", b"X\x01\x00\x00\x001"))


HANG = ("tracekit", "hang", "{}")
DATA_GROUP = {"dp": ("DATA_PARALLEL_GROUP", [(0, 1, 2, 3), (4, 5, 6, 7)])}
STAGES = {
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP", [(0, 1, 2, 3), (4, 5, 6, 7)]),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP", [(0, 4), (1, 5), (2, 6), (3, 7)]),
}
EVERYBODY = tuple(range(8))
TWICE = {"shard": ("mesh_shard", [EVERYBODY]), "replicate": ("mesh_replicate", [EVERYBODY])}
ENGINE = {"tp": ("tp", [(0, 1)]), "cpu": ("cpu_group", [(0, 1)])}


def seen(
    source: str,
    input_: str,
    expected: str,
    program: Callable[[Writer], None],
    world: int,
    judge: Callable[[Answer], str],
    *,
    quick: bool = False,
    **more: object,
) -> Report:
    """A report whose dumps a program makes."""

    def make(folder: Path) -> None:
        hung(folder, world, program, **more)  # type: ignore[arg-type]

    return Report(source, "stuck", input_, expected, make, HANG, judge, quick)


REPORTS = [
    seen(
        "k2-fsa/snowfall#152",
        "DDP on 4 ranks, rank 3 has one batch fewer and waits in the barrier behind the epoch",
        "rank 3, which called the barrier where the others reduce a bucket",
        uneven,
        4,
        named("culprits", (3,)),
        quick=True,
    ),
    seen(
        "Lightning-AI/pytorch-lightning#20404",
        "DDP on 4 ranks, rank 2 ran out of data and has exited; no dump of it",
        "rank 2, without a dump",
        uneven_and_gone,
        4,
        named("culprits", (2,)),
        gone=(2,),
    ),
    seen(
        "deepspeedai/DeepSpeed#7170",
        "ZeRO-3 on 8 ranks; in step 3 ranks 1, 4, 6 and 7 got no image and skip the vision tower",
        "the four that left out what all called in the steps before, or both halves with their calls",
        partial(text_only, (1, 4, 6, 7)),
        8,
        any_of((1, 4, 6, 7)),
    ),
    seen(
        "modelscope/ms-swift#9639",
        "ZeRO-3 on 8 ranks; the batch of rank 5 alone holds no image",
        "rank 5",
        partial(text_only, (5,)),
        8,
        named("culprits", (5,)),
    ),
    seen(
        "deepspeedai/DeepSpeed#8262",
        "ZeRO-3 rollout on 4 ranks, rank 1 ends its sequence early and calls the next model's gather",
        "rank 1, with both calls",
        generates,
        4,
        named("culprits", (1,), "teacher"),
        quick=True,
    ),
    seen(
        "axolotl-ai-cloud/axolotl#921",
        "8 ranks, rank 0 prepares the data and has called nothing, all others wait in the first barrier",
        "rank 0",
        partial(preprocessing, (0,)),
        8,
        named("culprits", (0,)),
    ),
    seen(
        "hiyouga/LlamaFactory#360",
        "two hosts of 8 ranks, the first rank of each (0 and 8) prepares the data",
        "ranks 0 and 8",
        partial(preprocessing, (0, 8)),
        16,
        named("culprits", (0, 8)),
    ),
    seen(
        "mosaicml/composer#2117",
        "DDP on 4 ranks, rank 1 runs out of memory in the forward pass and goes on with its next batch",
        "rank 1, which broadcasts buffers where the others reduce",
        out_of_memory,
        4,
        named("culprits", (1,)),
        quick=True,
    ),
    seen(
        "NVIDIA-NeMo/Automodel#2468",
        "DDP on 4 ranks, rank 2 skips one backward pass; its later calls pair one step late and it ends first",
        "rank 2, three calls short",
        skipped,
        4,
        named("culprits", (2,)),
    ),
    seen(
        "NVIDIA-NeMo/Megatron-Bridge#5283",
        "TP 4, PP 2: ranks 0 to 3 stop behind micro-batch 5, the second stage waits in its receives",
        "ranks 0 to 3, as one stage",
        first_stage,
        8,
        named("culprits", (0, 1, 2, 3)),
        roles=STAGES,
    ),
    seen(
        "meta-pytorch/torchrec#4149",
        "8 ranks in two groups; ranks 6 and 7 call the second group first, each host waits for its own call",
        "ranks 6 and 7, in another order",
        order_of_groups,
        8,
        named("culprits", (6, 7)),
        roles=TWICE,
    ),
    seen(
        "sgl-project/sglang#33289",
        "two ranks: rank 1 gathers logits in one group, rank 0 waits for a request in another",
        "open: the dumps do not show which of the two decided wrongly; both calls are shown",
        two_waits,
        2,
        shows_calls("broadcast", "all_gather"),
        roles=ENGINE,
    ),
    seen(
        "NVIDIA/nccl#1111",
        "8 ranks in two data-parallel groups; all of ranks 4 to 7 have called a reduce-scatter that ended nowhere",
        "no rank: the call of group 4 to 7 itself, a link or the library",
        dead_link,
        8,
        accuses_none("culprits"),
        roles=DATA_GROUP,
        dead={("2", 8): None},
    ),
    seen(
        "ROCm/rccl#2191",
        "the same with start times: all four have begun it",
        "no rank: begun by all members, ended by none",
        dead_link,
        8,
        accuses_none("culprits"),
        roles=DATA_GROUP,
        dead={("2", 8): None},
        recorder=timed(),
    ),
    seen(
        "verl-project/verl#6365",
        "rank 0 broadcasts buffers in another order than the other three expect them",
        "rank 0, with both sizes",
        buffers,
        4,
        named("culprits", (0,), "512"),
    ),
    seen(
        "deepspeedai/DeepSpeed#5008",
        "ZeRO-3 on 4 ranks, each gathers only the experts that its tokens chose: 9, 10, 9 and 8 gathers of equal size",
        "rank 3 made another call than the rest (a mismatch), or open; no host stalls",
        experts,
        4,
        kinds_of("mismatched_call"),
    ),
    seen(
        "Lightning-AI/pytorch-lightning#7129",
        "DDP on 4 ranks, rank 3 logs one more metric than the others",
        "rank 3: its call has no partner from the same place",
        metrics,
        4,
        named("culprits", (3,)),
    ),
    Report(
        "pytorch/pytorch#130102",
        "stuck",
        "4 ranks, two `new_group` calls that differ between ranks: [0, 3] and [1, 2] bear one name; 1 and 2 hang",
        "no rank of the other group; that the two groups share a name",
        same_name,
        HANG,
        accuses_none("culprits", "new_group", "one name", "same name"),
    ),
    seen(
        "snowflakedb/ArcticTraining#219",
        "ZeRO-3 on 8 ranks; the watchdog of rank 7 cannot get the interpreter's lock, so that it leaves no dump",
        "rank 7",
        stuck_interpreter,
        8,
        named("culprits", (7,)),
        gone=(7,),
    ),
    seen(
        "hiyouga/LlamaFactory#7396",
        "DDP on 8 ranks, all wait in one all-reduce; the dump of rank 0 alone was kept",
        "open: the dumps of the other ranks are needed",
        dead_link,
        8,
        accuses_none("culprits", "dump"),
        roles=DATA_GROUP,
        dead={("1", 8): None},
        gone=tuple(range(1, 8)),
    ),
]

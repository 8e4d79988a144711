"""The causes of slowness as data: the name, deciding test, evidence and remedy of each.

The analysis, the report and docs/method.md read this table. To add a cause, add an entry here and its name to
`findings.Cause`, and run the tests: they compare the table with the contract and with the documentation.
"""

from collections.abc import Mapping
from typing import Final

from tracekit.cause_entry import CauseEntry, Order, Row, Sign
from tracekit.mechanisms import MORE_WORK, OF_DEVICE, OF_HOST, MechanismEntry
from tracekit.thresholds.slowrank import KERNELS_SHOWN, MAJORITY

GPU_COMPUTE: Final = "gpu_compute"
CPU_LAUNCH: Final = "cpu_launch"
CPU_CONTENTION: Final = "cpu_contention"
HOST_STALL: Final = "host_stall"
DATALOADER: Final = "dataloader"
MEMORY: Final = "memory"
NETWORK: Final = "network"
DATA_IMBALANCE: Final = "data_imbalance"
STAGE_IMBALANCE: Final = "stage_imbalance"

LONGEST_GAP: Final = "longest gap"
"""Name of the row of evidence that distinguishes pauses from slow launches."""

_LONGEST = (Row(LONGEST_GAP, "longest_gap"),)

_ENTRIES = (
    CauseEntry(
        DATALOADER,
        "it waits for its data loader",
        "compute or gaps longer while spans of the loader are as long as on peers",
        "look at storage and loader workers of that rank",
        (
            Sign(
                Order.NAMED_SPANS,
                "at least half of the excess is gaps, and as much is data loading",
                lambda rank: rank.explains("loader") and rank.explains("gap"),
                (Row("data loading a step", "loader"),),
                "loader",
            ),
        ),
        counters=("io waits",),
        on_host=True,
        next_for_all="give every rank more loader workers and batches ahead, keep the workers over epochs "
        "(persistent_workers=True), and look at the storage that all ranks read",
    ),
    CauseEntry(
        CPU_CONTENTION,
        "its process shares its cores, and waits for its turn",
        "the shortest operators of each name longer as well, pauses with long runs between them, or ends of pauses at "
        "one phase of a period of 100 ms",
        "find what else runs on that host's cores (pidstat -wu -t 1 shows %wait), and pin the processes apart or "
        "give this one a better priority",
        (
            Sign(
                Order.COMPUTE,
                "on a CPU, operators far shorter than a time slice of the scheduler take longer by at least half of "
                "the share by which own time does, not by attention, and the shortest ones of their names by less "
                "than half of that; one is interrupted for every two time slices of such work or sooner; compute is "
                "longer than the peers'",
                lambda rank: rank.shares_cores and not rank.on_gpu,
                (
                    Row("operators far shorter than a time slice a step", "short"),
                    Row("the same if each took the shortest of its name", "quickest"),
                ),
                "turns",
            ),
            Sign(
                Order.COMPUTE,
                "on a GPU, at least half of the excess is gaps, and operators of the host are interrupted in the same "
                "way, three times a step or more",
                lambda rank: rank.shares_cores and rank.on_gpu,
                (
                    Row("operators of the host far shorter than a time slice a step", "short"),
                    Row("the same if each took the shortest of its name", "quickest"),
                ),
                "turns",
            ),
        ),
        counters=("cpu waits", "steal"),
        on_host=True,
        holds_threads=True,
        quantity="own",
    ),
    CauseEntry(
        HOST_STALL,
        "its process pauses",
        "gaps as short as the peers' longest, a host that needs longer for every launch, or all operators longer alike",
        "look for garbage collection, checkpointing, logging or swapping on that host, and for a stopped process",
        (
            Sign(
                Order.NAMED_SPANS,
                "at least half of the excess is gaps, and as much is garbage collection",
                lambda rank: rank.explains("collector") and rank.explains("gap"),
                (Row("garbage collection a step", "collector"),),
                "collector",
            ),
            Sign(
                Order.COMPUTE,
                "on a CPU, at least half of the excess is compute, not attention, and the medians of its operators "
                "exceed the peers' by less than half as much: the process was stopped within some of them",
                lambda rank: rank.explains("busy") and rank.stopped > MAJORITY,
                (Row("operators a step, longer as the medians of their names are", "typical"),),
                "stops",
            ),
            Sign(
                Order.SHAPE_OF_GAPS,
                "at least half of the excess is gaps, half of that in a few gaps or in gaps beyond a time slice, and "
                "the host launches as fast as its peers; on a CPU also if these gaps and stops within operators are "
                "half of the excess together",
                lambda rank: rank.stands_still,
                _LONGEST,
                "pauses",
            ),
        ),
        counters=("cpu waits", "steal", "memory waits", "io waits"),
        on_host=True,
        holds_threads=True,
        next_for_all="collect garbage on all ranks in the same steps (gc.disable(), and gc.collect() every few hundred "
        "steps), and look for checkpointing, logging or swapping on their hosts",
        mechanisms=OF_HOST,
    ),
    CauseEntry(
        MEMORY,
        "it spends its time allocating memory",
        "gaps that no call of the allocator fills",
        "look at allocator retries and fragmentation on that rank",
        (
            Sign(
                Order.NAMED_SPANS,
                "at least half of the excess is gaps, and as much is calls that allocate memory",
                lambda rank: rank.explains("allocator") and rank.explains("gap"),
                (Row("memory allocation calls a step", "allocator"),),
                "allocator",
            ),
        ),
        next_for_all="leave all ranks more free memory (fewer tokens a step, or expandable_segments:True in "
        "PYTORCH_CUDA_ALLOC_CONF), and look at allocator retries",
    ),
    CauseEntry(
        "host_copies",
        "its copies between device and host take longer than its peers'",
        "copies as long as on peers, or larger than theirs",
        "look at the PCIe link of that device (lspci -vv: width, speed, replays), NUMA binding and page-locked memory",
        (
            Sign(
                Order.COMPUTE,
                "at least half of the excess is compute, and as much is copies between device and host",
                lambda rank: rank.explains("copies") and rank.explains("busy"),
                (Row("copies between device and host a step", "copies"),),
                "copies",
            ),
        ),
        counters=("pcie",),
        quantity="busy",
        next_on_cpu="look for other load on that host's memory",
    ),
    CauseEntry(
        NETWORK,
        "its transfers are slow",
        "transfers as long as the peers' once all members have arrived: then the ranks only wait",
        "check cables, link counters and the NIC between these ranks",
        (
            Sign(
                Order.VERDICT,
                "transfers take longer than their peers' although all members arrived in time",
                "analysis.slowrank.hypotheses.slow_link:slow_link",
                (Row("transfer of one message, all members present"),),
            ),
            Sign(
                Order.COMPUTE,
                "at least half of the excess is compute, and as much is copies between devices",
                lambda rank: rank.explains("peer_copies") and rank.explains("busy"),
                (Row("copies between devices a step", "peer_copies"),),
                "peer_copies",
            ),
        ),
        counters=("links",),
        quantity="busy",
    ),
    CauseEntry(
        GPU_COMPUTE,
        "its compute takes longer than its peers'",
        "kernels as long as on peers, with longer gaps between them",
        "check clocks, temperature and ECC of that device; run a matrix product on it alone",
        (
            Sign(
                Order.COMPUTE,
                "at least half of the excess is compute",
                lambda rank: rank.explains("busy"),
                (
                    Row("matrix products on the {device} a step", "matmul", KERNELS_SHOWN),
                    Row("attention on the {device} a step", "attention", KERNELS_SHOWN),
                ),
                "compute",
            ),
        ),
        counters=("device",),
        next_for_all="look for what moves between the ranks: clocks and heat of all devices, other load on their hosts",
        quantity="busy",
        mechanisms=OF_DEVICE,
        next_on_cpu="look for other processes on that host's cores, a lower clock and a CPU quota; "
        "run a matrix product on it alone",
    ),
    CauseEntry(
        CPU_LAUNCH,
        "its host launches work too slowly",
        "launches as close together as on peers' hosts, or a device that always has work queued",
        "profile that host's Python process; look for other load, a slow CPU governor or a debug build",
        (
            Sign(
                Order.SHAPE_OF_GAPS,
                "at least half of the excess is gaps, most of them in many short ones",
                lambda rank: rank.explains("gap"),
                _LONGEST,
                "launches",
            ),
            Sign(
                Order.VERDICT,
                "its host takes longer between launches, and the step would be shorter if it launched as its peers do",
                "analysis.slowrank.hypotheses.slow_launch:slow_launch",
                (Row("time between two launches of the host"),),
            ),
        ),
        counters=("cpu waits", "steal"),
        on_host=True,
        needs_slow_host=True,
        mechanisms=(MORE_WORK,),
    ),
    CauseEntry(
        DATA_IMBALANCE,
        "work depends on the data and is distributed unevenly",
        "the same rank longer in every step, also in kernels with work that does not depend on the data",
        "balance documents by attention cost, images and replies by number, and the choice of experts by tokens",
        (
            Sign(
                Order.VERDICT,
                "the longest rank changes from step to step, and attention varies more, or products run more often",
                "analysis.slowrank.hypotheses.data_imbalance:uneven_data",
            ),
            Sign(
                Order.VERDICT,
                "kernels vary together on all ranks that work on the same data",
                "analysis.slowrank.hypotheses.data_imbalance:dealt_price",
            ),
            Sign(
                Order.VERDICT,
                "the work after all-to-alls follows the number of elements that they delivered",
                "analysis.slowrank.hypotheses.data_imbalance:uneven_tokens",
            ),
        ),
    ),
    CauseEntry(
        STAGE_IMBALANCE,
        "its pipeline stage has more work than the others",
        "one rank of the stage longer than the others of it",
        "move a layer from this stage to another",
        (
            Sign(
                Order.VERDICT,
                "all ranks of one pipeline stage work longer than the other stages",
                "analysis.slowrank.hypotheses.long_stage:long_stage",
                (Row("own time of stage {stage} a step"),),
            ),
        ),
    ),
    CauseEntry(
        "unknown",
        "the recording does not show why",
        "a sign of any other cause",
        "compare its time line with a peer's: tracekit open TRACES",
        (),
        quantity="own",
    ),
)

CAUSES: Final[Mapping[str, CauseEntry]] = {entry.name: entry for entry in _ENTRIES}
"""Every cause by name, in the order in which signs of equal order are looked for."""

MECHANISMS: Final[Mapping[str, MechanismEntry]] = {m.name: m for entry in _ENTRIES for m in entry.mechanisms}
"""Every mechanism by name."""

SIGNS: Final = tuple(
    sorted(
        ((entry, sign) for entry in _ENTRIES for sign in entry.signs if sign.order < Order.VERDICT),
        key=lambda pair: pair[1].order,
    )
)
"""(cause, sign) that decide why one rank is slow, in the order in which they are looked for: the first that holds."""

BY_SPANS: Final = tuple(
    (entry.name, sign.part)
    for entry, sign in SIGNS
    if sign.order == Order.NAMED_SPANS and sign.part is not None
)
"""Causes that spans of the host show by name, each with the part of a rank's time that these spans are."""

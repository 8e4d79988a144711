"""Writes a job's ranks into a folder, as profilers of that version would."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.localise.builder import AXES
from tests.localise.calls import Collective, Messages, Pause
from tests.localise.engine import Machine, Place
from tests.localise.forms import Forms, Group
from tests.localise.job import Job
from tests.localise.kineto import BASE_NS, Clock, Recording, Writer

FIRST_STEP = 10
GAP_STEPS = 38
"""Steps between two captures that nobody recorded."""
NVIDIA, AMD = "NVIDIA H100 PCIe", "AMD Instinct MI300X"
"""Cards without NVLink: transfers here last parts of a layer, however many bytes they hold, as no NVLink does."""
MEGATRON = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "dpcp": "DATA_PARALLEL_GROUP_WITH_CP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "mp": "MODEL_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "world": "default_pg",
}
TITAN = {
    "tp": "mesh_tp",
    "pp": "mesh_pp",
    "cp": "mesh_cp",
    "dp": "mesh_dp",
    "dpcp": "mesh_dp_cp",
    "shard": "mesh_dp_shard",
    "replicate": "mesh_dp_replicate",
    "ep": "mesh_ep",
    "world": "default_pg",
}


def families(machine: Machine) -> list[str]:
    """Families of groups that any rank uses, the world first."""
    used = {
        call.family
        for place in machine.places.values()
        for call in place.program
        if isinstance(call, Collective | Messages)
    }
    return ["world", *sorted(used - {"world"})]


def named_groups(job: Job, used: Iterable[str]) -> dict[int, dict[str, Group]]:
    """Per rank, the groups by family: names count over the whole job, or over what the process made itself."""
    table = {"megatron": MEGATRON, "titan": TITAN}.get(job.style, {"world": "default_pg"})
    local = job.style == "titan" and job.torch >= (2, 6)
    found: dict[int, dict[str, Group]] = {rank: {} for rank in range(job.layout.world)}
    count = 0
    for number, family in enumerate(used):
        for ranks in job.layout.groups(AXES[family]):
            name = str(number if local or family == "world" else count)
            for rank in ranks:
                found[rank][family] = Group(name, table.get(family, "undefined"), ranks)
            count += 1
    return found


def header(job: Job, rank: int, groups: dict[str, Group]) -> dict:
    """Metadata before the events."""
    info: dict = {"backend": "nccl", "rank": rank, "world_size": job.layout.world}
    if job.torch >= (2, 3):
        info["pg_count"] = len(groups)
        info["pg_config"] = [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in groups.values()
        ]
        info["nccl_version"] = "2.21.5"
    found: dict = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": AMD if job.has("rocm") else NVIDIA}],
    }
    found["distributedInfo"] = info
    if job.torch >= (2, 4):
        found |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    if job.has("shapes"):
        found["record_shapes"] = 1
    return found


def windows(job: Job, rank: int, place: Place) -> list[tuple[int, int, int]]:
    """Host times between which the rank records, and the number of the first step: one window, or two captures.

    Ragged windows begin and end somewhere within steps.
    """
    starts = [
        start
        for call, (start, _) in zip(place.program, place.hosts, strict=True)
        if isinstance(call, Pause) and call.what == "step"
    ]
    begin, end = starts[1], starts[1 + job.steps]
    if job.has("ragged"):
        random, step = Random(f"{job.seed}-{rank}-window"), (end - begin) // job.steps
        return [(begin + random.randrange(step // 3), end - random.randrange(step // 3), FIRST_STEP)]
    if job.has("captures"):
        middle = starts[1 + job.steps // 2]
        return [(begin, middle, FIRST_STEP), (middle, end, FIRST_STEP + GAP_STEPS + job.steps // 2)]
    return [(begin, end, FIRST_STEP)]


def clocks(job: Job) -> dict[int, Clock]:
    """A clock for every host."""
    random = Random(f"{job.seed}-clock")
    hosts = -(-job.layout.world // job.per_host)
    if not job.has("offsets"):
        return {host: Clock() for host in range(hosts)}
    return {
        host: Clock(random.randint(-5_000_000, 5_000_000), random.uniform(-2e-5, 2e-5))
        for host in range(hosts)
    }


def streams(job: Job, place: Place) -> dict[str, int]:
    """Numbers of a rank's streams, in order of first use."""
    found = {"compute": 7}
    start = 16 + 4 * (job.seed % 5)
    for call in place.program:
        name = getattr(call, "stream", None)
        if name is not None and name not in found:
            found[name] = start
            start += 4
    return found


def write(job: Job, machine: Machine, folder: Path, ranks: Iterable[int]) -> None:
    """Write the given ranks' files into `folder`."""
    groups = named_groups(job, families(machine))
    times = clocks(job)
    pace = max(op.end for place in machine.places.values() for op in place.ops.values()) // (job.steps + 2)
    for rank in ranks:
        place = machine.places[rank]
        for number, (begin, end, first) in enumerate(windows(job, rank, place)):
            recording = Recording(
                job,
                rank,
                Forms(job.torch, job.has("rocm")),
                groups[rank],
                streams(job, place),
                rank % job.per_host,
                4000 + rank,
                times[rank // job.per_host],
                first,
                number * GAP_STEPS * pace,
                Random(f"{job.seed}-{rank}-{number}-write"),
            )
            lines = Writer(recording, place, (begin, end)).write()
            put(job, rank, number, header(job, rank, groups[rank]), lines, folder)


def put(job: Job, rank: int, number: int, head: dict, lines: list[str], folder: Path) -> None:
    """Write one file, with the metadata before or after the events."""
    events = '"traceEvents": [\n' + ",\n".join(lines) + "\n]"
    if job.has("rank_in_name"):
        del head["distributedInfo"]
    metadata = json.dumps(head)[1:-1]
    text = f"{{{events}, {metadata}}}" if job.has("late_info") else f"{{{metadata}, {events}}}"
    name = f"node{rank // job.per_host}_{4000 + rank}.{1730000000_000000000 + rank + number}.pt.trace.json"
    if job.has("rank_in_name"):
        name = f"rank{rank}.{number}.pt.trace.json"
    if job.has("gzip"):
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    else:
        (folder / name).write_text(text)

"""What stands around a trace's events: the devices, the ranks and groups, names of threads and streams."""

import json

from tests.shapes.comms import SIZE_SINCE, SPLITS_SINCE
from tests.shapes.sheet import Recording, Sheet

DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 84942979072,
    "computeMajor": 9,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 32,
    "sharedMemPerBlock": 49152,
    "numSms": 132,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 232448,
    "sharedMemPerMultiprocessor": 233472,
}

AMD_DEVICE = {
    "name": "AMD Instinct MI300X",
    "totalGlobalMem": 206141652992,
    "computeMajor": 9,
    "computeMinor": 4,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 64,
    "sharedMemPerBlock": 65536,
    "numSms": 304,
    "maxSharedMemoryPerMultiProcessor": 65536,
}


def head(recording: Recording) -> str:
    """The file up to its events."""
    device = AMD_DEVICE if recording.habits.amd else DEVICE
    numbers = range(recording.job.setting.per_host)
    devices = ",\n".join("    " + json.dumps({"id": number, **device}) for number in numbers)
    text = f'\n{{\n  "schemaVersion": 1,\n  "deviceProperties": [\n{devices}\n  ],\n'
    if not recording.habits.amd:
        text += '  "cupti_version": 24,\n  "cuda_runtime_version": 12040,\n'
    text += '  "record_shapes": 1,\n' if recording.habits.shapes else ""
    text += '  "with_stack": 1,\n' if recording.habits.stack else ""
    return text + f'  "distributedInfo": {json.dumps(ranks_and_groups(recording))},\n'


def ranks_and_groups(recording: Recording) -> dict[str, object]:
    """Who this rank is, and its groups."""
    setting = recording.job.setting
    told: dict[str, object] = {"backend": "nccl", "rank": recording.rank, "world_size": setting.world}
    if setting.torch >= SPLITS_SINCE:
        groups = [group for group in recording.job.groups if recording.rank in group.ranks]
        told["pg_count"] = len(groups)
        told["pg_config"] = [
            {
                "pg_name": str(group.number),
                "pg_desc": group.description,
                "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks),
                "ranks": group.ranks,
            }
            for group in groups
        ]
    if setting.torch >= SIZE_SINCE:
        told["nccl_version"] = "2.21.5"
    return told


def label(sheet: Sheet) -> None:
    """Name the process, the device, its streams and the threads."""
    process, device, at = sheet.recording.process, sheet.device, sheet.first_us
    for number, words, place in ((process, "CPU", process), (device, f"GPU {device}", 5000000 + device)):
        sheet.events.label("process_name", (number, 0), at, {"name": "python"})
        sheet.events.label("process_labels", (number, 0), at, {"labels": words})
        sheet.events.label("process_sort_index", (number, 0), at, {"sort_index": place})
    named = [(device, stream, f"stream {stream}") for stream in sorted(sheet.streams)]
    named += [(process, thread, f"thread {thread} (python)") for thread in sheet.threads]
    for number, thread, words in named:
        sheet.events.label("thread_name", (number, thread), at, {"name": words})
        sheet.events.label("thread_sort_index", (number, thread), at, {"sort_index": thread})

"""Memory does not grow with the file: not with its length, not with what it unpacks to."""

import gzip
import subprocess
import sys

import pytest

from tests.house.source import ROOT
from tests.ingest.sample import LAYOUTS, document, event, kernel
from tracekit.files.discover import discover
from tracekit.ingest.readers import TRACES
from tracekit.ingest.reading import read_files

SAMPLE = ROOT / "sample_traces" / "healthy" / "trace"

MEASURE = """
import sys
from tracekit.errors import InputError
from tracekit.ingest import load, write
write.RUN_ROWS, write.CHUNK_ROWS, write.GROUP_ROWS = 1 << 15, 1 << 12, 1 << 15
try:
    print(load([sys.argv[1]]).ranks[0].events, end=" ")
except InputError as error:
    print(str(error).split(": ")[-1].replace(" ", "_"), end=" ")
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024)
"""


def measured(path):
    """Events kept, or the reason of refusal, and peak resident MiB of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    answer, peak = done.stdout.split()
    return answer, int(peak)


def long_trace(path, repeats):
    """A trace of `repeats` times 2000 events, out of order in time as Kineto writes them."""
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2}
    listed = [event(i) for i in range(1000)] + [
        kernel(i, **(args if i % 50 == 0 else {})) for i in range(1000)
    ]
    head, rest = LAYOUTS["kineto"](document(listed)).split('"traceEvents": [\n')
    events, tail = rest.split("\n  ],")
    with gzip.open(path, "wt", 1) as file:
        file.write(head + '"traceEvents": [\n' + events)
        for _ in range(repeats - 1):
            file.write(",\n" + events)
        file.write("\n  ]," + tail)
    return path


@pytest.mark.slow
def test_resident_memory_does_not_grow_with_file_length(tmp_path):
    few, small = measured(long_trace(tmp_path / "a.json.gz", 40))
    many, large = measured(long_trace(tmp_path / "b.json.gz", 400))
    assert (few, many) == ("80000", "800000")
    assert large < small + 60  # ten times the file, some 170 MB more of JSON


@pytest.mark.slow
def test_what_unpacks_to_gigabytes_of_nothing_stays_small(tmp_path):
    for name, head, block in (
        ("a", b'{"x": "', b"0" * (1 << 20)),
        ("b", b'{"traceEvents": [{"name": "', b"0" * (1 << 20)),
        ("c", b'{"traceEvents": [', b"[" * (1 << 20)),
        ("d", b"", b" " * (1 << 20)),
    ):
        with (tmp_path / f"rank_0{name}.json.gz").open("wb") as file:
            file.write(gzip.compress(head + block, 1) + 699 * gzip.compress(block, 1))  # members of one file
        answer, peak = measured(tmp_path / f"rank_0{name}.json.gz")
        assert not answer.isdecimal()
        assert peak < 450


def test_files_share_the_members_that_they_repeat(tmp_path):
    """Each file lists all members of its groups: kept once a file they grow with the square of the ranks."""
    sources = discover([str(SAMPLE)], TRACES).sources
    results = read_files(sources, tmp_path, 2, None)
    groups = [group for result in results for table in result.tables for group in table.groups]
    members = [group.ranks for group in groups]
    assert len({id(ranks) for ranks in members}) == len(set(members)) < len(members)

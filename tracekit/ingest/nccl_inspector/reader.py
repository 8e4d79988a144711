"""Records of NCCL's Inspector as event tables, by way of timed calls as dumps hold them.

Each kind of call of a communicator counts by itself, since NCCL has numbered them so; it becomes a group of its own
with the communicator's members. The records' gaps are kept as gaps of evidence: calls that rings dropped, times known
by their order alone, members without a file, and, by default, no call below 8 KB. Used by `readers`.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from tracekit.dumps.calls import CallKind
from tracekit.dumps.load import DumpSet, Progress
from tracekit.dumps.rank_dump import GroupTail, RankDump, TimedCalls
from tracekit.errors import InputError
from tracekit.files.discover import Wanted, discover
from tracekit.files.source import ByteStream, Source, opening
from tracekit.findings import Quality
from tracekit.ingest.file_result import FileResult
from tracekit.ingest.flight_recorder.reader import Wording, tables_of
from tracekit.ingest.nccl_inspector.lines import Call, Process, Records, split_lines
from tracekit.thresholds.inspector import LONGEST_RECORD, MOST_LACKING
from tracekit.units import NS_PER_US

INSPECTOR: Final = "nccl_inspector"
MARK: Final = b'"inspector_output_format_version"'
"""Stands in each record, and in nothing else."""
_UNTIMED: Final = (
    "no record of a call; set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS below the job's length"
)
_ANY: Final = Wanted(lambda name: not name.startswith("."), part="", patterns_name_files=True)


def of_records(label: str) -> FileResult:
    """Return the result for a file of records, which is set aside: records of all ranks are read together."""
    reason = "this holds records of NCCL's Inspector; give them apart from traces"
    return FileResult(label, "foreign", reason, None, INSPECTOR)


def read_records(
    inputs: Sequence[str], folder: Path, _jobs: int, _job: int | None, progress: Progress | None
) -> tuple[list[FileResult], list[Quality], int | None]:
    """Read the records in the files that `inputs` name into Parquet files in `folder`.

    Returns as `flight_recorder.reader.read_dumps` does. Raises InputError where no record shows a call, none shows
    which rank a process is, or the order of calls is lost.
    """
    sources = [source for source in discover(inputs, _ANY).sources if _holds_records(source)]
    records, sums = Records(), dict[str, tuple[str, int]]()
    for number, source in enumerate(sources):
        sums[source.label] = _take(records, source)
        if progress is not None:
            progress(
                number + 1,
                len(sources),
                sum(s.size for s in sources[: number + 1]),
                sum(s.size for s in sources),
            )
    first = sources[0].label if sources else inputs[0]
    if not any(records.calls.values()):
        raise InputError(f"{first}: {_UNTIMED}")
    ranks = records.ranks()
    if not ranks:
        raise InputError(
            f"{first}: no communicator gives all processes ranks of their own; give the files of all ranks of one job, "
            "each once and without those of an earlier start"
        )
    if any(_by_communicator(calls) for calls in records.calls.values()):
        raise InputError(
            f"{first}: its records bear no times and were written at the end, one communicator after the other, so "
            "that the order of calls is lost; set NCCL_INSPECTOR_DUMP_VERBOSE=1"
        )
    lacking = _keep_common(records)
    dumps = {ranks[p]: _dump(records, p, ranks, sums) for p in sorted(records.calls, key=lambda p: ranks[p])}
    world = tuple(range(max(records.sizes.values())))
    found = DumpSet(dict(sorted(dumps.items())), (), (), world)
    results, doubts = tables_of(found, folder, Wording(INSPECTOR, "records", _UNTIMED, sized=True))
    return results, [*_gaps(records, lacking), *doubts], None


def _by_communicator(calls: Sequence[Call]) -> bool:
    """Return whether calls without times lie one communicator after the other, several of each of two or more."""
    names = [call.communicator for call in calls if call.start_us is None]
    counts = Counter(names)
    changes = sum(one != other for one, other in pairwise(names))
    return changes == len(counts) - 1 and sum(count > 1 for count in counts.values()) > 1


def _holds_records(source: Source) -> bool:
    try:
        return MARK in opening(source)
    except OSError:
        return False


def _take(records: Records, source: Source) -> tuple[str, int]:
    """Read one file; return its checksum and length as decompressed."""
    digest, size = hashlib.sha256(), 0
    with source.open() as raw:
        blocks = []
        for block in ByteStream(raw).blocks():
            digest.update(block)
            size += len(block)
            blocks.append(block)
        records.take(source.label, split_lines(iter(blocks), LONGEST_RECORD))
    return digest.hexdigest(), size


def _dump(
    records: Records, process: Process, ranks: Mapping[Process, int], sums: Mapping[str, tuple[str, int]]
) -> RankDump:
    """Return the calls of one process in the form of a dump."""
    calls = records.calls[process]
    keys = sorted({(call.communicator, "" if call.peer >= 0 else call.kind) for call in calls})
    index = {key: at for at, key in enumerate(keys)}
    groups = [
        GroupTail(f"{name}/{kind}", records.names.get(name, ""), records.members(name, dict(ranks)))
        for name, kind in keys
    ]
    path = records.paths[process]
    dump = RankDump(path, "inspector", process[0], groups, [], rank=ranks[process], entries=len(calls))
    dump.timing = _timed(records, calls, index, (process, ranks))
    dump.sha256, dump.bytes = sums.get(path, ("", 0))
    return dump


def _timed(
    records: Records,
    calls: Sequence[Call],
    index: Mapping[tuple[str, str], int],
    who: tuple[Process, Mapping[Process, int]],
) -> TimedCalls:
    """Return the calls of one process, sorted by start; those without a time are laid out behind one another."""
    process, ranks = who
    start = _starts(calls)
    order = np.argsort(start, kind="stable")
    kinds: dict[CallKind, int] = {}
    places = {name: {place: p for p, place in own.items()} for name, own in records.places.items()}
    codes = []
    for call in calls:
        ends = (-1, -1)
        other = places[call.communicator].get(call.peer)
        if call.peer >= 0 and other is not None:
            pair = (ranks[process], ranks[other])
            ends = pair if call.kind == "send" else pair[::-1]
        codes.append(kinds.setdefault(CallKind(call.kind, "", call.size, call.size, *ends), len(kinds)))
    columns = (
        [call.dur_us * NS_PER_US for call in calls],
        [index[call.communicator, "" if call.peer >= 0 else call.kind] for call in calls],
        [-1 if call.peer >= 0 else call.seq for call in calls],
        codes,
    )
    dur, group, seq, kind = (np.array(column, np.int64)[order] for column in columns)
    laid_out = sum(call.start_us is None for call in calls)
    return TimedCalls(start[order], dur, group, seq, kind, tuple(kinds), laid_out, 0, 0, 0)


def _starts(calls: Sequence[Call]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the start of each call, ns; calls without one end one after another before they were written."""
    found = np.zeros(len(calls), np.int64)
    behind: int | None = None
    for at in range(len(calls) - 1, -1, -1):
        call = calls[at]
        if call.start_us is not None:
            found[at] = call.start_us * NS_PER_US
            continue
        end = call.written_us if behind is None else min(call.written_us, behind)
        behind = max(end - call.dur_us, 0)
        found[at] = behind * NS_PER_US
    return found


def _gaps(records: Records, lacking: int) -> list[Quality]:
    """Return what the records leave out."""
    rows = []
    if records.dropped:
        detail = "records that Inspector's rings dropped under load, as it counts them"
        rows.append(Quality("dropped_records", None, records.dropped, detail))
    if records.damaged:
        rows.append(
            Quality("damaged_records", None, records.damaged, "lines that are no record of Inspector's")
        )
    if records.left_out:
        rows.append(Quality("too_many_records", None, records.left_out, "records beyond the bound, left out"))
    if lacking:
        detail = "calls that some members recorded and others not, left out: rings dropped them"
        rows.append(Quality("sparse_records", None, lacking, detail))
    detail = "Inspector records no compute, and by default no call below 8 KB; its times are each host's own"
    return [*rows, Quality("inspector_scope", None, len(records.calls), detail)]


def _keep_common(records: Records) -> int:
    """Leave out calls that not all recorded members of their communicator recorded; return how many.

    At both ends records may begin and end anywhere, so that only calls between the latest first and the earliest last
    number of a member are counted. InputError where too many are left out.
    """
    numbers: dict[tuple[str, str], dict[Process, set[int]]] = defaultdict(lambda: defaultdict(set))
    for process, calls in records.calls.items():
        for call in calls:
            if call.peer < 0:
                numbers[call.communicator, call.kind][process].add(call.seq)
    common, spans = {}, {}
    for key, by in numbers.items():
        common[key] = set.intersection(*by.values()) if len(by) == len(records.places[key[0]]) else set()
        spans[key] = max(min(own) for own in by.values()), min(max(own) for own in by.values())
    total = lacking = 0
    for process, calls in records.calls.items():
        kept = []
        for call in calls:
            key = call.communicator, call.kind
            if call.peer >= 0 or call.seq in common[key]:
                kept.append(call)
            elif spans[key][0] <= call.seq <= spans[key][1]:
                lacking += 1
        total += len(calls)
        records.calls[process] = kept
    if lacking > MOST_LACKING * total:
        path = next(iter(records.paths.values()))
        raise InputError(
            f"{path}: {lacking} of {total} calls are recorded by some members and not by others: rings dropped too "
            "many; set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS lower"
        )
    return lacking

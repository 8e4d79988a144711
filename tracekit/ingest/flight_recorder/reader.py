"""Flight-recorder dumps with timing as event tables, so that every analysis of traces reads them.

A dump times communication only: every timed call becomes a communication event, and nothing shows the work of a rank
or why it was late. Steps follow from a call that all ranks make once a step, if there is one. `tracekit.dumps` reads
the dumps and lays out their calls; the tables made here go the way of all files (`merge`). Used by `load`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.dumps.load import DumpSet, Progress, load_dumps
from tracekit.dumps.rank_dump import RankDump, TimedCalls
from tracekit.errors import InputError
from tracekit.findings import Quality
from tracekit.ingest.file_result import FLIGHT_RECORDER, FileGroup, FileResult, RankTable
from tracekit.ingest.flight_recorder.common_window import (
    Marks,
    Members,
    common_parts,
    find_marks,
    twins,
)
from tracekit.ingest.write import event_table, in_order, write_table
from tracekit.thresholds.ingest import LEAST_CALLS, MAX_TWINS

UNTIMED = (
    "a flight-recorder dump without timings of calls; record them (TORCH_NCCL_ENABLE_TIMING=1), or give the "
    "profiler's traces; `tracekit hang` reads it as it is"
)
Span = tuple[int, int, int]
"""Number, begin and end of a step, ns."""
_KIND = (None, None, "in_nelems", "out_nelems", "src_rank", "dst_rank")
"""Columns of the fields of a CallKind."""


def read_dumps(
    inputs: Sequence[str], folder: Path, jobs: int, job: int | None, progress: Progress | None
) -> tuple[list[FileResult], list[Quality], int | None]:
    """Read the timed dumps that `inputs` name into Parquet files in `folder`.

    Returns a result per file, doubts about all, and the number of the job where the dumps are of several.
    jobs: processes that decode. job: which job is wanted. progress: called with files done, files in all, bytes done,
    bytes in all. Raises InputError where no dump times its calls, and what `load_dumps` raises.
    """
    found = load_dumps(inputs, jobs, progress, timed=True, job=job)
    timed = {r: d for r, d in found.dumps.items() if d.timing is not None and len(d.timing.start)}
    if not timed:
        raise InputError(f"{next(iter(found.dumps.values())).path}: {UNTIMED}")
    results, doubts = tables_of(found, folder, Wording(FLIGHT_RECORDER, "dumps", UNTIMED))
    return results, [*found.quality, *doubts], found.job


@dataclass(frozen=True)
class Wording:
    """How answers name a form of timed calls.

    format: of the results. files: in sentences. untimed: why a file without times is of no use. sized: whether the
    files show how many ranks the job has.
    """

    format: str
    files: str
    untimed: str
    sized: bool = False


def tables_of(found: DumpSet, folder: Path, words: Wording) -> tuple[list[FileResult], list[Quality]]:
    """Write the timed calls of each rank into a Parquet file in `folder`; return a result per file, and doubts."""
    timed = {r: d for r, d in found.dumps.items() if d.timing is not None and len(d.timing.start)}
    users = _users(found)
    members = {r: [g.ranks or users[g.name, g.desc] for g in d.groups] for r, d in timed.items()}
    marks = find_marks(timed, found.world)
    steps = _marked(timed, marks) if marks is not None else _parts(timed, members)
    dropped = sum(len(d.timing.start) for d in timed.values() if d.timing is not None)
    if marks is None and steps:
        _trim(timed, steps)
    dropped -= sum(len(d.timing.start) for d in timed.values() if d.timing is not None)
    results = [FileResult(r.path, "rejected", r.reason, r.rank) for r in found.rejected]
    for rank, dump in found.dumps.items():
        if rank in timed:
            size = len(found.world) if words.sized else None
            result = _result(dump, members[rank], steps.get(rank, []), folder, size)
            results.append(replace(result, format=words.format))
        else:
            results.append(FileResult(dump.path, "rejected", words.untimed, rank))
    return results, _quality(list(timed.values()), marks, steps, dropped, words)


def _users(found: DumpSet) -> dict[tuple[str, str], tuple[int, ...]]:
    """Members of groups that no dump lists: the ranks that use the name."""
    users: dict[tuple[str, str], set[int]] = defaultdict(set)
    for rank, dump in found.dumps.items():
        for group in dump.groups:
            if not group.ranks:
                users[group.name, group.desc].add(rank)
    return {
        key: found.world if key[1] == "default_pg" else tuple(sorted(ranks)) for key, ranks in users.items()
    }


def _parts(dumps: dict[int, RankDump], members: dict[int, list[Members]]) -> dict[int, list[Span]]:
    """Return the parts of `common_parts` as steps; none where too few calls are on all ranks."""
    cuts = common_parts(dumps, members)
    if min(c[-1] - c[0] for c in cuts.values()) < LEAST_CALLS:
        return {}
    spans = {}
    for rank, places in cuts.items():
        timing = dumps[rank].timing
        if timing is not None:
            begins = timing.start[places[:-1]].tolist()
            last = int((timing.start + timing.dur)[places[0] : places[-1]].max())
            ends = [*begins[1:], max(last, begins[-1])]
            spans[rank] = list(zip(range(len(begins)), begins, ends, strict=True))
    return spans


def _trim(dumps: dict[int, RankDump], steps: dict[int, list[Span]]) -> None:
    """Leave out calls that are in no step."""
    for rank, dump in dumps.items():
        if dump.timing is not None:
            begin, end = np.searchsorted(dump.timing.start, [steps[rank][0][1], steps[rank][-1][2]]).tolist()
            dump.timing = dump.timing.between(begin, end)


def _marked(dumps: dict[int, RankDump], marks: Marks) -> dict[int, list[Span]]:
    """Steps between consecutive marks, from end to end."""
    spans: dict[int, list[Span]] = {}
    for rank, dump in dumps.items():
        timing = dump.timing
        if timing is None:
            continue
        group = next(i for i, g in enumerate(dump.groups) if g.name == marks.name)
        kind = timing.kinds.index(marks.kind)
        rows = np.flatnonzero((timing.group == group) & (timing.kind == kind))
        rows = rows[(timing.seq[rows] - marks.first) % marks.stride == 0]
        rows = rows[np.argsort(timing.seq[rows], kind="stable")]
        number = (timing.seq[rows] - marks.first) // marks.stride
        end = np.maximum.accumulate((timing.start + timing.dur)[rows])
        whole = np.flatnonzero(np.diff(number) == 1) + 1
        spans[rank] = list(
            zip(number[whole].tolist(), end[whole - 1].tolist(), end[whole].tolist(), strict=True)
        )
    return spans


def _result(
    dump: RankDump, members: list[Members], steps: list[Span], folder: Path, size: int | None
) -> FileResult:
    """Write the calls and steps of one rank and return the result for its file; `members` by group of the dump."""
    timing = dump.timing
    if timing is None:
        raise AssertionError(dump.path)
    table = _calls(dump, timing, members)
    table = pa.concat_tables([_steps(dump, steps), table])
    path = folder / f"dump-{dump.rank:06d}"
    table = in_order(table.unify_dictionaries().combine_chunks())
    rows = write_table(path, iter([table]))
    groups = tuple(
        FileGroup(ranks, (g.name,), (g.desc,) if g.desc else ())
        for ranks, g in zip(members, dump.groups, strict=True)
    )
    first, last = int(table.column("ts")[0].as_py()), int(table.column("ts")[-1].as_py())
    left_out = {"untimed call": timing.untimed} if timing.untimed else {}
    record = RankTable(
        dump.rank, str(path), rows, first, last, dump.host, size, False, groups, left_out
    )  # fmt: skip
    return FileResult(
        dump.path,
        "ok",
        rank=dump.rank,
        format=FLIGHT_RECORDER,
        sha256=dump.sha256,
        bytes=dump.bytes,
        tables=(record,),
    )


def _calls(dump: RankDump, timing: TimedCalls, members: list[tuple[int, ...]]) -> pa.Table:
    """Communication events of one rank, in the order of issue."""
    count = len(timing.start)
    sizes = np.array([len(m) for m in members], np.int64)
    kinds = {
        c: np.array([k[i] for k in timing.kinds], np.int64)[timing.kind] for i, c in enumerate(_KIND) if c
    }
    seq = timing.seq * MAX_TWINS + twins(dump, members)[timing.group]
    return event_table(
        count,
        {
            "ts": timing.start,
            "dur": timing.dur,
            "cat": ["kernel"] * count,
            "name": [f"nccl:{timing.kinds[k][0]}" for k in timing.kind.tolist()],
            "pid": np.full(count, dump.rank),
            "tid": timing.group,
            "stream": timing.group,
            "collective": [timing.kinds[k][0] for k in timing.kind.tolist()],
            "dtype": [timing.kinds[k][1] for k in timing.kind.tolist()],
            "group_size": sizes[timing.group],
            "group": timing.group,
            "pg_name": [dump.groups[g].name for g in timing.group.tolist()],
            "pg_desc": [dump.groups[g].desc for g in timing.group.tolist()],
            "seq": np.where(timing.seq >= 0, seq, -1),
            **kinds,
        },
    )


def _steps(dump: RankDump, steps: list[Span]) -> pa.Table:
    """Spans of steps, named as the profiler names them."""
    begin = np.array([s[1] for s in steps], np.int64)
    return event_table(
        len(steps),
        {
            "ts": begin,
            "dur": np.array([s[2] for s in steps], np.int64) - begin,
            "cat": ["user_annotation"] * len(steps),
            "name": [f"ProfilerStep#{s[0]}" for s in steps],
            "pid": np.full(len(steps), dump.rank),
            "tid": np.full(len(steps), len(dump.groups)),
        },
    )


def _quality(
    dumps: list[RankDump],
    marks: Marks | None,
    steps: dict[int, list[Span]],
    dropped: int,
    words: Wording,
) -> list[Quality]:
    """Return quality rows: how steps were found, how exact the times are, and which calls were left out."""
    timings = [d.timing for d in dumps if d.timing is not None]
    steps_from = f"the {words.files} mark no steps: all calls that every ring holds count as one step"
    if (parts := len(next(iter(steps.values()), ()))) > 1:
        steps_from = f"{parts} periods in which calls repeat count as steps"
    if marks is not None:
        every = f"{marks.stride} calls" if marks.thinned else marks.kind[0]
        steps_from = f"a step ends with {every} on group {marks.name}"
    rows = [
        Quality(
            f"{words.format}_input",
            None,
            len(dumps),
            f"{words.files} time communication only, so causes are unknown; {steps_from}",
        )
    ]
    placed = sum(t.laid_out for t in timings)
    if placed:
        poll = int(np.median([t.poll_ns for t in timings]))
        within = f"to within the watchdog's poll ({poll / 1e6:.0f} ms)" if poll else "by their order only"
        rows.append(Quality("placed_calls", None, placed, f"starts are known {within}; durations are exact"))
    if dropped:
        detail = "calls that not all rings hold, left out"
        rows.append(Quality("ragged_rings", None, dropped, detail))
    outstanding = sum(t.outstanding for t in timings)
    if outstanding:
        detail = "calls that were not done; if the job is stuck, `tracekit hang` shows which rank never came"
        rows.append(Quality("outstanding_calls", None, outstanding, detail))
    untimed = sum(t.untimed for t in timings) - outstanding
    if untimed:
        rows.append(Quality("untimed_calls", None, untimed, "calls without a duration, left out"))
    return rows

"""Our events in the tools of others.

HolisticTraceAnalysis (HTA, extra `hta`) is given what its own parser would make of the files: the same rows, in whole
microseconds, begins rounded up and ends down as it does. So its answers are its own, also on a run folder, which needs
no JSON any more. Its parser computes in doubles, which hold 0.25 µs where times count from 1970: there ours are exact,
and its own differ by a microsecond an event.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays import to_numpy
from tracekit.errors import InputError
from tracekit.installation import check_extra, missing_extra
from tracekit.store import Run
from tracekit.units import I64, NS_PER_US

_NUMBERS: Final = {
    "stream": "stream",
    "correlation": "correlation",
    "wait_stream": "wait_on_stream",
    "wait_record": "wait_on_cuda_event_record_corr_id",
    "external_id": "external_id",
    "pid": "pid",
    "tid": "tid",
    "in_nelems": "in_msg_nelems",
    "out_nelems": "out_msg_nelems",
    "group_size": "group_size",
    "group_rank": "process_rank",
}
"""HTA's name of each column of ours that holds integers."""
_COUNTS: Final = ("in_nelems", "out_nelems", "group_size")
"""Columns in which HTA writes 0 where nothing is known, else -1."""
_WORDS: Final = {
    "collective": "collective_name",
    "dtype": "msg_dtype",
    "in_split": "in_split_size",
    "out_split": "out_split_size",
}
_LEFT_OUT: Final = "Trace"
"""The category that HTA leaves out: the window of the recording."""


def hta(run: Run, include_last_profiler_step: bool = False) -> Any:
    """An HTA `TraceAnalysis` of the events of `run`; what HTA's parser alone keeps (shapes, bytes) is absent.

    `include_last_profiler_step` is HTA's: it leaves the last step out. Raises MissingExtraError where HTA is not
    installed, InputError where no rank has an event.
    """
    check_extra("hta", "interop.hta")
    if not any(record.events for record in run.ranks):
        raise InputError("no rank of the run has an event; name traces of the profiler")
    try:
        from hta.common.trace import Trace, add_iteration, transform_correlation_to_index
        from hta.common.trace_parser import infer_gpu_type
        from hta.trace_analysis import TraceAnalysis
    except ImportError as error:  # an older package has modules of these names as well
        refusal = missing_extra(error, "interop.hta")
        if refusal is None:
            raise
        raise refusal from error

    trace = Trace(trace_files={})
    for record in run.ranks:
        events = run.events(record.rank, ["ts", "dur", "cat", "name", *_NUMBERS, *_WORDS])
        frame = _frame(events, trace.symbol_table)
        if frame.empty:
            continue
        frame = transform_correlation_to_index(frame, trace.symbol_table)
        add_iteration(frame, trace.symbol_table)
        frame["end"] = frame["ts"] + frame["dur"]
        device = infer_gpu_type({}, trace.symbol_table.get_sym_id_map())
        trace.traces[record.rank], trace.meta_data[record.rank] = frame, {"device_type": device}
    trace.align_and_filter_trace(include_last_profiler_step)
    trace.traces = {
        rank: frame.set_index("index", drop=False).rename_axis(None) for rank, frame in trace.traces.items()
    }
    trace.is_parsed = True
    analysis = TraceAnalysis.__new__(TraceAnalysis)  # its constructor reads files
    analysis.t = trace
    return analysis


def _frame(events: pa.Table, symbols: Any) -> Any:
    """The events of a rank as HTA holds them; their categories and names are added to `symbols`."""
    import pandas as pd

    known = pc.and_(pc.is_valid(events["cat"]), pc.is_valid(events["name"]))
    events = events.filter(pc.and_(known, pc.not_equal(pc.cast(events["cat"], pa.string()), _LEFT_OUT)))
    begin, end = _whole_us(to_numpy(events["ts"]), to_numpy(events["dur"]))
    number = np.arange(1, len(begin) + 1)  # HTA takes a link to row 0 for none
    columns: dict[str, Any] = {"index": number, "ts": begin, "dur": end - begin}
    columns |= {name: _coded(events[name], symbols) for name in ("cat", "name")}
    for ours, theirs in _NUMBERS.items():
        columns[theirs] = to_numpy(events[ours].cast(pa.int64()).fill_null(0 if ours in _COUNTS else -1))
    for ours, theirs in _WORDS.items():
        columns[theirs] = events[ours].cast(pa.string()).fill_null("").to_pylist()
    return pd.DataFrame(columns, index=number)


def _whole_us(start: I64, duration: I64) -> tuple[I64, I64]:
    """Begins rounded up and ends rounded down to µs, as HTA does: nested events stay nested."""
    return -(-start // NS_PER_US), (start + duration) // NS_PER_US


def _coded(column: pa.ChunkedArray, symbols: Any) -> I64:
    """Return the numbers of the words of `column` in HTA's table of symbols."""
    words = column.combine_chunks()
    words = words if isinstance(words, pa.Array) else words.chunk(0)
    texts = words.dictionary.to_pylist()
    used = sorted({texts[i] for i in np.unique(to_numpy(words.indices)).tolist()})
    symbols.add_symbols(used)
    number = symbols.get_sym_id_map()
    codes = np.array([number.get(word, -1) for word in texts], np.int64)
    return np.asarray(codes[to_numpy(words.indices)], np.int64)

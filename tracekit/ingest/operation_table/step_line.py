"""When each step of an operation table begins and ends, and steps laid one after another on one line of time.

Starts count from the begin of each step, or tables hold samples of a job's steps. What lies between two recorded steps
belongs to none of them, so that each begins where the one before it ended.
"""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.ingest.operation_table.table import OperationTable
from tracekit.thresholds.ingest import MAX_TIME_NS, STEP_GAP_NS
from tracekit.units import I64


@dataclass(frozen=True)
class Spans:
    """Steps of a table: their numbers, sorted, and on any rank the first start and the last end of each, ns."""

    numbers: I64
    first: I64
    last: I64


def spans_of(table: OperationTable) -> Spans:
    """Return the span of each step, from the first start to the last end on any rank; shape (steps,)."""
    numbers, of = np.unique(table.step, return_inverse=True)
    first, last = np.full(len(numbers), MAX_TIME_NS), np.full(len(numbers), -MAX_TIME_NS)
    np.minimum.at(first, of, table.start)
    np.maximum.at(last, of, table.start + table.dur)
    return Spans(numbers, first, last)


def one_after_another(table: OperationTable) -> OperationTable:
    """Return the table with its steps in order of their numbers, each right behind the one before it.

    Raises ValueError where the steps last longer than any job.
    """
    spans = spans_of(table)
    lasts = (spans.last - spans.first + STEP_GAP_NS).astype(np.float64)
    if abs(float(spans.first[0])) + lasts.sum() >= MAX_TIME_NS:
        raise ValueError("its steps last longer than any job")
    begins = spans.first[0] + np.concatenate([[0], np.cumsum(spans.last - spans.first + STEP_GAP_NS)[:-1]])
    moved = (begins - spans.first)[np.searchsorted(spans.numbers, table.step)]
    return replace(table, start=table.start + moved)

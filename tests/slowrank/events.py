"""Event tables of hand-made ranks: a few kernels and collectives a step, times in microseconds."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.schema import EVENTS, Group
from tracekit.store import RankRecord, Run

BLOCKS = 132
"""Blocks of each kernel of compute, unless a test gives others."""


class Timeline:
    """Rows of one rank; `at` is the time at which its stream is free."""

    def __init__(self, rank):
        self.rank, self.at, self.rows, self.seq = rank, 0.0, [], {}

    def compute(self, us, name="gemm", grid=BLOCKS):
        """A kernel; `grid`: None where the recording does not hold it."""
        self._row(self.at, us, "kernel", name, grid=grid)
        self.at += us

    def post(self, group, op="all_reduce"):
        """Returns a handle; the collective ends when `finish` is told."""
        self.seq[group] = self.seq.get(group, 0) + 1
        return self.at, group, op, self.seq[group]

    def finish(self, handle, end, **more):
        begin, group, op, seq = handle
        more |= {"collective": op, "group": group, "seq": seq}
        self._row(begin, end - begin, "kernel", f"ncclDevKernel_{op}", **more)
        self.at = end

    def beside(self, group, us, seq, op="broadcast"):
        """A collective on a stream of its own, beside what is computed next."""
        more = {"collective": op, "group": group, "seq": seq, "stream": 20}
        self._row(self.at, us, "kernel", f"ncclDevKernel_{op}", **more)

    def silent(self, name, end):
        """A kernel on a stream of its own, for which the rank waits, and of which nothing else tells."""
        self._row(self.at, end - self.at, "kernel", name, stream=30)
        self.at = end

    def step(self, number, begin):
        self._row(begin, self.at - begin, "user_annotation", f"ProfilerStep#{number}")

    def _row(self, begin, us, cat, name, **more):
        row = dict.fromkeys(EVENTS.names)
        row |= {"ts": round(begin * 1000), "dur": round(us * 1000), "cat": cat, "name": name, **more}
        self.rows.append(row)


def write_run(
    folder,
    lines: Sequence[Timeline],
    groups: Mapping[int, tuple[int, ...]],
    descs: Mapping[int, object],
    world,
):
    """A Run of `lines`; `groups` by number, `descs` a text or several for each."""
    records = []
    for line in lines:
        rows = sorted(line.rows, key=lambda r: (r["ts"], -r["dur"]))
        name = f"rank-{line.rank}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=EVENTS), folder / name)
        records.append(
            RankRecord(
                line.rank, name, None, world, "kineto", "", 0, len(rows), name, groups=tuple(sorted(groups))
            )
        )
    told = {n: (desc,) if isinstance(desc, str) else desc for n, desc in descs.items()}
    made = tuple(Group(n, tuple(r), (str(n),), told[n]) for n, r in sorted(groups.items()))
    return Run(folder, tuple(records), made, (), (), world)

"""Rows of a trace as a template: all ranks of a pipeline rank have the same rows but for times and groups.

The text of a file is built once a pipeline rank, in fragments; a rank's own file is the fragments joined, with
its own words (device, process, groups) in the places that want them and its times formatted in. That makes a
file as cheap as the copying of its text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal

import numpy as np

from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.grid import F64, I64, Grid, Group
from reftrain.simulate.kernel_names import COLLECTIVES, kernel_names
from reftrain.simulate.program import Kind, Op, Program

Detail = Literal["kernels", "collectives"]
LIST_LIMIT: Final = 30  # members of a group that Kineto lists
_TIMES: Final = '"ts":%d.%03d,"dur":%d.%03d,"args":{'
_COMPUTE_STREAM: Final = 7
_SHORT_NS: Final = 2_000  # least length of a row of the host


@dataclass(frozen=True)
class Word:
    """A place in the text that differs by rank: device, pid, or the arguments of a call."""

    what: str
    op: Op | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for words that read the same on every rank."""
        op = self.op
        return (self.what,) if op is None else (
            self.what, op.group, op.members, op.label, op.nelems, op.dtype, op.peer
        )  # fmt: skip


@dataclass(frozen=True)
class _Time:
    """A time of an operation: which table (0 start, 1 end, 2 issued, 3 step bounds), its row, and ns added."""

    table: int
    row: int
    add: float = 0.0


class Template:
    """Rows of all files of one pipeline rank for its first `steps` steps."""

    def __init__(self, program: Program, steps: int, detail: Detail, host: HostCosts) -> None:
        self.program, self.steps, self.detail, self.host = program, steps, detail, host
        self.words: list[Word] = []
        self._fragments: list[str] = []
        self._known: dict[object, int] = {}
        self._codes: list[int] = []
        self._begins: list[_Time] = []
        self._ends: list[_Time] = []
        self._streams: dict[str, int] = {}
        self._seqs: dict[tuple[object, ...], int] = {}
        self._build()
        count = len(program.ops) * steps
        base = np.array([0, count, 2 * count, 3 * count])
        self.begin = np.array([base[t.table] + t.row for t in self._begins], np.int64)
        self.end = np.array([base[t.table] + t.row for t in self._ends], np.int64)
        self.begin_add = np.array([t.add for t in self._begins])
        self.end_add = np.array([t.add for t in self._ends])
        self._pick = itemgetter(*self._codes)
        self.events = len(self._begins)

    # -- building
    def _text(self, text: str) -> None:
        self._code(text, text)

    def _word(self, word: Word) -> None:
        if word.key not in self._known:
            self.words.append(word)
        self._code(word.key, word)

    def _code(self, key: object, what: object) -> None:
        code = self._known.setdefault(key, len(self._fragments))
        if code == len(self._fragments):
            self._fragments.append(what if isinstance(what, str) else "")
        self._codes.append(code)

    def _row(
        self, head: str, ids: str | tuple[Word, str], begin: _Time, end: _Time, args: Sequence[object]
    ) -> None:
        """One event; `head` is the text before the ids, `args` strings and words."""
        self._text(("," if self._begins else "") + "\n" + head)
        if isinstance(ids, str):
            self._text(ids)
        else:
            self._text('"pid":')
            self._word(ids[0])
            self._text(ids[1])
        self._text(_TIMES)
        for part in args:
            if isinstance(part, Word):
                self._word(part)
            else:
                self._text(str(part))
        self._text("}}")
        self._begins.append(begin)
        self._ends.append(end)

    def _build(self) -> None:
        pid = Word("pid")
        for step in range(self.steps):
            head = f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{step}",'
            bounds = _Time(3, step, 300.0), _Time(3, step + 1, -300.0)
            self._row(head, (pid, ',"tid":1,'), *bounds, ['"External id":1'])
        for step in range(self.steps):
            for index, op in enumerate(self.program.ops):
                self._operation(step, index, op)

    def _operation(self, step: int, index: int, op: Op) -> None:
        row = step * len(self.program.ops) + index
        link = 16 + row
        if op.kind is Kind.LOAD:
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            head = f'{{"ph":"X","cat":"user_annotation","name":"{name}",'
            self._row(
                head, (Word("pid"), ',"tid":1,'), _Time(0, row), _Time(1, row), [f'"External id":{link}']
            )
        elif op.kind is Kind.SYNC:
            self._sync(op, row, link)
        elif op.kind is Kind.COMPUTE:
            self._compute(op, row, link)
        else:
            self._communication(op, row, link)

    def _sync(self, op: Op, row: int, link: int) -> None:
        if self.detail == "collectives" and op.label == "wait":
            return
        head = '{"ph":"X","cat":"cuda_runtime","name":"cudaStreamSynchronize",'
        args = [f'"External id":{link},"cbid":131,"correlation":{link}']
        self._row(head, (Word("pid"), ',"tid":1,'), _Time(0, row), _Time(1, row), args)

    def _compute(self, op: Op, row: int, link: int) -> None:
        names = kernel_names(op.label, backward=op.backward)
        if self.detail == "kernels":
            self._launch(names.operator, "cudaLaunchKernel", 211, row, link, self.host.launch, None, "")
        head = f'{{"ph":"X","cat":"kernel","name":"{names.kernel}",'
        ids = (Word("device"), f',"tid":{_COMPUTE_STREAM},')
        args = [
            f'"External id":{link},"queued":0,"device":', Word("device"),
            f',"context":1,"stream":{_COMPUTE_STREAM},"correlation":{link},"grid":[132,1,1],"block":[384,1,1]',
        ]  # fmt: skip
        self._row(head, ids, _Time(0, row), _Time(1, row), args)

    def _launch(
        self,
        operator: str,
        call: str,
        cbid: int,
        row: int,
        link: int,
        took: float,
        args: Word | None,
        seq: str,
    ) -> None:
        """Rows of the host for one call: the operator, NCCL's record of it where there is one, the launch."""
        busy = max(took, _SHORT_NS)
        pid = Word("pid")
        head = f'{{"ph":"X","cat":"cpu_op","name":"{operator}",'
        ids = (pid, ',"tid":1,')
        self._row(head, ids, _Time(2, row, -busy), _Time(2, row), [f'"External id":{link}'])
        if args is not None:
            head = '{"ph":"X","cat":"cpu_op","name":"record_param_comms",'
            inner = _Time(2, row, -0.9 * busy), _Time(2, row, -0.1 * busy)
            self._row(head, ids, *inner, [f'"External id":{link},', args, seq])
        head = f'{{"ph":"X","cat":"cuda_runtime","name":"{call}",'
        inner = _Time(2, row, -0.5 * busy), _Time(2, row, -0.2 * busy)
        self._row(head, ids, *inner, [f'"External id":{link},"cbid":{cbid},"correlation":{link}'])

    def _communication(self, op: Op, row: int, link: int) -> None:
        names = COLLECTIVES[op.label]
        seq = f',"Seq":{self._seq(op)}'
        if self.detail == "kernels":
            took = self.host.collective
            self._launch(
                names.operator, "cudaLaunchKernelExC", 430, row, link, took, Word("host_args", op), seq
            )
        stream = self._streams.setdefault(op.stream, 20 + 4 * len(self._streams))
        head = f'{{"ph":"X","cat":"kernel","name":"{names.kernel}",'
        args = [
            f'"External id":{link},"queued":0,"device":', Word("device"),
            f',"stream":{stream},"correlation":{link},"grid":[24,1,1],"block":[544,1,1],', Word("args", op), seq,
        ]  # fmt: skip
        self._row(head, (Word("device"), f',"tid":{stream},'), _Time(0, row), _Time(1, row), args)

    def _seq(self, op: Op) -> int:
        """Number of the call in its group, collectives and messages counted apart, from 1."""
        key = (op.group, op.members, op.kind is Kind.COLLECTIVE)
        self._seqs[key] = self._seqs.get(key, 0) + 1
        return self._seqs[key]

    # -- filling in
    def text(self, words: Sequence[str], begin: I64, end: I64) -> str:
        """All rows of one rank. `words` as in `self.words`; `begin` and `end` in ns as the file shows them."""
        table = self._fragments.copy()
        for word, said in zip(self.words, words, strict=True):
            table[self._known[word.key]] = said
        numbers = np.empty((len(begin), 4), np.int64)
        numbers[:, 0], numbers[:, 1] = np.divmod(begin, 1000)
        numbers[:, 2], numbers[:, 3] = np.divmod(np.maximum(end - begin, 0), 1000)
        return "".join(self._pick(table)) % tuple(numbers.reshape(-1).tolist())

    def moments(self, tables: F64) -> tuple[F64, F64]:
        """True begins and ends of all rows, ns, from (start, end, issued, bounds) of a rank put one after another."""
        return tables[self.begin] + self.begin_add, tables[self.end] + self.end_add


def call_arguments(op: Op, group: Group, grid: Grid, rank: int, *, host: bool) -> str:
    """Communication arguments as torch and Kineto write them, as the text between braces, without `Seq`.

    The host's row has the group's start and stride besides, which make up for lists that are cut.
    """
    members = group.ranks
    size = len(members)
    listed = ", ".join(map(str, members[:LIST_LIMIT])) + (", ..." if size > LIST_LIMIT else "")
    values: dict[str, object] = {
        "Collective name": op.label,
        "In msg nelems": op.nelems[0],
        "Out msg nelems": op.nelems[1],
        "Group size": size,
        "dtype": op.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.desc,
        "Process Group Ranks": f"[{listed}]",
    }
    if op.kind in {Kind.SEND, Kind.RECV}:
        peer = rank + (op.peer - grid.coords(rank)["pp"]) * grid.strides["pp"]
        ends = (rank, peer) if op.kind is Kind.SEND else (peer, rank)
        values |= {"Src Rank": ends[0], "Dst Rank": ends[1]}
    if host:
        values |= {"Rank": members.index(rank), "Global rank start": members[0]}
        if group.stride:
            values["Global rank stride"] = group.stride
    return json.dumps(values, separators=(",", ":"))[1:-1].replace("%", "%%")

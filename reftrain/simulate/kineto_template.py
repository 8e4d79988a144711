"""Rows of a trace as a template: all ranks of a pipeline rank have the same rows but for times and groups.

The text of a file is built once a pipeline rank, in fragments; a rank's own file is the fragments joined, with
its own words (device, process, groups) in the places that want them and its times formatted in. That makes a
file as cheap as the copying of its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Literal

import numpy as np

from reftrain.config.trace_forms import TraceForm
from reftrain.simulate.conditions import HostCosts
from reftrain.simulate.grid import F64, I64
from reftrain.simulate.kernel_names import COLLECTIVES, RECORDER_NAMES, kernel_names
from reftrain.simulate.program import Kind, Op, Program

Detail = Literal["kernels", "collectives"]
_TIMES: Final = '"ts":%d.%03d,"dur":%d.%03d,"args":{'
COMPUTE_STREAM: Final = 7
TABLES: Final = ("start", "end", "issued", "bounds", "called")
"""The times that rows are made from; an operation is called before it is issued where its host waits for its turn."""
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
    """A time of an operation: which of `TABLES`, its row, and ns added."""

    table: int
    row: int
    add: float = 0.0


class Template:
    """Rows of all files of one pipeline rank for `steps` steps, from step `first` of its job on."""

    def __init__(
        self, program: Program, steps: int, detail: Detail, host: HostCosts, form: TraceForm, first: int = 0
    ) -> None:
        self.program, self.steps, self.detail, self.host = program, steps, detail, host
        self.form, self.first = form, first
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
        base = np.array([0, count, 2 * count, 3 * count, 3 * count + steps + 1])
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
        self,
        head: str | Sequence[object],
        ids: str | tuple[Word, str],
        begin: _Time,
        end: _Time,
        args: Sequence[object],
    ) -> None:
        """Add one event; `head` is the text before the ids, `args` strings and words."""
        self._text("," + "\n" if self._begins else "\n")
        for part in [head] if isinstance(head, str) else head:
            self._word(part) if isinstance(part, Word) else self._text(str(part))
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
            head = f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{self.first + step}",'
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
                head, (Word("pid"), ',"tid":1,'), _Time(0, row), _Time(1, row), [f'"External id":{link + 1}']
            )
        elif op.kind is Kind.SYNC:
            self._sync(op, row, link)
        elif op.kind is Kind.HOST:
            head = f'{{"ph":"X","cat":"cpu_op","name":"{kernel_names(op.label, backward=False).operator}",'
            args = [f'"External id":{link + 1}']
            self._row(head, (Word("pid"), ',"tid":1,'), _Time(0, row), _Time(1, row), args)
        elif op.copied:
            self._copy(op, row, link)
        elif op.kind is Kind.COMPUTE:
            self._compute(op, row, link)
        else:
            self._communication(op, row, link)

    def _sync(self, op: Op, row: int, link: int) -> None:
        if self.detail == "collectives" and op.label == "wait":
            return
        head = '{"ph":"X","cat":"cuda_runtime","name":"cudaStreamSynchronize",'
        args = [f'"External id":{link + 1},"cbid":131,"correlation":{link}']
        self._row(head, (Word("pid"), ',"tid":1,'), _Time(0, row), _Time(1, row), args)

    def _compute(self, op: Op, row: int, link: int) -> None:
        names = kernel_names(op.label, backward=op.backward)
        if self.detail == "kernels":
            self._launch(names.operator, row, link)
        head = f'{{"ph":"X","cat":"kernel","name":"{names.kernel}",'
        ids = (Word("device"), f',"tid":{COMPUTE_STREAM},')
        args = [
            f'"External id":{link + 1},"queued":0,"device":', Word("device"),
            f',"context":1,"stream":{COMPUTE_STREAM},"correlation":{link},"grid":[132,1,1],"block":[384,1,1]',
        ]  # fmt: skip
        self._row(head, ids, _Time(0, row), _Time(1, row), args)

    def _copy(self, op: Op, row: int, link: int) -> None:
        """Rows of a copy between device and host: its call, and its time on the device."""
        names = kernel_names(op.label, backward=False)
        if self.detail == "kernels":
            self._launch(names.operator, row, link, "cudaMemcpyAsync", 41)
        head = f'{{"ph":"X","cat":"gpu_memcpy","name":"{names.kernel}",'
        args = [
            f'"External id":{link + 1},"device":', Word("device"),
            f',"context":1,"stream":{COMPUTE_STREAM},"correlation":{link},"bytes":{op.copied}',
        ]  # fmt: skip
        self._row(head, (Word("device"), f',"tid":{COMPUTE_STREAM},'), _Time(0, row), _Time(1, row), args)

    def _launch(
        self, operator: str, row: int, link: int, call: str = "cudaLaunchKernel", cbid: int = 211
    ) -> None:
        """Rows of the host for one kernel: the operator and the launch."""
        busy = max(self.host.launch, _SHORT_NS)
        head = [f'{{"ph":"X","cat":"cpu_op","name":"{operator}",']
        times = _Time(4, row, -busy), _Time(2, row)
        self._row(head, (Word("pid"), ',"tid":1,'), *times, [f'"External id":{link + 1}'])
        args = [f'"External id":{link + 1},"cbid":{cbid},"correlation":{link}']
        self._host_row("cuda_runtime", call, row, (-0.5 * busy, -0.2 * busy), args)

    def _host_row(
        self, cat: str, name: str | Word, row: int, span: tuple[float, float], args: Sequence[object]
    ) -> None:
        """One event of the host; `span` is its begin and end, ns from the moment at which the call was issued."""
        head = [f'{{"ph":"X","cat":"{cat}","name":"', name, '",']
        self._row(head, (Word("pid"), ',"tid":1,'), _Time(2, row, span[0]), _Time(2, row, span[1]), args)

    def _communication(self, op: Op, row: int, link: int) -> None:
        form, names = self.form, COLLECTIVES[op.label]
        message = op.kind is not Kind.COLLECTIVE
        seq = f',"Seq":{self._seq(op)}' if "Seq" in form.keys else ""
        if self.detail == "kernels":
            if message and form.batched:
                self._batch(op, row, link, seq)
            else:
                self._call(op, row, link, seq)
        arguments: list[object] = [Word("batch_args" if message and form.batched else "args", op), seq]
        ids = f'"External id":{link + 1},'
        if message and not (form.records_messages and (form.nccl2 or not form.batched)):
            arguments, ids = [], f'"External id":{link},' if form.bogus_id else ""
        stream = self._streams.setdefault(op.stream, 20 + 4 * len(self._streams))
        kernel = names.kernel.replace("ncclDevKernel", "ncclKernel") if form.old_kernels else names.kernel
        head = f'{{"ph":"X","cat":"kernel","name":"{kernel}",'
        args = [
            f'{ids}"queued":0,"device":', Word("device"),
            f',"stream":{stream},"correlation":{link},"grid":[24,1,1],"block":[544,1,1]', *arguments,
        ]  # fmt: skip
        self._row(head, (Word("device"), f',"tid":{stream},'), _Time(0, row), _Time(1, row), args)

    def _call(self, op: Op, row: int, link: int, seq: str) -> None:
        """Rows of the host for a call with a kernel of its own: operator, record, title, launch."""
        form, message = self.form, op.kind is not Kind.COLLECTIVE
        busy, ids = max(self.host.collective, _SHORT_NS), f'"External id":{link + 1}'
        inputs = [Word("inputs", op)] if message and form.nccl2 else []
        if form.records_messages or not message:
            operator = COLLECTIVES[op.label].operator
            self._host_row("cpu_op", operator, row, (-busy, 0.0), [ids, *inputs])
            args = [ids, Word("host_args", op), seq]
            self._host_row("cpu_op", "record_param_comms", row, (-0.9 * busy, -0.1 * busy), args)
        if form.titles and (form.records_messages or not message):
            title = Word("title", op) if message else RECORDER_NAMES[op.label]
            self._host_row("user_annotation", title, row, (-0.8 * busy, -0.15 * busy), [])
        args = [f'{ids},"cbid":430,"correlation":{link}']
        self._host_row("cuda_runtime", "cudaLaunchKernelExC", row, (-0.5 * busy, -0.2 * busy), args)

    def _batch(self, op: Op, row: int, link: int, seq: str) -> None:
        """Rows of the host for a message issued as a batch: its call, then the launch inside the batch."""
        form = self.form
        busy, ids = max(self.host.collective, _SHORT_NS), f'"External id":{link + 1}'
        inputs = [Word("inputs", op)] if form.nccl2 else []
        operator = COLLECTIVES[op.label].operator
        self._host_row("cpu_op", operator, row, (-busy, -0.6 * busy), [ids, *inputs])
        if form.nccl2:
            args = [ids, Word("batch_host_args", op), seq]
            self._host_row("cpu_op", "record_param_comms", row, (-0.55 * busy, -0.1 * busy), args)
        else:
            args = [ids, Word("host_args", op), seq]
            self._host_row("cpu_op", "record_param_comms", row, (-0.95 * busy, -0.65 * busy), args)
            head = '{"ph":"X","cat":"user_annotation","name":"nccl:coalesced",'
            end = _Time(2, row, -0.1 * busy) if form.ended else _Time(3, self.steps)
            self._row(head, (Word("pid"), ',"tid":1,'), _Time(2, row, -0.55 * busy), end, [])
        args = [f'"cbid":430,"correlation":{link}']
        self._host_row("cuda_runtime", "cudaLaunchKernelExC", row, (-0.5 * busy, -0.2 * busy), args)

    def _seq(self, op: Op) -> int:
        """Number of the call in its group, from 1; the older backend counts collectives and messages apart."""
        key = (op.group, op.members, self.form.nccl2 or op.kind is Kind.COLLECTIVE)
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
        """True begins and ends of all rows, ns, from the `TABLES` of a rank put one after another."""
        return tables[self.begin] + self.begin_add, tables[self.end] + self.end_add

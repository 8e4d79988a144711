"""Writes a simulation as Kineto traces, one compressed file a rank, in parallel.

The rows come from one template a pipeline rank (`kineto_template`). This module adds the rows of work that planted
faults make on single ranks, the file around all rows, the clocks of the hosts, and the processes that write. The files
hold the view of a profiler, and nothing of the planted truth.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from isal import igzip

from reftrain.config.trace_forms import FORMS, NEWEST, TraceForm
from reftrain.simulate.call_texts import arguments_text, inputs_text, title_text
from reftrain.simulate.grid import F64, I64
from reftrain.simulate.kernel_names import kernel_names
from reftrain.simulate.kineto_template import COMPUTE_STREAM, Detail, Template, Word
from reftrain.simulate.pipeline_rank import OtherWork
from reftrain.simulate.pool import Progress, in_parallel, made_folder, put
from reftrain.simulate.simulation import Simulation

BASE_NS: Final = 1_771_588_800_000_000_000  # baseTimeNanoseconds of every file
_LISTED_WORLD: Final = 1024  # larger worlds are written as the empty list, which stands for everybody
_LEVEL: Final = 1


class _Part(NamedTuple):
    """One row: category and name, begin and end as shares of the work, and whether the device ran it."""

    cat: str
    name: str
    begin: float
    end: float
    on_device: bool = False


_LAYERS: Final = 8
_FORWARD: Final = ("norm", "qkv", "attention", "out", "ffn")


def _evaluation() -> Iterator[_Part]:
    """The rows of forwards, one kernel after the other, which the host launches at the begin and waits for."""
    yield _Part("user_annotation", "evaluate", 0.0, 1.0)
    count = _LAYERS * len(_FORWARD)
    for at, label in enumerate(_FORWARD * _LAYERS):
        names = kernel_names(label, backward=False)
        begin = 0.2 * at / count
        yield _Part("cpu_op", names.operator, begin, begin + 0.1 / count)
        yield _Part("cuda_runtime", "cudaLaunchKernel", begin + 0.02 / count, begin + 0.08 / count)
        yield _Part("kernel", names.kernel, max(at, 0.2) / count, (at + 1) / count, on_device=True)
    yield _Part("cuda_runtime", "cudaStreamSynchronize", 0.25, 1.0)


_PARTS: Final = {
    "allocator_retries": (
        _Part("cuda_runtime", "cudaFree", 0.0, 0.3),
        _Part("cuda_runtime", "cudaFree", 0.3, 0.5),
        _Part("cuda_runtime", "cudaMalloc", 0.5, 1.0),
    ),
    "checkpoint": (_Part("user_annotation", "save_checkpoint", 0.0, 1.0),),
    "evaluation": tuple(_evaluation()),
}
"""The rows of each kind."""


def _moments(work: Sequence[OtherWork], place: int) -> F64:
    """Return begin and end of every row of the rank at `place`, (rows, 2) ns since the job's begin."""
    shares = [np.array([(part.begin, part.end) for part in _PARTS[w.kind]]) for w in work]
    rows = [w.begin[place] + share * (w.end - w.begin)[place] for w, share in zip(work, shares, strict=True)]
    return np.concatenate([np.zeros((0, 2)), *rows])


def _rows_of(work: Sequence[OtherWork], pid: int, device: int, first: int, stream: int) -> list[str]:
    """Return the rows as JSON with places for their times; calls and kernels have numbers from `first` on."""
    out = []
    for parts in (_PARTS[w.kind] for w in work):
        for part in parts:
            first += part.cat == "cpu_op" or part.name in {"cudaFree", "cudaMalloc", "cudaStreamSynchronize"}
            args: dict[str, object] = {"External id": first + 1}
            if part.cat in {"cuda_runtime", "kernel"}:
                args["correlation"] = first
            if part.on_device:
                args |= {"device": device, "context": 1, "stream": stream}
            where = {"pid": device, "tid": stream} if part.on_device else {"pid": pid, "tid": 1}
            head = json.dumps({"ph": "X", "cat": part.cat, "name": part.name, **where})[:-1].replace(
                "%", "%%"
            )
            out.append(f'{head},"ts":%d.%03d,"dur":%d.%03d,"args":{json.dumps(args)}}}')
    return out


class KinetoWriter:
    """Writes ranks' files into `folder`."""

    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        detail: Detail,
        device_name: str,
        form: TraceForm = FORMS[NEWEST],
    ) -> None:
        self.simulation, self.folder, self.detail, self.form = simulation, folder, detail, form
        self.device_name = device_name
        self._templates: dict[int, Template] = {}

    def template(self, stage: int) -> Template:
        """Rows of a pipeline rank."""
        if stage not in self._templates:
            sim = self.simulation
            program = sim.programs[stage]
            rows = Template(program, sim.whole_steps, self.detail, sim.host, self.form, sim.first)
            self._templates = {stage: rows}
        return self._templates[stage]

    def write(self, rank: int) -> tuple[int, int]:
        """Write one file; return its events and bytes. The file appears whole or not at all."""
        text, events = self.text(rank)
        packed = igzip.compress(text.encode(), _LEVEL, mtime=0)
        put(self.folder / f"rank{rank}.json.gz", packed)
        return events, len(packed)

    def text(self, rank: int) -> tuple[str, int]:
        """JSON of one file, and its number of events."""
        sim = self.simulation
        stage, place = sim.grid.place(rank)
        template = self.template(stage)
        begin, end = self._stamps(template, stage, place, rank)
        words = [self._say(word, rank) for word in template.words]
        head = json.dumps(self._metadata(rank), separators=(",", ":"))[:-1]
        name = self._process_name(rank)
        comma = "," if template.events else ""
        tail = f'],"traceName":"rank{rank}.json","displayTimeUnit":"ms","baseTimeNanoseconds":{BASE_NS}}}'
        others = self._other_rows(rank)
        text = ",\n".join([template.text(words, begin, end), *others])
        return f'{head},"traceEvents":[\n{name}{comma}{text}\n{tail}\n', template.events + len(others)

    def _stamps(self, template: Template, stage: int, place: int, rank: int) -> tuple[I64, I64]:
        """Begins and ends of all rows of the template as the rank's host shows them, ns since BASE_NS."""
        sim = self.simulation
        times, rows = sim.times[stage], sim.whole_steps * len(sim.programs[stage].ops)
        start, end, issued = (t[:rows, place] for t in (times.start, times.end, times.issued))
        called = issued if times.held is None else issued - times.held[:rows, place]
        bounds = times.bounds[: sim.whole_steps + 1, place]
        moments = template.moments(np.concatenate([start, end, issued, bounds, called]))
        return self._as_shown(rank, moments[0]), self._as_shown(rank, moments[1])

    def _as_shown(self, rank: int, true: F64) -> I64:
        """Times as the rank's host shows them, ns since BASE_NS."""
        sim = self.simulation
        shown = np.rint(sim.clocks.stamp(sim.node(rank), true)).astype(np.int64)
        return shown + (sim.begin_ns - BASE_NS)

    def _other_rows(self, rank: int) -> list[str]:
        """Rows of the rank's work beside the program."""
        sim = self.simulation
        stage, place = sim.grid.place(rank)
        times = sim.times[stage]
        work = [w for w in times.others if w.step < sim.whole_steps and w.end[place] > w.begin[place]]
        device = rank % sim.node_size
        text = _rows_of(work, self._pid(rank), device, 16 + len(times.issued), COMPUTE_STREAM)
        shown = self._as_shown(rank, _moments(work, place))
        shown[:, 1] -= shown[:, 0]
        return [
            row % (*divmod(at, 1000), *divmod(dur, 1000))
            for row, (at, dur) in zip(text, shown.tolist(), strict=True)
        ]

    def _say(self, word: Word, rank: int) -> str:
        if word.op is None:
            return str(rank % self.simulation.node_size) if word.what == "device" else str(self._pid(rank))
        grid = self.simulation.grid
        group = grid.group_over(word.op.group, word.op.members, rank)
        if word.what == "title":
            return title_text(word.op, group, grid, rank)
        if word.what == "inputs":
            return inputs_text(word.op, group, grid, rank)
        host, batch = word.what.endswith("host_args"), word.what.startswith("batch")
        return arguments_text(self.form, word.op, group, grid, rank, host=host, batch=batch)

    def _pid(self, rank: int) -> int:
        """Process number, as a node's launcher gives them."""
        return 4211 + 67 * (rank % self.simulation.node_size) + 1009 * (self.simulation.node(rank) % 50)

    def _process_name(self, rank: int) -> str:
        values = {
            "ph": "M", "name": "process_name", "pid": self._pid(rank), "tid": 0, "ts": 0,
            "args": {"name": "python"},
        }  # fmt: skip
        return json.dumps(values, separators=(",", ":"))

    def _metadata(self, rank: int) -> dict[str, object]:
        sim = self.simulation
        listed = sim.grid.world <= _LISTED_WORLD
        info = {"backend": "nccl", "rank": rank, "world_size": sim.grid.world, "nccl_version": "2.27.5"}
        groups = [
            {
                "pg_name": g.name, "pg_desc": g.desc, "backend_config": "cuda:nccl", "pg_size": len(g.ranks),
                "ranks": g.ranks if listed or g.kind != "world" else [],
            }
            for g in sim.grid.groups_of(rank)
        ]  # fmt: skip
        if self.form.lists_groups:
            info |= {"pg_count": len(groups), "pg_config": groups}
        device = {"id": rank % sim.node_size, "name": self.device_name}
        return {
            "schemaVersion": 1, "deviceProperties": [device], "host_name": sim.host_name(rank),
            "distributedInfo": info,
        }  # fmt: skip


def write_traces(
    writer: KinetoWriter, ranks: Sequence[int], jobs: int, progress: Progress | None = None
) -> tuple[int, int]:
    """Write the files of `ranks` with `jobs` processes; return events and bytes in all.

    Raises MachineError where the folder cannot be written.
    """
    with made_folder(writer.folder):
        return in_parallel(writer, ranks, jobs, lambda rank: writer.simulation.grid.place(rank)[0], progress)

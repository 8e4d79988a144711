"""The input of commands: traces or dumps, the job among them, and the progress of reading and comparing."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tracekit.errors import TracekitError, UsageError, with_rejected
from tracekit.ingest import load
from tracekit.ingest.ray_engine import on_ray
from tracekit.store import Run
from tracekit.text import whole_number
from tracekit.thresholds.ingest import MOST_JOBS, MOST_PROCESSES
from tracekit.workers import Engine

from .output import about
from .packed import Decorator, packed
from .progress import comparing, reading

_PARALLEL_FROM = 2_000_000
"""Bytes of local input from which the time to start further processes pays."""


@dataclass(frozen=True)
class Source:
    """The files that a command reads: `inputs` as named, the `job` of several, processes, and no progress if quiet.

    engine, address: the engine that reads instead of processes here, and its address.
    """

    inputs: tuple[str, ...]
    job: int | None
    jobs: int | None
    quiet: bool
    engine: str | None = None
    address: str | None = None

    def read(self, out: str | None = None, *, append: bool = False) -> Run:
        """The ingested run, read with a progress line; `out` keeps it, and grows if it is to `append`.

        Without `jobs` one process reads, or one a CPU where the local input is large.
        """
        with self._reader() as engine, reading(quiet=self.quiet) as progress:
            jobs = self.jobs or _jobs(self.inputs)
            return load(
                self.inputs,
                out=out,
                jobs=jobs,
                job=self.job,
                progress=progress,
                engine=engine,
                append=append,
            )

    def _reader(self) -> AbstractContextManager[Engine | None]:
        """The engine that was asked for, as long as it is connected."""
        if self.engine is not None:
            return on_ray(self.address or os.environ.get("RAY_ADDRESS", ""), self.jobs)
        if self.address is not None:
            raise UsageError(f"--address {self.address}: no engine is to be found there; add --engine ray")
        return nullcontext()

    @contextmanager
    def analysed(self, what: str = "ranks") -> Iterator[tuple[Run, Callable[[int, int], None]]]:
        """Lend the run, and a callback that shows how far its analysis is, counted in `what`.

        A refusal names the input, and the files that were rejected.
        """
        run = self.read()
        try:
            with comparing(quiet=self.quiet, what=what) as progress, about(self.inputs):
                yield run, progress
        except TracekitError as error:
            raise with_rejected(error, [(r.path, r.reason) for r in run.rejected]) from error.__cause__


@dataclass(frozen=True)
class Pair:
    """The two runs that a command compares, and how they are read, as in `Source`."""

    before: str
    after: str
    job: tuple[int | None, int | None]
    jobs: int | None
    quiet: bool
    engine: str | None
    address: str | None

    @property
    def sources(self) -> tuple[Source, Source]:
        """The two runs, each as one input."""
        one, two = (
            Source((given,), job, self.jobs, self.quiet, self.engine, self.address)
            for given, job in zip((self.before, self.after), self.job, strict=True)
        )
        return one, two


_JOB: Final = click.option(
    "--job",
    type=click.IntRange(1, MOST_JOBS),
    metavar="N",
    help="Which job to answer for, where the input holds several: the refusal numbers them.",
)


def parse_two_jobs(
    _ctx: click.Context, _param: click.Parameter, text: str | None
) -> tuple[int | None, int | None]:
    """`2` is job 2 of both inputs, `1,2` job 1 of the first and job 2 of the second; nothing is a choice of neither."""
    if text is None:
        return None, None
    given = [number.strip() for number in text.split(",")]
    jobs = [whole_number(number, MOST_JOBS) for number in given]
    if len(given) > len(("before", "after")) or not all(jobs):
        raise click.BadParameter(
            f"{text[:40]!r} names no jobs from 1 to {MOST_JOBS}; write 2 for both runs, or 1,2 for one each"
        )
    return jobs[0], jobs[-1]


_JOB_OF_EACH: Final = click.option(
    "--job",
    metavar="N|N,M",
    callback=parse_two_jobs,
    help="Which job of each input, where it holds several: 1,2 is job 1 before and job 2 after.",
)
_JOBS: Final = click.option(
    "--jobs",
    type=click.IntRange(1, MOST_PROCESSES),
    metavar="N",
    help="Processes that read files; chosen by input size if left out.",
)
_ENGINES: Final = (
    click.option(
        "--engine",
        type=click.Choice(["ray"]),
        help="Let a running Ray cluster read the files, in place of processes here.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Address of that cluster; RAY_ADDRESS if left out.",
    ),
)


_QUIET: Final = click.option("--quiet", is_flag=True, help="No progress on stderr.")


def pair() -> Decorator:
    """Decorate a command with two inputs, lent to it as the `Pair` called `pair`."""
    inputs = (click.argument("before"), click.argument("after"))
    return packed("pair", Pair, *inputs, _JOB_OF_EACH, _JOBS, *_ENGINES, _QUIET)


def source(metavar: str = "TRACES...", *, engines: bool = True) -> Decorator:
    """Decorate a command with its input, lent to it as the `Source` called `source`.

    engines: whether a cluster may read it.
    """
    return packed(
        "source",
        Source,
        click.argument("inputs", metavar=metavar, nargs=-1, required=True),
        _JOB,
        _JOBS,
        *(_ENGINES if engines else ()),
        _QUIET,
    )


def _jobs(inputs: tuple[str, ...]) -> int:
    total = 0
    for path in map(Path, inputs):
        if path.is_dir():
            total += sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        elif path.is_file():
            total += path.stat().st_size
        if total >= _PARALLEL_FROM:
            return max(1, len(os.sched_getaffinity(0)))
    return 1

"""The input of commands: traces or dumps, the job among them, and the progress of reading and comparing."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tracekit.errors import TracekitError, with_rejected
from tracekit.ingest import load
from tracekit.store import Run

from .output import about
from .packed import packed
from .progress import comparing, reading

_PARALLEL_FROM = 64_000_000
"""Bytes of local input from which the time to start further processes pays."""


@dataclass(frozen=True)
class Source:
    """Files that a command reads: `inputs` as named, which `job` of several, processes, and no progress if quiet."""

    inputs: tuple[str, ...]
    job: int | None
    jobs: int | None
    quiet: bool

    def read(self, out: Path | None = None) -> Run:
        """The ingested run, read with a progress line; `out` keeps it.

        Without `jobs` one process reads, or one a CPU where the local input is large.
        """
        with reading(quiet=self.quiet) as progress:
            jobs = self.jobs or _jobs(self.inputs)
            return load(self.inputs, out=out, jobs=jobs, job=self.job, progress=progress)

    @contextmanager
    def analysed(self) -> Iterator[tuple[Run, Callable[[int, int], None]]]:
        """Lend the run, and a callback that shows how far its analysis is.

        A refusal names the input, and the files that were rejected.
        """
        run = self.read()
        try:
            with comparing(quiet=self.quiet) as progress, about(self.inputs):
                yield run, progress
        except TracekitError as error:
            raise with_rejected(error, [(r.path, r.reason) for r in run.rejected]) from error.__cause__


def source(metavar: str = "TRACES...") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command with its input, lent to it as the `Source` called `source`."""
    return packed(
        "source",
        Source,
        click.argument("inputs", metavar=metavar, nargs=-1, required=True),
        click.option(
            "--job",
            type=click.IntRange(min=1),
            metavar="N",
            help="Which job to answer for, where the input holds several: the refusal numbers them.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes that read files; by the size of the input if left out.",
        ),
        click.option("--quiet", is_flag=True, help="No progress on stderr."),
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

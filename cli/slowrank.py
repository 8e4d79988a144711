"""The command `tracekit slowrank`: validate, analyse, render."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import click

from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.errors import TracekitError, with_rejected
from tracekit.findings import Verdict
from tracekit.ingest import load
from tracekit.report.html.slowrank import slowrank_html
from tracekit.report.markdown import labelled_markdown
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps, slowrank_document
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.store import Run

from . import exit_codes, options
from .output import about, emit
from .progress import comparing, reading

_PARALLEL_FROM = 64_000_000
"""Bytes of local input from which the time to start further processes pays."""


@click.command()
@click.argument("traces", nargs=-1, required=True)
@options.analysis(get_args(Verdict))
@options.job()
@options.html()
@options.output()
def slowrank(
    traces: tuple[str, ...],
    mesh: dict[str, int] | None,
    order: tuple[str, ...] | None,
    steps: list[options.StepRange] | None,
    fail_on: frozenset[str],
    job: int | None,
    html_to: str | None,
    json_to: str | None,
    markdown_to: str | None,
    verbose: bool,
    jobs: int | None,
    quiet: bool,
) -> int:
    """Say who is slow, where in DP → PP → CP → TP, why, and what it costs; or that nobody is to blame.

    TRACES: Kineto traces (.json, .json.gz, .zst), operation tables (.parquet), folders, globs, fsspec URLs, or a
    folder that `tracekit ingest` wrote; where there are none, flight-recorder dumps that time their calls.

    \b
    tracekit slowrank traces/
    tracekit slowrank traces/ --steps 3:8 --json answer.json --fail-on slow_rank,slow_link
    tracekit slowrank 'gs://bucket/run7/*.json.gz' --mesh tp=8,cp=1,pp=16,dp=128
    """
    run = read(traces, jobs=jobs, job=job, quiet=quiet)
    with analysing(run, quiet=quiet) as progress, about(traces):
        if html_to is None:
            finding, page = analyse(run, mesh, order, steps, progress), None
        else:
            finding, picture = illustrated(run, mesh, order, steps, progress)
            page = slowrank_html(finding, picture)
    lines = slowrank_lines(finding, verbose=verbose)
    emit(
        laid_out(lines),
        lambda: dumps(slowrank_document(finding)),
        json_to,
        (lambda: labelled_markdown(lines), markdown_to),
        (lambda: page or "", html_to),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)


def read(
    traces: Sequence[str], *, jobs: int | None, job: int | None, quiet: bool, out: Path | None = None
) -> Run:
    """The ingested run, read with a progress line.

    `jobs` is the number of processes; None takes one, or one a CPU where the local input is large.
    """
    with reading(quiet=quiet) as progress:
        return load(traces, out=out, jobs=jobs or _jobs(traces), job=job, progress=progress)


@contextmanager
def analysing(run: Run, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Lend a callback that shows how far the analysis is; a refusal tells the files of `run` that were rejected."""
    try:
        with comparing(quiet=quiet) as progress:
            yield progress
    except TracekitError as error:
        raise with_rejected(error, [(r.path, r.reason) for r in run.rejected]) from error.__cause__


def _jobs(traces: Sequence[str]) -> int:
    total = 0
    for path in map(Path, traces):
        if path.is_dir():
            total += sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        elif path.is_file():
            total += path.stat().st_size
        if total >= _PARALLEL_FROM:
            return max(1, len(os.sched_getaffinity(0)))
    return 1

"""`tracekit hang`: validate, analyse, render."""

import os
from collections.abc import Callable
from math import prod
from typing import get_args

import click

from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.errors import TracekitError, with_rejected
from tracekit.evidence.gather import load_evidence
from tracekit.findings.hang import HangVerdict
from tracekit.ingest import ProgressEvent
from tracekit.page.shell import date_text
from tracekit.report.hang import hang_document, hang_text
from tracekit.report.html.hang import hang_html
from tracekit.report.markdown import indented_markdown
from tracekit.report.prometheus import hang_metrics
from tracekit.report.slowrank_json import dumps

from .. import exit_codes, options
from ..output import about
from ..progress import reading
from ..source import Source, source


@click.command()
@options.axes()
@options.failing(get_args(HangVerdict))
@options.html()
@options.prometheus()
@options.answer()
@source("DUMPS...", engines=False)
def hang(
    source: Source,
    axes: options.Axes,
    fail_on: frozenset[str],
    html_to: str | None,
    prometheus_to: str | None,
    answer: options.Answer,
) -> int:
    """Name the ranks that made the others wait, the call, and whether their host or device stalled.

    DUMPS: flight-recorder dumps (pickle or JSON, versions 2.0 to 2.10, NCCL or Gloo), logs, stacks (py-spy,
    faulthandler, pystack, gdb) and answers of ncclras, under any names, folders, globs or fsspec URLs. Ranks may be
    missing; files that cannot be used are listed with the reason. No code in a pickle is run.

    \b
    tracekit hang dumps/
    tracekit hang dumps/ --verbose --json answer.json --fail-on hang,mismatch
    """
    jobs = source.jobs or len(os.sched_getaffinity(0))
    with reading(quiet=source.quiet) as show:
        world = None if axes.mesh is None else prod(axes.mesh.values())
        found = load_evidence(source.inputs, jobs, _shown(show), job=source.job, expected=world)
    rejected = (*found.rejected, *(found.dumps.rejected if found.dumps is not None else ()))
    try:
        with about(source.inputs):
            finding, picture = judge_evidence(found, axes.mesh, axes.order)
    except TracekitError as error:
        raise with_rejected(error, [(r.path, r.reason) for r in rejected]) from error.__cause__
    text = hang_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(hang_document(finding)),
        lambda: indented_markdown(text),
        (
            lambda: hang_html(finding, picture, options.page_foot(source.inputs, date_text(found.last_ns()))),
            html_to,
        ),
        (lambda: hang_metrics(finding), prometheus_to),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)


def _shown(show: Callable[[ProgressEvent], None]) -> Callable[[int, int, int, int], None]:
    def progress(files: int, of: int, done: int, total: int) -> None:
        show(ProgressEvent(files, of, done, total, ""))

    return progress

"""`tracekit triage`: validate, recognise, analyse, render."""

import os

import click

from tracekit.analysis.triage.triage import Ask
from tracekit.analysis.triage.triage import triage as answered
from tracekit.ingest import ProgressEvent
from tracekit.report.html.triage import triage_html
from tracekit.report.markdown import indented_markdown
from tracekit.report.slowrank_json import dumps
from tracekit.report.triage import triage_document, triage_text

from .. import exit_codes, options
from ..output import about
from ..progress import reading
from ..source import Source, source

VERDICTS = ("hang", "mismatch", "none", "slow_rank", "slow_link", "imbalance", "healthy", "inconclusive")


@click.command()
@options.axes()
@options.machines()
@options.failing(VERDICTS)
@options.html()
@options.answer()
@source("PATH...", engines=False)
def triage(
    source: Source,
    axes: options.Axes,
    machines: options.Machines,
    fail_on: frozenset[str],
    html_to: str | None,
    answer: options.Answer,
) -> int:
    """Find the rank that hung or slows a job from whatever files are left of it.

    PATH: logs, dumps, traces, stacks, answers of ncclras, run folders, in any mixture: files, folders,
    globs, fsspec URLs, or archives (.zip, .tar, .tar.gz, .tar.zst). Each file is recognised by its content; files
    of unknown kinds are listed.

    \b
    tracekit triage job.log
    tracekit triage incident.tar.gz --markdown incident.md
    tracekit triage logs/ dumps/ traces/ --fail-on any
    """
    jobs = source.jobs or len(os.sched_getaffinity(0))
    order = None if axes.order is None else tuple(axes.order)
    ask = Ask(axes.mesh, order, jobs, source.job, **machines.given)
    with reading(quiet=source.quiet) as show, about(source.inputs):
        finding = answered(
            source.inputs, ask, lambda files, of, done, total: show(ProgressEvent(files, of, done, total, ""))
        )
    text = triage_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(triage_document(finding)),
        lambda: indented_markdown(text),
        (lambda: triage_html(finding, options.page_foot(source.inputs, None)), html_to),
    )
    return max((exit_codes.of_verdict(job.verdict, fail_on) for job in finding.answers), key=_WORST.index)


_WORST = (exit_codes.OK, exit_codes.UNDECIDED, exit_codes.FAILED_ON)
"""Exit codes of verdicts, the gravest last."""

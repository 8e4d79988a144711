"""The command `tracekit slowrank`: validate, analyse, render."""

from typing import get_args

import click

from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.findings import Verdict
from tracekit.page.shell import About, date_text
from tracekit.report.html.slowrank import slowrank_html
from tracekit.report.markdown import labelled_markdown
from tracekit.report.perfetto import slowrank_trace
from tracekit.report.prometheus import slowrank_metrics
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps, slowrank_document
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.store import Run

from .. import exit_codes, options
from ..source import Source, source


@click.command()
@options.cut()
@options.machines()
@click.option(
    "--explain",
    is_flag=True,
    help="Show the working: every hypothesis with its price, every gap of the evidence, the rule that chose.",
)
@options.failing(get_args(Verdict))
@options.html()
@options.prometheus()
@options.perfetto()
@options.answer()
@source()
def slowrank(
    source: Source,
    cut: options.Cut,
    machines: options.Machines,
    explain: bool,
    fail_on: frozenset[str],
    html_to: str | None,
    prometheus_to: str | None,
    perfetto_to: str | None,
    answer: options.Answer,
) -> int:
    """Name the slow rank, where in DP → PP → CP → TP it is, why, and what it costs; or that no rank is to blame.

    TRACES: Kineto traces (.json, .json.gz, .zst), operation tables (.parquet), folders, globs, fsspec URLs, or a
    folder that `tracekit ingest` wrote; else timed flight-recorder dumps, files of nsys, records of NCCL's Inspector.

    \b
    tracekit slowrank traces/
    tracekit slowrank traces/ --explain --hosts hostfile
    tracekit slowrank traces/ --steps 3:8 --json answer.json --fail-on slow_rank,slow_link
    tracekit slowrank 'gs://bucket/run7/*.json.gz' --mesh tp=8,cp=1,pp=16,dp=128
    """
    page, trace, asked = "", b"", (cut.mesh, cut.order, cut.steps)
    with source.analysed() as (run, progress):
        if html_to is None and perfetto_to is None:
            finding = analyse(run, *asked, progress, explain=explain, **machines.given)
        else:
            finding, picture = illustrated(run, *asked, progress, explain=explain, **machines.given)
            page = slowrank_html(finding, picture, _foot(source, run)) if html_to else ""
            trace = slowrank_trace(finding, picture) if perfetto_to else b""
    lines = slowrank_lines(finding, verbose=answer.verbose)
    answer.emit(
        laid_out(lines),
        lambda: dumps(slowrank_document(finding)),
        lambda: labelled_markdown(lines),
        (lambda: page, html_to),
        (lambda: slowrank_metrics(finding), prometheus_to),
        (lambda: trace, perfetto_to),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)


def _foot(source: Source, run: Run) -> About:
    return options.page_foot(source.inputs, date_text(run.last_ns()))

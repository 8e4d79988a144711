"""The command `tracekit slowrank`: validate, analyse, render."""

from dataclasses import replace
from typing import Any, get_args

import click

from tracekit.analysis.slowrank.analyse import analyse, illustrated
from tracekit.analysis.triage.unread import unread_counters
from tracekit.findings import SlowRankFinding, Verdict
from tracekit.findings.picture import SlowRankPicture
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
    page, trace, drawn = "", b"", html_to is not None or perfetto_to is not None
    with source.analysed() as (run, progress):
        given = {"progress": progress, "explain": explain, **vars(cut), **machines.given}
        finding, picture = _answered(source, run, given, drawn=drawn)
        if picture is not None:
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


def _answered(
    source: Source, run: Run, given: dict[str, Any], *, drawn: bool
) -> tuple[SlowRankFinding, SlowRankPicture | None]:
    """Return the finding, with a row for counters that lie beside the traces, unread, and its charts if `drawn`."""
    finding, picture = illustrated(run, **given) if drawn else (analyse(run, **given), None)
    unread = unread_counters(source.inputs)
    rows = () if unread is None else (unread.quality,)
    return replace(finding, quality=(*finding.quality, *rows)), picture


def _foot(source: Source, run: Run) -> About:
    return options.page_foot(source.inputs, date_text(run.last_ns()))

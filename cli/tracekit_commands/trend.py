"""The command `tracekit trend`: validate, analyse, render."""

from typing import get_args

import click

from tracekit.analysis.trend.analyse import trend as analyse
from tracekit.findings.trend import TrendVerdict
from tracekit.page.shell import date_text
from tracekit.report.html.trend import trend_html
from tracekit.report.markdown import fenced_markdown
from tracekit.report.slowrank_json import dumps
from tracekit.report.trend_json import trend_document
from tracekit.report.trend_text import trend_text

from .. import exit_codes, options
from ..source import Source, source


@click.command()
@options.cut()
@options.failing(get_args(TrendVerdict))
@options.html()
@options.answer()
@source()
def trend(
    source: Source, cut: options.Cut, fail_on: frozenset[str], html_to: str | None, answer: options.Answer
) -> int:
    """Show how a job changes over many windows: drift, sudden changes, a daily swing, ranks that get slower.

    TRACES are as for `tracekit slowrank`: a run that grew by `tracekit ingest --append`, or traces with several windows
    of each rank. Of a single window, the steps are compared. Only changes that pass a test of significance count.

    \b
    tracekit trend run/
    tracekit trend run/ --fail-on slower,rank_drift --json -
    """
    with source.analysed("windows") as (run, progress):
        finding = analyse(run, cut.mesh, cut.order, cut.steps, progress)
        recorded = run.last_ns() if html_to else 0
    text = trend_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(trend_document(finding)),
        lambda: fenced_markdown(text),
        (lambda: trend_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return exit_codes.of_verdict(finding.verdict, fail_on)

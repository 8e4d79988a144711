"""The command `tracekit breakdown`: validate, analyse, render."""

import click

from tracekit.analysis.breakdown.analyse import analyse
from tracekit.page.shell import date_text
from tracekit.report.breakdown_json import breakdown_document
from tracekit.report.breakdown_text import breakdown_text
from tracekit.report.html.breakdown import breakdown_html
from tracekit.report.markdown import fenced_markdown
from tracekit.report.slowrank_json import dumps

from .. import options
from ..source import Source, source


@click.command()
@options.cut()
@options.html()
@options.answer()
@source()
def breakdown(source: Source, cut: options.Cut, html_to: str | None, answer: options.Answer) -> int:
    """Show the parts of each step: compute, exposed communication by axis, bubble, host, idle.

    The parts of a step add up to it; parts that the traces do not show are `unknown` or `either`. A second table shows
    how much each axis moved, how fast, and by which formula. TRACES are as for `tracekit slowrank`.

    \b
    tracekit breakdown traces/
    tracekit breakdown traces/ --steps 3:8 --json -
    """
    with source.analysed() as (run, progress):
        finding = analyse(run, cut.mesh, cut.order, cut.steps, progress)
        recorded = run.last_ns() if html_to else 0
    text = breakdown_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(breakdown_document(finding)),
        lambda: fenced_markdown(text),
        (lambda: breakdown_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return 0

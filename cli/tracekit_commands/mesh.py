"""The command `tracekit mesh`: validate, analyse, render."""

import click

from tracekit.analysis.places import places
from tracekit.page.shell import date_text
from tracekit.report.html.mesh import mesh_html
from tracekit.report.markdown import labelled_markdown
from tracekit.report.mesh import mesh_document_of, mesh_lines
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps

from .. import options
from ..source import Source, source


@click.command()
@options.axes()
@options.html()
@options.answer()
@source()
def mesh(source: Source, axes: options.Axes, html_to: str | None, answer: options.Answer) -> int:
    """Show the mesh of the job, and the process groups that it was inferred from.

    A given mesh is checked against the groups. TRACES are as for `tracekit slowrank`; steps are not needed.

    \b
    tracekit mesh traces/
    tracekit mesh traces/ --mesh tp=8,cp=1,pp=16,dp=128
    tracekit mesh traces/ --json - | jq .coords
    """
    with source.analysed() as (run, progress):
        finding = places(run, axes.mesh, axes.order, progress)
        recorded = run.last_ns() if html_to else 0
    lines = mesh_lines(finding, verbose=answer.verbose)
    answer.emit(
        laid_out(lines),
        lambda: dumps(mesh_document_of(finding)),
        lambda: labelled_markdown(lines),
        (lambda: mesh_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return 0

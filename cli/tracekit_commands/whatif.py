"""The command `tracekit whatif`: validate, analyse, render."""

import click

from tracekit.analysis.questions.answer import answer as priced
from tracekit.axes import AXES
from tracekit.page.shell import date_text
from tracekit.report.html.whatif import whatif_html
from tracekit.report.markdown import labelled_markdown
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps
from tracekit.report.whatif_text import whatif_document, whatif_lines

from .. import options
from ..completion import several_of
from ..source import Source, source


@click.command()
@click.option(
    "--fix",
    multiple=True,
    metavar="rank=5,stage=3,axis=tp,op=all_gather",
    shell_complete=several_of(("rank=", "stage=", *(f"axis={axis}" for axis in AXES), "op=")),
    help="What is to be typical; repeatable. The standard questions if left out.",
)
@options.cut()
@options.html()
@options.answer()
@source()
def whatif(
    source: Source, fix: tuple[str, ...], cut: options.Cut, html_to: str | None, answer: options.Answer
) -> int:
    """Show how long a step would take if a rank, a stage, an axis or an operation type were typical.

    Each fix is priced alone, and all fixes together. Without a fix: all ranks, the worst ranks, each axis and each
    stage. TRACES are as for `tracekit slowrank`.

    \b
    tracekit whatif traces/
    tracekit whatif traces/ --fix rank=5
    tracekit whatif traces/ --fix stage=3,axis=tp --fix op=all_gather --json -
    """
    with source.analysed() as (run, progress):
        finding = priced(run, fix, cut.mesh, cut.order, cut.steps, progress)
        recorded = run.last_ns() if html_to else 0
    lines = whatif_lines(finding, verbose=answer.verbose)
    answer.emit(
        laid_out(lines),
        lambda: dumps(whatif_document(finding)),
        lambda: labelled_markdown(lines),
        (lambda: whatif_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return 0

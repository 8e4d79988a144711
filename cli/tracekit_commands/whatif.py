"""The command `tracekit whatif`: validate, analyse, render."""

import click

from tracekit.analysis.questions.answer import answer as priced
from tracekit.analysis.questions.layouts import parse_layout
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


def _meshes(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the meshes as given. Raises UsageError where a text describes no mesh, before any trace is read."""
    for text in texts:
        parse_layout(text)
    return texts


@click.command()
@click.option(
    "--fix",
    multiple=True,
    metavar="rank=5,stage=3,axis=tp,op=all_gather",
    shell_complete=several_of(("rank=", "stage=", *(f"axis={axis}" for axis in AXES), "op=")),
    help="What is to be typical; repeatable. The standard questions if left out.",
)
@click.option(
    "--to-mesh",
    multiple=True,
    metavar="tp=1,dp=4",
    callback=_meshes,
    help="Predict the step of the same job on this mesh; repeatable.",
)
@options.cut()
@options.html()
@options.answer()
@source()
def whatif(
    source: Source,
    fix: tuple[str, ...],
    to_mesh: tuple[str, ...],
    cut: options.Cut,
    html_to: str | None,
    answer: options.Answer,
) -> int:
    """Show how long a step would take if a rank, a stage, an axis or an operation type were typical.

    Each fix is priced alone, and all fixes together. Without a fix: all ranks, the worst ranks, each axis and each
    stage. --to-mesh predicts the step on another mesh, which uses no axis beyond those of the recorded one. TRACES
    are as for `tracekit slowrank`.

    \b
    tracekit whatif traces/
    tracekit whatif traces/ --fix rank=5
    tracekit whatif traces/ --fix stage=3,axis=tp --fix op=all_gather --json -
    tracekit whatif traces/ --to-mesh tp=4,dp=16 --to-mesh tp=8,dp=8
    """
    with source.analysed() as (run, progress):
        finding = priced(run, fix, cut.mesh, cut.order, cut.steps, progress, to_mesh)
        recorded = run.last_ns() if html_to else 0
    lines = whatif_lines(finding, verbose=answer.verbose)
    answer.emit(
        laid_out(lines),
        lambda: dumps(whatif_document(finding)),
        lambda: labelled_markdown(lines),
        (lambda: whatif_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return 0

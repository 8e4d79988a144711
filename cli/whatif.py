"""The command `tracekit whatif`: validate, analyse, render."""

import click

from tracekit.analysis.questions.answer import answer
from tracekit.report.markdown import labelled_markdown
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps
from tracekit.report.whatif_json import whatif_document
from tracekit.report.whatif_text import whatif_lines

from . import options
from .output import emit
from .slowrank import analysing, read


@click.command()
@click.argument("traces", nargs=-1, required=True)
@click.option(
    "--fix",
    multiple=True,
    metavar="rank=5,stage=3,axis=tp,op=all_gather",
    help="What is to be typical; repeatable. The standard questions if left out.",
)
@options.cut()
@options.job()
@options.output()
def whatif(
    traces: tuple[str, ...],
    fix: tuple[str, ...],
    mesh: dict[str, int] | None,
    order: tuple[str, ...] | None,
    steps: list[options.StepRange] | None,
    job: int | None,
    json_to: str | None,
    markdown_to: str | None,
    verbose: bool,
    jobs: int | None,
    quiet: bool,
) -> int:
    """Say what a step would take if a rank, a stage, an axis or an operation type were typical.

    Each fix is priced alone, and all of them together. Without one: everybody, the worst ranks, each axis and each
    stage. TRACES are as for `tracekit slowrank`.

    \b
    tracekit whatif traces/
    tracekit whatif traces/ --fix rank=5
    tracekit whatif traces/ --fix stage=3,axis=tp --fix op=all_gather --json -
    """
    run = read(traces, jobs=jobs, job=job, quiet=quiet)
    with analysing(run, quiet=quiet) as progress:
        finding = answer(run, fix, mesh, order, steps, progress)
    lines = whatif_lines(finding, verbose=verbose)
    emit(
        laid_out(lines),
        lambda: dumps(whatif_document(finding)),
        json_to,
        (lambda: labelled_markdown(lines), markdown_to),
    )
    return 0

"""The command `tracekit breakdown`: validate, analyse, render."""

import click

from tracekit.analysis.breakdown.analyse import analyse
from tracekit.report.breakdown_json import breakdown_document
from tracekit.report.breakdown_text import breakdown_text
from tracekit.report.markdown import fenced_markdown
from tracekit.report.slowrank_json import dumps

from . import options
from .output import about, emit
from .slowrank import analysing, read


@click.command()
@click.argument("traces", nargs=-1, required=True)
@options.cut()
@options.job()
@options.output()
def breakdown(
    traces: tuple[str, ...],
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
    """Say what each step consists of: compute, exposed communication by axis, bubble, host, idle.

    The parts of a step add up to it; what the traces do not tell is `unknown` or `either`. Then what each axis moved,
    how fast, and which formula that follows. TRACES are as for `tracekit slowrank`.

    \b
    tracekit breakdown traces/
    tracekit breakdown traces/ --steps 3:8 --json -
    """
    run = read(traces, jobs=jobs, job=job, quiet=quiet)
    with analysing(run, quiet=quiet) as progress, about(traces):
        finding = analyse(run, mesh, order, steps, progress)
    text = breakdown_text(finding, verbose=verbose)
    emit(
        text,
        lambda: dumps(breakdown_document(finding)),
        json_to,
        (lambda: fenced_markdown(text), markdown_to),
    )
    return 0

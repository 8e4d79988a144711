"""The command `tracekit mesh`: validate, analyse, render."""

import click

from tracekit.analysis.places import places
from tracekit.report.markdown import labelled_markdown
from tracekit.report.mesh import mesh_document_of, mesh_lines
from tracekit.report.shared_text import laid_out
from tracekit.report.slowrank_json import dumps

from . import options
from .output import about, emit
from .slowrank import analysing, read


@click.command()
@click.argument("traces", nargs=-1, required=True)
@options.axes()
@options.job()
@options.output()
def mesh(
    traces: tuple[str, ...],
    mesh: dict[str, int] | None,
    order: tuple[str, ...] | None,
    job: int | None,
    json_to: str | None,
    markdown_to: str | None,
    verbose: bool,
    jobs: int | None,
    quiet: bool,
) -> int:
    """Say which mesh the job runs on, and which process groups tell it.

    A mesh that is given is checked against the groups. TRACES are as for `tracekit slowrank`; steps are not needed.

    \b
    tracekit mesh traces/
    tracekit mesh traces/ --mesh tp=8,cp=1,pp=16,dp=128
    tracekit mesh traces/ --json - | jq .coords
    """
    run = read(traces, jobs=jobs, job=job, quiet=quiet)
    with analysing(run, quiet=quiet) as progress, about(traces):
        finding = places(run, mesh, order, progress)
    lines = mesh_lines(finding, verbose=verbose)
    emit(
        laid_out(lines),
        lambda: dumps(mesh_document_of(finding)),
        json_to,
        (lambda: labelled_markdown(lines), markdown_to),
    )
    return 0

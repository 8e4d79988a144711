"""`tracekit ingest`: traces to a Parquet run folder that every other command reads as well."""

from pathlib import Path

import click

from tracekit.text import plain

from . import options
from .slowrank import read


@click.command()
@click.argument("traces", nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder to write; replaced if it is a run."
)
@options.job()
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes that read files.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def ingest(traces: tuple[str, ...], out: Path, job: int | None, jobs: int | None, quiet: bool) -> int:
    """Read TRACES once and keep them as Parquet, so that further questions are answered at once.

    \b
    tracekit ingest traces/ --out run/
    tracekit slowrank run/
    """
    run = read(traces, jobs=jobs, job=job, quiet=quiet, out=out)
    events = sum(r.events for r in run.ranks)
    told = f"{out}: {len(run.ranks)} ranks, {events} events, {len(run.groups)} process groups"
    click.echo(plain(told))
    for rejected in run.rejected:
        click.echo(plain(f"rejected {rejected.path}: {rejected.reason}"), err=True)
    return 0

"""`tracekit ingest`: traces to a Parquet run folder that every other command reads as well."""

import click

from tracekit.text import plain

from ..output import NamedPath
from ..source import Source, source


@click.command()
@click.option(
    "--out",
    type=NamedPath(),
    required=True,
    metavar="DIR|URL",
    help="Folder or URL to write; replaced if it is a run.",
)
@click.option(
    "--append", is_flag=True, help="Read only the files that the run does not hold yet, and add them."
)
@source()
def ingest(source: Source, out: str, append: bool) -> int:
    """Read TRACES once and keep them as Parquet, so that further questions are answered at once.

    \b
    tracekit ingest traces/ --out run/
    tracekit slowrank run/
    tracekit ingest traces/ --out run/ --append
    tracekit ingest traces/ --out s3://bucket/run7
    """
    run = source.read(out, append=append)
    events = sum(r.events for r in run.ranks)
    summary = f"{out}: {len(run.ranks)} ranks, {events} events, {len(run.groups)} process groups"
    click.echo(plain(summary))
    for rejected in run.rejected:
        click.echo(plain(f"rejected {rejected.path}: {rejected.reason}"), err=True)
    return 0

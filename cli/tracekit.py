"""The program `tracekit`."""

import click

from .hang import hang
from .ingest import ingest
from .output import run
from .slowrank import slowrank


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tracekit4d")
def tracekit() -> None:
    """Find out why a distributed training job is slow or stuck.

    \b
    tracekit slowrank traces/
    tracekit hang dumps/
    """


tracekit.add_command(slowrank)
tracekit.add_command(hang)
tracekit.add_command(ingest)


def main() -> None:
    """Entry point of the console script."""
    run("tracekit", tracekit)

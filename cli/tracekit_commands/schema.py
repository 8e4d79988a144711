"""The command `tracekit schema`: the form of an answer, for programs that read it."""

import click

from tracekit.report.schemas import DOCUMENTS, json_schema
from tracekit.report.slowrank_json import dumps


@click.command()
@click.argument("name", type=click.Choice(sorted(DOCUMENTS)))
def schema(name: str) -> int:
    """Print the JSON Schema (draft 2020-12) of the JSON answer of a command.

    Fields may be added within a schema number: readers skip unknown fields.

    \b
    tracekit schema slowrank > slowrank.schema.json
    """
    click.echo(dumps(json_schema(name)), nl=False)
    return 0

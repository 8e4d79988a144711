"""The command `reftrain schema`: the form of an answer, for programs that read it."""

import json

import click

from reftrain.documents import DOCUMENTS
from tracekit.json_schemas import schema_of


@click.command()
@click.argument("name", type=click.Choice(sorted(DOCUMENTS)))
def schema(name: str) -> int:
    """Print the JSON Schema (draft 2020-12) of the JSON answer of a command.

    Fields may be added within a schema number: readers skip unknown fields.

    \b
    reftrain schema plan > plan.schema.json
    """
    click.echo(json.dumps(schema_of(DOCUMENTS[name]), indent=1))
    return 0

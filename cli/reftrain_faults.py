"""`reftrain faults`: lists what can be planted into a run with `--fault`."""

import dataclasses
import json
from typing import Any

import click


def describe() -> list[dict[str, Any]]:
    """All kinds and bugs: name, axis, what, where it shows first, fields, magnitudes."""
    from reftrain.config.fault_kinds import FAULT_KINDS
    from reftrain.config.fault_spec import fields_of
    from reftrain.faults.bugs import catalogue

    rows: list[dict[str, Any]] = [
        {
            "name": kind.name,
            "axis": None,
            "what": kind.behaviour,
            "shows": None,
            "fields": {name: dataclasses.asdict(field) for name, field in fields_of(kind.name).items()},
            "magnitudes": [],
        }
        for kind in FAULT_KINDS.values()
    ]
    rows += [
        {
            "name": bug.name,
            "axis": bug.axis,
            "what": bug.what,
            "shows": bug.shows,
            "fields": {
                name: {
                    "meaning": field.meaning,
                    "default": field.default,
                    "required": False,
                    "choices": field.choices,
                }
                for name, field in bug.fields.items()
            },
            "magnitudes": [dict(magnitude) for magnitude in bug.magnitudes],
        }
        for bug in catalogue().values()
    ]
    return rows


@click.command()
@click.option(
    "--json", "json_to", type=click.Path(dir_okay=False, allow_dash=True), help="Write JSON; - is stdout."
)
def faults(json_to: str | None) -> None:
    """List the slow, stuck and wrong behaviour that `reftrain run --fault` can plant."""
    rows = describe()
    if json_to:
        text = json.dumps({"schema": "reftrain.faults/1", "faults": rows}, indent=1)
        with click.open_file(json_to, "w") as stream:
            stream.write(text + "\n")
        return
    for row in rows:
        axis = f" [{row['axis']}]" if row["axis"] else ""
        click.echo(
            f"{row['name']}{axis}: {row['what']}" + (f"; shows first: {row['shows']}" if row["shows"] else "")
        )
        for name, field in row["fields"].items():
            click.echo(f"    {name}: {field['meaning']}{_notes(field)}")


def _notes(field: dict[str, Any]) -> str:
    """Default and choices of a field, in brackets where there are any."""
    notes = ["must be given"] if field["required"] else []
    if field["default"] is not None:
        notes.append(f"default {field['default']}")
    if field["choices"]:
        notes.append(f"one of {', '.join(field['choices'])}")
    return f" ({', '.join(notes)})" if notes else ""

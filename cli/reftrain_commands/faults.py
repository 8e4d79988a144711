"""`reftrain faults`: lists what can be planted into a run with `--fault`."""

import json
from collections.abc import Sequence

import click

from reftrain.documents import FaultsDocument, FieldDocument, PlantDocument

from ..output import JSON, emit


def describe() -> list[PlantDocument]:
    """All kinds and bugs: name, axis, what, where it shows first, fields, magnitudes."""
    from reftrain.config.fault_kinds import FAULT_KINDS
    from reftrain.config.fault_spec import fields_of
    from reftrain.faults.bugs import catalogue

    rows: list[PlantDocument] = [
        {
            "name": kind.name,
            "axis": None,
            "what": kind.behaviour,
            "shows": None,
            "fields": {
                name: _field(field.meaning, field.default, field.choices, required=field.required)
                for name, field in fields_of(kind.name).items()
            },
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
                name: _field(field.meaning, field.default, field.choices, required=False)
                for name, field in bug.fields.items()
            },
            "magnitudes": [dict(magnitude) for magnitude in bug.magnitudes],
        }
        for bug in catalogue().values()
    ]
    return rows


def _field(
    meaning: str, default: str | float | None, choices: Sequence[str], *, required: bool
) -> FieldDocument:
    return {"meaning": meaning, "default": default, "required": required, "choices": list(choices)}


@click.command()
@JSON
def faults(json_to: str | None) -> None:
    """List the slow, stuck and wrong behaviour that `reftrain run --fault` can plant."""
    rows = describe()
    document: FaultsDocument = {"schema": "reftrain.faults/1", "faults": rows}
    emit(_text(rows), lambda: json.dumps(document, indent=1) + "\n", json_to)


def _text(rows: Sequence[PlantDocument]) -> str:
    lines = []
    for row in rows:
        axis = f" [{row['axis']}]" if row["axis"] else ""
        shows = f"; shows first: {row['shows']}" if row["shows"] else ""
        lines.append(f"{row['name']}{axis}: {row['what']}{shows}")
        lines += [f"    {name}: {field['meaning']}{_notes(field)}" for name, field in row["fields"].items()]
    return "".join(f"{line}\n" for line in lines)


def _notes(field: FieldDocument) -> str:
    """Default and choices of a field, in brackets where there are any."""
    notes = ["must be given"] if field["required"] else []
    if field["default"] is not None:
        notes.append(f"default {field['default']}")
    if field["choices"]:
        notes.append(f"one of {', '.join(field['choices'])}")
    return f" ({', '.join(notes)})" if notes else ""

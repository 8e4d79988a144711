"""JSON Schemas of the answers, built from the types that their writers are checked against."""

from typing import Any, Final

from tracekit.json_schemas import schema_of
from tracekit.report.breakdown_json import BreakdownDocument
from tracekit.report.diff import DiffDocument
from tracekit.report.documents import HangDocument, SlowRankDocument
from tracekit.report.floor import FloorDocument
from tracekit.report.mesh import PlacesDocument
from tracekit.report.trend_json import TrendDocument
from tracekit.report.triage import TriageDocument
from tracekit.report.whatif_text import WhatIfDocument

DOCUMENTS: Final[dict[str, type]] = {
    "slowrank": SlowRankDocument,
    "whatif": WhatIfDocument,
    "breakdown": BreakdownDocument,
    "floor": FloorDocument,
    "diff": DiffDocument,
    "trend": TrendDocument,
    "mesh": PlacesDocument,
    "hang": HangDocument,
    "triage": TriageDocument,
}
"""The types of the answers by command."""


_HOLDING: Final = {"triage": ("hang", "slowrank")}
"""Answers whose field `answer` is an answer of one of these commands."""


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the answer of a command. Raises KeyError for a name not in `DOCUMENTS`."""
    schema = schema_of(DOCUMENTS[name])
    for held in _HOLDING.get(name, ()):
        part = schema_of(DOCUMENTS[held])
        whole = {key: part[key] for key in part if key not in {"$schema", "$id", "$defs"}}
        schema["$defs"] |= part["$defs"] | {DOCUMENTS[held].__name__: whole}
    if held_by := _HOLDING.get(name):
        choices = [{"$ref": f"#/$defs/{DOCUMENTS[held].__name__}"} for held in held_by]
        for place in (schema, *schema["$defs"].values()):
            if "answer" in place.get("properties", {}):
                place["properties"]["answer"] = {"anyOf": [*choices, {"type": "null"}]}
        schema["$defs"] = dict(sorted(schema["$defs"].items()))
    return schema

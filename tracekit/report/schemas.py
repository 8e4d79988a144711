"""JSON Schemas of the answers, made of the types that their writers are checked against."""

from typing import Any, Final

import msgspec

from tracekit.report.breakdown_document import BreakdownDocument
from tracekit.report.diff_json import DiffDocument
from tracekit.report.documents import HangDocument, PlacesDocument, SlowRankDocument, WhatIfDocument

DOCUMENTS: Final[dict[str, type]] = {
    "slowrank": SlowRankDocument,
    "whatif": WhatIfDocument,
    "breakdown": BreakdownDocument,
    "diff": DiffDocument,
    "mesh": PlacesDocument,
    "hang": HangDocument,
}
"""The answers by the command that gives them."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the answer of a command. Raises KeyError for a name not in `DOCUMENTS`."""
    (top,), parts = msgspec.json.schema_components([DOCUMENTS[name]], ref_template="#/$defs/{name}")
    whole = parts.pop(DOCUMENTS[name].__name__, top)
    return {
        "$schema": DIALECT,
        "$id": whole["properties"]["schema"]["enum"][0],
        **whole,
        "$defs": dict(sorted(parts.items())),
    }

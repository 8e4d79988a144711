"""JSON Schemas of documents, made of the types that their writers are checked against."""

from typing import Any, Final

import msgspec

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(document: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a TypedDict, named by its field `schema`, a Literal."""
    (top,), parts = msgspec.json.schema_components([document], ref_template="#/$defs/{name}")
    whole = parts.pop(document.__name__, top)
    return {
        "$schema": DIALECT,
        "$id": whole["properties"]["schema"]["enum"][0],
        **whole,
        "$defs": dict(sorted(parts.items())),
    }

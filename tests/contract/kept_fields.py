"""Fields of JSON answers with their types: `python -m tests.contract.kept_fields` adds new ones to kept_fields.txt.

A line that is there stays as long as its schema number does (docs/policy.md).
"""

from pathlib import Path

import numerics.report.documents
import reftrain.documents
from tracekit.json_schemas import schema_of
from tracekit.report.schemas import DOCUMENTS, json_schema

FILE = Path(__file__).with_name("kept_fields.txt")
SCHEMAS = [
    *(json_schema(name) for name in DOCUMENTS if name != "triage"),
    schema_of(DOCUMENTS["triage"]),  # without the answers of other schemas that it may hold
    *(schema_of(kind) for kind in numerics.report.documents.DOCUMENTS.values()),
    *(schema_of(kind) for kind in reftrain.documents.DOCUMENTS.values()),
]


def fields_of(schema):
    """A line for each field of a schema: its number, the path ("?" where it may be absent), and its types."""
    types = {}
    _walk(schema, schema["$defs"], "", types)
    return {f"{schema['$id']} {path}: {' or '.join(sorted(types[path]))}" for path in types if path}


def _walk(part, parts, path, types):
    """Put the types of a part of a schema, and of all within it, under their paths."""
    if "$ref" in part:
        part = parts[part["$ref"].rpartition("/")[2]]
    for choice in part.get("anyOf", ()):
        _walk(choice, parts, path, types)
    for kind in [part["type"]] if "type" in part else map(_kind, part.get("enum", ())):
        types.setdefault(path, set()).add(kind)
    for name, inner in part.get("properties", {}).items():
        absent = "" if name in part["required"] else "?"
        _walk(inner, parts, f"{path}.{name}{absent}".removeprefix("."), types)
    for inner in (part.get("items"), part.get("additionalProperties"), *part.get("prefixItems", ())):
        if isinstance(inner, dict):
            _walk(inner, parts, f"{path}[]", types)


def _kind(value):
    return (
        "null"
        if value is None
        else {"str": "string", "int": "integer", "bool": "boolean"}[type(value).__name__]
    )


if __name__ == "__main__":
    kept = FILE.read_text().splitlines() if FILE.exists() else []
    FILE.write_text("\n".join(sorted({*kept}.union(*map(fields_of, SCHEMAS)))) + "\n")

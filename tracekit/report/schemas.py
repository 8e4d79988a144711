"""JSON Schemas of the answers, built from the types that their writers are checked against."""

from typing import Any, Final

from tracekit.json_schemas import schema_of
from tracekit.report.breakdown_document import BreakdownDocument
from tracekit.report.diff_json import DiffDocument
from tracekit.report.documents import HangDocument, PlacesDocument, SlowRankDocument, WhatIfDocument
from tracekit.report.trend_json import TrendDocument

DOCUMENTS: Final[dict[str, type]] = {
    "slowrank": SlowRankDocument,
    "whatif": WhatIfDocument,
    "breakdown": BreakdownDocument,
    "diff": DiffDocument,
    "trend": TrendDocument,
    "mesh": PlacesDocument,
    "hang": HangDocument,
}
"""The types of the answers by command."""


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a command's answer. Raises KeyError for a name not in `DOCUMENTS`."""
    return schema_of(DOCUMENTS[name])

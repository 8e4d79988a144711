"""The contract `numerics.compare/1`, field by field, in a fixed order."""

import json
import math
from collections.abc import Mapping
from typing import Any

from numerics.findings import COMPARE_SCHEMA, Cell, CompareFinding, Divergence, TensorDifference
from numerics.precision.beside import LadderBeside
from numerics.report.documents import CellDocument, CompareDocument, DifferenceDocument, DivergenceDocument
from numerics.report.ladder import ladder_document


def compare_document(finding: CompareFinding, ladder: LadderBeside | None = None) -> CompareDocument:
    """Return the finding as a JSON-ready dict, with the ladder's own document where there is one."""
    climbed = None if ladder is None else ladder.finding
    counts = finding.tensors
    return {
        "schema": COMPARE_SCHEMA,
        "verdict": finding.verdict,
        "proof": finding.proof,
        "reason": finding.reason,
        "runs": {"parallel": finding.parallel, "baseline": finding.baseline, "replay": finding.replay},
        "first_divergence": _divergence(finding.first_divergence),
        "explanation": finding.explanation,
        "tensors": {
            "compared": counts.compared,
            "identical": counts.identical,
            "explained": counts.explained,
            "unexplained": counts.unexplained,
            "only_in_one": counts.only_one,
        },
        "replayed_rows": {"compared": counts.rows_replayed, "different": counts.rows_different},
        "worst": [_difference(row) for row in finding.largest_differences],
        "invariants": list(finding.invariants),
        "plan": list(finding.plan),
        "could_not_have_seen": list(finding.could_not_have_seen),
        "next": finding.next,
        "notes": list(finding.notes),
        "modules": [_cell(cell) for cell in finding.cells],
        "not_checked": list(finding.not_checked),
        "ladder": None if climbed is None else ladder_document(climbed),
    }


def _divergence(found: Divergence | None) -> DivergenceDocument | None:
    if found is None:
        return None
    return {
        "step": found.step,
        "phase": found.phase,
        "microbatch": found.micro_batch,
        "module": found.module,
        "tensor": found.tensor,
        "collective": found.collective,
        "axis": found.axis,
        "ranks": list(found.ranks),
        "evidence": found.evidence,
    }


def _difference(row: TensorDifference) -> DifferenceDocument:
    return {
        "tensor": row.tensor,
        "step": row.step,
        "max_ulp": _number(row.max_ulp),
        "rel": _number(row.rel),
        "cosine": _number(row.cosine),
        "ratio": _number(row.ratio),
    }


def _cell(cell: Cell) -> CellDocument:
    return {
        "module": cell.module,
        "step": cell.step,
        "phase": cell.phase,
        "tensors": cell.tensors,
        "differ": cell.differ,
        "unexplained": cell.unexplained,
        "rel": _number(cell.rel),
    }


def _number(value: float | None) -> float | None:
    """Return a number for JSON: None for infinity and NaN, nine digits, which are more than a difference has."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.9g}")


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as stable ASCII JSON, with a newline at the end."""
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"

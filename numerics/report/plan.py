"""The answer of `numerics plan` as text and as JSON (`numerics.plan/1`)."""

from numerics.order.plan_differences import PlanDifference
from numerics.order.plan_finding import PLAN_SCHEMA, PlanFinding, TensorGroup
from numerics.report.documents import PlanDifferenceDocument, PlanDocument
from numerics.thresholds.report import DIFFERENCES_SHOWN, TENSORS_SHOWN
from tracekit.text import plain


def plan_text(finding: PlanFinding, *, verbose: bool = False) -> str:
    """Return the finding as lines for a terminal, with a newline at the end."""
    most = len(finding.differences) if verbose else DIFFERENCES_SHOWN
    found = finding.differences
    lines = [
        f"{len(found)} differences between the order plans ({finding.reductions} reductions)"
        if found or finding.local
        else f"the order plans are the same ({finding.reductions} reductions): every tensor must be equal in bits"
    ]
    lines += [f"  {name}: {mine}, not {other}" for name, mine, other in finding.local]
    lines += [f"  {difference.sentence}" for difference in found[:most]]
    if len(found) > most:
        lines.append(f"  … and {len(found) - most} more (--verbose)")
    if found or finding.local:
        lines += [_row(row, verbose=verbose) for row in finding.tensors if verbose or row.step <= 0]
    return "".join(plain(line, "?") + "\n" for line in lines)


def _row(row: TensorGroup, *, verbose: bool) -> str:
    group = f"step {row.step} {row.phase} {row.kind}"
    count = len(row.may_differ)
    if not count:
        return f"{group}: all {row.captured} must be equal"
    if count == row.captured:
        return f"{group}: all {row.captured} may differ"
    shown = row.may_differ if verbose else row.may_differ[:TENSORS_SHOWN]
    rest = f", … ({count})" if count > len(shown) else ""
    return f"{group}: {count} of {row.captured} may differ: {', '.join(shown)}{rest}"


def plan_document(finding: PlanFinding) -> PlanDocument:
    """Return the finding as a JSON-ready dict."""
    return {
        "schema": PLAN_SCHEMA,
        "runs": [finding.run, finding.other],
        "reductions": finding.reductions,
        "differences": [_difference(d) for d in finding.differences],
        "local": [{"name": name, "left": mine, "right": other} for name, mine, other in finding.local],
        "tensors": [
            {
                "step": row.step,
                "phase": row.phase,
                "kind": row.kind,
                "captured": row.captured,
                "may_differ": list(row.may_differ),
            }
            for row in finding.tensors
        ],
    }


def _difference(found: PlanDifference) -> PlanDifferenceDocument:
    return {
        "label": found.label,
        "axis": found.axis,
        "op": found.op,
        "phase": found.phase,
        "field": found.field,
        "left": found.left,
        "right": found.right,
        "ranks": list(found.ranks),
        "sentence": found.sentence,
        "order_only": found.is_order,
    }

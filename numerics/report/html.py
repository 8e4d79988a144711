"""The finding as one HTML page without scripts or outside references; every text from a file is escaped."""

from html import escape

from numerics.findings import Cell, CompareFinding
from numerics.report.page import facts, field, listed, page, picture, strength, text
from numerics.report.text import compare_text
from numerics.thresholds.report import RANKS_IN_PAGE


def compare_html(finding: CompareFinding) -> str:
    """Return one page: verdict, place, picture of modules by step and phase, largest differences, blind spots."""
    title = f"numerics: {finding.verdict.replace('_', ' ')}"
    parts = [
        f"<h1>{text(title)}</h1>",
        f'<div class="verdict {finding.verdict}"><p>{text(finding.reason)}</p>{_facts(finding)}</div>',
        _picture(finding.cells),
        _largest(finding),
        listed("Broken invariants", finding.invariants),
        listed("Recorded plan against declared plan", finding.plan),
        listed("What this run could not have exposed", finding.could_not_have_seen),
        listed("Not checked", finding.not_checked),
        listed("Notes", finding.notes),
        f"<h2>As text</h2><pre>{escape(compare_text(finding, verbose=True))}</pre>",
    ]
    return page(title, parts)


def _facts(finding: CompareFinding) -> str:
    """Return the table of runs, proof, place and explanation."""
    found = finding.first_divergence
    rows = [
        ("run", finding.parallel),
        ("baseline", finding.baseline or "none"),
        ("replay", finding.replay or "none"),
    ]
    rows.append(("proof", finding.proof.replace("_", " ")))
    if found is not None:
        place = f"step {found.step}, {found.phase}" + (
            "" if found.micro_batch is None else f", micro-batch {found.micro_batch}"
        )
        rows += [("first divergence", place), ("tensor", found.tensor), ("module", found.module or "-")]
        rows += [("collective", found.collective or "-"), ("axis", found.axis or "-")]
        rows += [
            ("ranks", ", ".join(str(r) for r in found.ranks[:RANKS_IN_PAGE])),
            ("evidence", found.evidence),
        ]
    if finding.explanation:
        rows.append(("explanation", finding.explanation))
    if finding.next:
        rows.append(("next", finding.next))
    return facts(rows)


def _picture(cells: tuple[Cell, ...]) -> str:
    """Return the picture: modules downwards, steps and phases to the right; red: unexplained, amber: by order."""
    if not cells:
        return ""
    return (
        "<h2>Where</h2><p>Green: equal bits. Amber: differs by order. Red: unexplained. Stronger: larger.</p>"
        + picture({(c.module, c.step, c.phase): _field(c) for c in cells})
    )


def _field(cell: Cell) -> str:
    colour = "194,50,31" if cell.unexplained else "214,158,46" if cell.differ else "44,122,75"
    words = f"{cell.differ} of {cell.tensors} differ" + (
        "" if cell.rel is None else f", relative {cell.rel:.1e}"
    )
    return field(colour, strength(cell.rel) if cell.differ else 0.35, words)


def _largest(finding: CompareFinding) -> str:
    if not finding.largest_differences:
        return ""
    rows = "".join(
        f"<tr><td><code>{text(w.tensor)}</code></td><td class=n>{w.step}</td>"
        + "".join(
            f"<td class=n>{'-' if v is None else format(v, spec)}</td>"
            for v, spec in ((w.max_ulp, ".0f"), (w.rel, ".2e"), (w.cosine, ".6f"), (w.ratio, ".6f"))
        )
        + "</tr>"
        for w in finding.largest_differences
    )
    head = "".join(f"<th>{h}</th>" for h in ("tensor", "step", "max ulp", "rel", "cosine", "ratio"))
    return f"<h2>Differ most from the baseline</h2><table><tr>{head}</tr>{rows}</table>"

"""The finding as one HTML page without scripts or outside references; every text from a file is escaped."""

from html import escape

from numerics.findings import Cell, CompareFinding
from numerics.report.text import compare_text
from numerics.thresholds.report import RANKS_IN_PAGE

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2024;background:#fff}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:1.8rem 0 .5rem}
.bug,.precision_policy{border-left:.4rem solid #c2321f}
.drift,.identical,.signed_zero,.reporting_only{border-left:.4rem solid #2c7a4b}
.undecided,.incomparable{border-left:.4rem solid #b7791f}.verdict{padding:.6rem 1rem;background:#f5f6f8}
table{border-collapse:collapse;font-size:13px}td,th{padding:.15rem .5rem;text-align:left}
th{font-weight:600}td.n{text-align:right;font-variant-numeric:tabular-nums}
.map td{width:1.4rem;height:1.1rem;padding:0;border:1px solid #fff}.map th{font-weight:400;white-space:nowrap}
.map thead th{writing-mode:vertical-rl;height:7rem}.scroll{overflow-x:auto}
code{font:13px ui-monospace,monospace;background:#f0f1f3;padding:.1rem .3rem}
pre{overflow-x:auto;background:#f5f6f8;padding:1rem}
@media(prefers-color-scheme:dark){
body{color:#e6e8ea;background:#15181b}.verdict,pre,code{background:#23272b}
.map td{border-color:#15181b}}
"""


def compare_html(finding: CompareFinding) -> str:
    """Return one page: verdict, place, picture of modules by step and phase, largest differences, blind spots."""
    title = f"numerics: {finding.verdict.replace('_', ' ')}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<div class="verdict {finding.verdict}"><p>{escape(finding.reason)}</p>{_facts(finding)}</div>',
        _picture(finding.cells),
        _largest(finding),
        _list("Broken invariants", finding.invariants),
        _list("Recorded plan against declared plan", finding.plan),
        _list("What this run could not have exposed", finding.could_not_have_seen),
        _list("Not checked", finding.not_checked),
        _list("Notes", finding.notes),
        f"<h2>As text</h2><pre>{escape(compare_text(finding, verbose=True))}</pre>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


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
    return (
        "<table>"
        + "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
        + "</table>"
    )


def _picture(cells: tuple[Cell, ...]) -> str:
    """Return the picture: modules downwards, steps and phases to the right; red: unexplained, amber: by order."""
    if not cells:
        return ""
    columns = sorted({(c.step, _PHASES.get(c.phase, 9), c.phase) for c in cells})
    modules = list(dict.fromkeys(c.module for c in cells))
    at = {(c.module, c.step, c.phase): c for c in cells}
    head = "".join(f"<th>{step} {escape(phase)}</th>" for step, _, phase in columns)
    body = "".join(
        f"<tr><th>{escape(module)}</th>"
        + "".join(_field(at.get((module, step, phase))) for step, _, phase in columns)
        + "</tr>"
        for module in modules
    )
    return (
        "<h2>Where</h2><p>Green: equal bits. Amber: differs by order. Red: unexplained. Stronger: larger.</p>"
        f'<div class="scroll"><table class="map"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_PHASES = {"init": 0, "forward": 1, "backward": 2, "reduce": 3, "step": 4, "save": 5}


def _field(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    colour = "194,50,31" if cell.unexplained else "214,158,46" if cell.differ else "44,122,75"
    depth = 0.35 if not cell.differ else min(1.0, 0.45 + 0.06 * max(0.0, 9 + _exponent(cell.rel)))
    words = f"{cell.differ} of {cell.tensors} differ" + (
        "" if cell.rel is None else f", relative {cell.rel:.1e}"
    )
    return f'<td style="background:rgba({colour},{depth:.2f})" title="{escape(words)}"></td>'


def _exponent(value: float | None) -> float:
    """Return the decimal exponent of a relative size, for the depth of a colour."""
    if value is None or not 0 < value < float("inf"):
        return 0.0
    return float(f"{value:e}".partition("e")[2])


def _largest(finding: CompareFinding) -> str:
    if not finding.largest_differences:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(w.tensor)}</code></td><td class=n>{w.step}</td>"
        + "".join(
            f"<td class=n>{'-' if v is None else format(v, spec)}</td>"
            for v, spec in ((w.max_ulp, ".0f"), (w.rel, ".2e"), (w.cosine, ".6f"), (w.ratio, ".6f"))
        )
        + "</tr>"
        for w in finding.largest_differences
    )
    head = "".join(f"<th>{h}</th>" for h in ("tensor", "step", "max ulp", "rel", "cosine", "ratio"))
    return f"<h2>Differ most from the baseline</h2><table><tr>{head}</tr>{rows}</table>"


def _list(title: str, rows: tuple[str, ...]) -> str:
    if not rows:
        return ""
    return f"<h2>{escape(title)}</h2><ul>" + "".join(f"<li>{escape(row)}</li>" for row in rows) + "</ul>"

"""The finding as one HTML page without scripts or outside references; every text from a file is escaped."""

from html import escape

from numerics.findings import Cell, CompareFinding
from numerics.precision.beside import LadderBeside
from numerics.report.ladder_html import sections, verdict_box
from numerics.report.page import facts, field, listed, page, picture, strength, text
from numerics.report.text import LADDER_TELLS, compare_text, first_words, headline
from numerics.thresholds.report import MODULES_DRAWN, RANKS_IN_PAGE, STEPS_DRAWN


def compare_html(finding: CompareFinding, ladder: LadderBeside | None = None) -> str:
    """Return one page: verdict, place, modules by step and phase, largest differences, ladder, blind spots."""
    title = f"numerics: {finding.verdict.replace('_', ' ')}"
    parts = [
        f"<h1>{text(title)}</h1>",
        f'<div class="verdict {finding.verdict}"><p>{text(headline(finding))}</p>{_facts(finding)}</div>',
        _picture(finding.cells),
        _largest(finding),
        *_ladder(finding, ladder),
        listed("Broken invariants", finding.invariants),
        listed("Recorded plan against declared plan", finding.plan),
        listed("What this run could not have exposed", finding.could_not_have_seen),
        listed("Not checked", finding.not_checked),
        listed("Notes", finding.notes),
        f"<h2>As text</h2><pre>{escape(compare_text(finding, ladder, verbose=True))}</pre>",
    ]
    return page(title, parts)


def _ladder(finding: CompareFinding, beside: LadderBeside | None) -> list[str]:
    """Return the ladder with its verdict and sections, else why there is none and the command that makes one."""
    if beside is None:
        return []
    title = "<h2>The precision ladder</h2>"
    if beside.finding is None:
        told = f"{title}<p>{text(LADDER_TELLS)} No ladder: {text(beside.why_not)}.</p>"
        return [
            told
            if beside.command is None
            else f"{told}<p>To show it: <code>{text(beside.command)}</code></p>"
        ]
    proof = "on no proof" if finding.proof == "none" else f"on its proof, {finding.proof.replace('_', ' ')}"
    told = f"<p>{text(LADDER_TELLS)} The verdict above rests {text(proof)}, not on the ladder.</p>"
    notes = f"<p>Limits: {text('; '.join(beside.finding.notes))}.</p>"
    return [title, told, verdict_box(beside.finding), notes, *sections(beside.finding)]


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
        rows += [
            (first_words(finding.verdict), place),
            ("tensor", found.tensor),
            ("module", found.module or "-"),
        ]
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
    full = len({c.module for c in cells}) == MODULES_DRAWN or len({c.step for c in cells}) == STEPS_DRAWN
    bound = f" At most {MODULES_DRAWN} modules and {STEPS_DRAWN} steps are drawn: the first." if full else ""
    return (
        f"<h2>Where</h2><p>Green: equal bits. Amber: differs by order. Red: unexplained. Stronger: larger.{bound}</p>"
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

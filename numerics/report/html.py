"""The finding as one HTML page without scripts or outside references; every text from a file is escaped."""

from numerics.findings import Cell, CompareFinding, TensorDifference
from numerics.precision.beside import LadderBeside
from numerics.report.json import compare_document, dumps
from numerics.report.ladder_html import Ladder, ladder_of
from numerics.report.page import Field, answer_page, next_of, picture, strength
from numerics.report.text import LADDER_TELLS, compare_text, first_words, headline
from numerics.thresholds.report import MODULES_DRAWN, RANKS_IN_PAGE, STEPS_DRAWN
from tracekit.page.shell import About


def compare_html(
    finding: CompareFinding, ladder: LadderBeside | None = None, about: About | None = None
) -> str:
    """Return one page: verdict, place, modules by step and phase, largest differences, ladder, blind spots."""
    cells = finding.cells
    full = len({c.module for c in cells}) == MODULES_DRAWN or len({c.step for c in cells}) == STEPS_DRAWN
    return answer_page(
        "compare.html.j2",
        title=f"numerics: {finding.verdict.replace('_', ' ')}",
        verdict=finding.verdict,
        headline=headline(finding),
        next_step=finding.next or _next(finding),
        facts=_facts(finding),
        document=("compare", dumps(compare_document(finding, ladder))),
        about=about,
        cells=picture({(c.module, c.step, c.phase): _field(c) for c in cells}),
        bound=f"At most {MODULES_DRAWN} modules and {STEPS_DRAWN} steps are drawn: the first."
        if full
        else "",
        largest=[_row(w) for w in finding.largest_differences],
        beside=ladder,
        ladder=_ladder(ladder),
        ladder_tells=LADDER_TELLS,
        proof="on no proof"
        if finding.proof == "none"
        else f"on its proof, {finding.proof.replace('_', ' ')}",
        lists=[
            ("Broken invariants", finding.invariants),
            ("Recorded plan against declared plan", finding.plan),
            ("What this run could not have exposed", finding.could_not_have_seen),
            ("Not checked", finding.not_checked),
            ("Notes", finding.notes),
        ],
        text=compare_text(finding, ladder, verbose=True),
    )


def _next(finding: CompareFinding) -> str | None:
    """Return what to do, by the verdict and the first place where the runs differ."""
    found = finding.first_divergence
    if found is None:
        return next_of(finding.verdict, "", -1, "")
    return next_of(finding.verdict, found.module or found.tensor, found.step, found.phase)


def _ladder(beside: LadderBeside | None) -> Ladder | None:
    """Return the ladder as the page shows it; None without one."""
    return None if beside is None or beside.finding is None else ladder_of(beside.finding)


def _facts(finding: CompareFinding) -> list[tuple[str, str]]:
    """Return the runs, proof, place and explanation by name."""
    found = finding.first_divergence
    rows = [
        ("run", finding.parallel),
        ("baseline", finding.baseline or "none"),
        ("replay", finding.replay or "none"),
        ("proof", finding.proof.replace("_", " ")),
    ]
    if found is not None:
        place = f"step {found.step}, {found.phase}" + (
            "" if found.micro_batch is None else f", micro-batch {found.micro_batch}"
        )
        rows += [
            (first_words(finding.verdict), place),
            ("tensor", found.tensor),
            ("module", found.module or "-"),
            ("collective", found.collective or "-"),
            ("axis", found.axis or "-"),
            ("ranks", ", ".join(str(r) for r in found.ranks[:RANKS_IN_PAGE])),
            ("evidence", found.evidence),
        ]
    if finding.explanation:
        rows.append(("explanation", finding.explanation))
    return rows


def _field(cell: Cell) -> Field:
    """Return the field of a cell: equal bits are calm, what no order of sums explains is the culprit."""
    words = f"{cell.differ} of {cell.tensors} differ" + (
        "" if cell.rel is None else f", relative {cell.rel:.1e}"
    )
    if not cell.differ:
        return Field("panel", 1.0, words)
    return Field("culprit" if cell.unexplained else "rounding", strength(cell.rel), words)


def _row(worst: TensorDifference) -> tuple[str, ...]:
    """Return a row of the table of tensors that differ most."""
    sizes = (
        (worst.max_ulp, ".0f"),
        (worst.rel, ".2e"),
        (worst.cosine, ".6f"),
        (worst.ratio, ".6f"),
    )
    return (
        worst.tensor,
        str(worst.step),
        *("-" if value is None else format(value, spec) for value, spec in sizes),
    )

"""The table of docs/public_reports.md: a row for each report."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.reports.report import Answer, Report

HEAD = "| report | input | a right answer | the answer | judged |\n|---|---|---|---|---|"
KINDS = ("slow", "stuck", "wrong")
LONGEST = 220
DOCS = Path(__file__).parents[2] / "docs" / "public_reports.md"
Told = tuple[Report, Answer, str]


def row(report: Report, answer: Answer, judgement: str) -> str:
    """A row of the table."""
    return f"| {report.source} | {report.input} | {report.expected} | {short(answer)} | {judgement} |"


def short(answer: Answer) -> str:
    """The first line of an answer that says something, cut to the table's width."""
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    first = lines[0] if lines else "no answer"
    first = first.replace("|", "/")
    return first if len(first) <= LONGEST else f"{first[:LONGEST].rsplit(' ', maxsplit=1)[0]} …"


def summary(told: Sequence[Told]) -> str:
    """How many are judged how, by kind."""
    lines = []
    for kind in KINDS:
        counts = Counter(judgement for report, _, judgement in told if report.kind == kind)
        if counts:
            parts = ", ".join(f"{count} {judgement}" for judgement, count in sorted(counts.items()))
            lines.append(f"{kind}: {parts}")
    return "\n".join(lines)


def rewrite(page: Path, told: Sequence[Told]) -> None:
    """Replace the tables of a page, each of which stands behind a heading of its kind, and leave its prose."""
    text = page.read_text(encoding="utf-8")
    for kind in KINDS:
        rows = [row(*each) for each in told if each[0].kind == kind]
        mark = f"<!-- {kind} -->"
        if rows and mark in text:
            before, _, rest = text.partition(mark)
            _, _, after = rest.partition("<!-- end -->")
            text = f"{before}{mark}\n\n{HEAD}\n" + "\n".join(rows) + f"\n\n<!-- end -->{after}"
    page.write_text(text, encoding="utf-8")


def judged(page: Path) -> dict[str, str]:
    """The judgement of each report that stands in the tables of a page."""
    found = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == HEAD.splitlines()[0].count("|") - 1 and "#" in cells[0]:
            found[cells[0]] = cells[-1]
    return found

"""The table of all answers as Markdown, and its counts."""

from collections import Counter
from collections.abc import Sequence

from tests.trainers.score import JUDGEMENTS, Row


def counts(rows: Sequence[Row]) -> str:
    """A table: answers about healthy and broken trainers by judgement."""
    lines = ["| trainers | answers | " + " | ".join(JUDGEMENTS) + " |", "|---" * (len(JUDGEMENTS) + 2) + "|"]
    for name, broken in (("healthy", False), ("broken", True)):
        chosen = [row for row in rows if bool(row.planted) == broken]
        found = Counter(row.judgement for row in chosen)
        cells = [name, str(len(chosen)), *(str(found[judgement]) for judgement in JUDGEMENTS)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    """A table: one line for each case and question."""
    lines = ["| case | asked | verdict | exit | judged | first line |", "|---|---|---|---|---|---|"]
    for row in rows:
        first = row.first_line.replace("|", "\\|")
        cells = [f"`{row.case}`", row.question, row.verdict, str(row.code), row.judgement, first]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(rows: Sequence[Row]) -> str:
    """Counts, then healthy trainers, then broken ones."""
    healthy = [row for row in rows if not row.planted]
    broken = [row for row in rows if row.planted]
    parts = [counts(rows), "### Healthy trainers", table(healthy), "### Broken trainers", table(broken)]
    return "\n\n".join(parts)

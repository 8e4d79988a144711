"""The finding for a terminal: the verdict first, then place, explanation, counts and blind spots."""

from collections.abc import Sequence
from typing import Final

from numerics.findings import NOT_CHECKED, CompareFinding, Divergence, TensorDifference
from numerics.precision.beside import LadderBeside
from numerics.report.ladder import ladder_text, shortened
from numerics.thresholds.report import COLUMNS, LARGEST_SHOWN, LINES_SHOWN, RANKS_IN_TEXT
from tracekit.text import plain

_WORDS = {
    "identical": "IDENTICAL",
    "drift": "DRIFT, not a bug",
    "rounding": "ROUNDING, not a bug",
    "precision_policy": "PRECISION POLICY",
    "reporting_only": "REPORTING ONLY",
    "signed_zero": "SIGNED ZERO",
    "bug": "BUG",
    "incomparable": "INCOMPARABLE",
    "undecided": "UNDECIDED",
}


LADDER_TELLS: Final = (
    "The same pair of runs in finer formats: rounding falls with the format, a bug does not."
)
"""What the precision ladder is, in a sentence."""


def compare_text(
    finding: CompareFinding, ladder: LadderBeside | None = None, *, verbose: bool = False
) -> str:
    """Return the finding as lines for a terminal, with the ladder where there is one, and a newline at the end."""
    lines = [headline(finding)]
    if finding.proof != "none":
        lines.append(f"proof: {finding.proof.replace('_', ' ')}")
    if finding.first_divergence is not None:
        lines += _divergence(finding.first_divergence, finding.verdict)
    if finding.explanation:
        lines.append(f"  explanation  {finding.explanation}")
    lines += _counts(finding)
    shown = finding.largest_differences if verbose else finding.largest_differences[:LARGEST_SHOWN]
    if shown:
        lines += _differences(shown)
    lines += _ladder(ladder)
    lines += _listed("broken invariants", finding.invariants, verbose=verbose)
    lines += _listed("recorded plan against declared plan", finding.plan, verbose=verbose)
    lines += _listed("could not have seen", finding.could_not_have_seen, verbose=verbose)
    lines += _listed("not checked", finding.not_checked, verbose=True)
    lines += _listed("notes", finding.notes, verbose=True)
    if finding.next:
        lines.append(f"next: {finding.next}")
    return "".join(plain(line, "?") + "\n" for line in lines)


def headline(finding: CompareFinding) -> str:
    """Return the verdict and its reason in one sentence; what the verdict does not cover follows its word."""
    word = _WORDS[finding.verdict]
    reason, _, unseen = finding.reason.partition(NOT_CHECKED)
    if not unseen:
        return f"{word}: {reason}"
    first, _, last = unseen.rpartition(", ")
    listed = f"{first} and {last}" if first else last
    return f"{word}{', ' if ',' in word else ' '}but for {listed}, which no evidence shows: {reason}"


def _ladder(beside: LadderBeside | None) -> list[str]:
    """Return the first two lines of the ladder's own answer: its verdict, and how many tensors do what."""
    if beside is None or beside.finding is None:
        return []
    verdict, counts = ladder_text(beside.finding).splitlines()[:2]
    return [f"ladder:  {verdict}", f"         {counts}"]


def first_words(verdict: str) -> str:
    """Return what the first place where runs differ is called: no fault is said of order or rounding."""
    return "first divergence" if verdict in {"bug", "precision_policy"} else "first difference"


def _divergence(found: Divergence, verdict: str) -> list[str]:
    """Return the lines that say where the run first differs."""
    step = f"step {found.step}" if found.step >= 0 else "before the first step"
    where = [step, found.phase]
    if found.micro_batch is not None:
        where.append(f"micro-batch {found.micro_batch}")
    lines = [f"{first_words(verdict)}: {', '.join(where)}", f"  tensor       {found.tensor}"]
    if found.module:
        lines.append(f"  module       {found.module}")
    if found.collective:
        lines.append(f"  collective   {found.collective}")
    if found.axis:
        lines.append(f"  axis         {found.axis}")
    ranks = ", ".join(str(r) for r in found.ranks[:RANKS_IN_TEXT]) + (
        ", …" if len(found.ranks) > RANKS_IN_TEXT else ""
    )
    lines.append(f"  ranks        {ranks}")
    if found.evidence:
        lines.append(f"  evidence     {found.evidence}")
    return lines


def _counts(finding: CompareFinding) -> list[str]:
    counts, lines = finding.tensors, []
    if counts.compared or counts.only_one:
        lines.append(
            f"tensors: {counts.compared} compared, {counts.identical} identical, "
            f"{counts.explained} explained by order, {counts.unexplained} unexplained"
        )
        if counts.only_one:
            lines.append(
                f"         {counts.only_one} recorded by one run only, or without a common part: not compared"
            )
    if counts.rows_replayed:
        lines.append(f"replay:  {counts.rows_replayed} rows compared, {counts.rows_different} different")
    return lines


def _differences(rows: Sequence[TensorDifference]) -> list[str]:
    """Return a table of at most 80 columns: what is known of no row has no column."""
    columns = [
        (head, [_number(value, spec) for value in values])
        for head, spec, values in (
            ("max ulp", ".0f", [row.max_ulp for row in rows]),
            ("rel", ".2e", [row.rel for row in rows]),
            ("cosine", ".6f", [row.cosine for row in rows]),
            ("ratio", ".6f", [row.ratio for row in rows]),
        )
        if any(value is not None for value in values)
    ]
    widths = [max(len(head), *map(len, cells)) for head, cells in columns]
    room = COLUMNS - 2 - 6 - sum(width + 2 for width in widths)
    return [
        _line("differ most:", "step", [head for head, _ in columns], widths, room + 2),
        *(
            _line(
                f"  {shortened(row.tensor, room)}",
                str(row.step),
                [t[i] for _, t in columns],
                widths,
                room + 2,
            )
            for i, row in enumerate(rows)
        ),
    ]


def _line(name: str, step: str, cells: Sequence[str], widths: Sequence[int], room: int) -> str:
    return f"{name:{room}}{step:>6}" + "".join(
        f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
    )


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _listed(title: str, rows: tuple[str, ...], *, verbose: bool) -> list[str]:
    if not rows:
        return []
    shown = rows if verbose else rows[:LINES_SHOWN]
    more = [f"  … and {len(rows) - len(shown)} more (--verbose)"] if len(rows) > len(shown) else []
    return [f"{title}:", *(f"  - {row}" for row in shown), *more]

"""How a job changes over its windows as text: the step, its parts, and the ranks that change most."""

from collections.abc import Sequence

from tracekit.findings.trend import CommonChange, RankTrend, Trend, TrendFinding
from tracekit.report.shared_text import (
    Line,
    laid_out,
    mesh_line,
    numbers,
    quality_lines,
    ranks_line,
    rejected_lines,
)
from tracekit.text import plain
from tracekit.thresholds.report import CHANGES_SHOWN, NAME_CHARACTERS, ROWS_SHOWN
from tracekit.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_S, ms


def trend_text(finding: TrendFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all parts, ranks, quality rows and windows."""
    lines: list[Line] = [(word(finding), finding.reason), *step_lines(finding)]
    lines += _rank_lines(finding, verbose=verbose)
    lines += _part_lines(finding, verbose=verbose)
    return laid_out([*lines, *foundations(finding, verbose=verbose)])


def word(finding: TrendFinding) -> str:
    """Return the first words of the text for the verdict."""
    return finding.verdict.upper().replace("_", " ")


def step_lines(finding: TrendFinding) -> list[Line]:
    """Return the lines on the step's drift, changes and swing, and on the remedy of an open answer."""
    t = finding.step
    lines = []
    if finding.span_ns > 0:  # one point shows no drift
        between = f"between {ms(t.low_ns):+.2f} and {ms(t.high_ns):+.2f}"
        over = f"{ms(t.drift_ns):+.2f} ms over {time_text(finding.span_ns)}"
        lines.append(("drift", f"{over}, {between} (p {_p(t.p_drift)})"))
    for s in t.shifts:
        levels = f"{ms(s.before_ns):.2f} → {ms(s.after_ns):.2f} ms"
        change = f"{levels} at {finding.unit} {s.number}, after {time_text(s.at_ns)} (p {_p(t.p_change)})"
        lines.append(("change", change))
    if finding.swing is not None:
        wave = finding.swing
        longest = f"longest {wave.peak_h:.1f} h after the first"
        doubt = "" if wave.proven else ", not proven"
        lines.append(("swing", f"{ms(wave.swing_ns):.2f} ms a day, {longest} (p {_p(wave.p)}{doubt})"))
    if finding.common is not None:
        lines.append(("common", common_text(finding.common, len(finding.by_rank))))
    return [*lines, *([("to decide", finding.to_decide)] if finding.to_decide else [])]


def common_text(common: CommonChange, ranks: int) -> str:
    """Return the sentence about a change that all ranks have in common."""
    between = f"by {common.share:+.1%} ({common.least:+.1%} to {common.most:+.1%})"
    return (
        f"compute of all {ranks} ranks changes with the step, {between}: the clock of all devices (time of day, power, "
        "heat) or the work of a step, and no rank's fault"
    )


def foundations(finding: TrendFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on what the answer rests on."""
    many, first = len(finding.points), finding.points[0]
    counted = f"{many} in {time_text(finding.span_ns)}" if many > 1 else f"1 of {time_text(first.step_ns)}"
    if finding.unit == "window":
        counted += f": {numbers([p.number for p in finding.points])}"
    lines = [
        (finding.unit + "s", counted),
        ("mesh", mesh_line(finding.mesh)),
        ("ranks", ranks_line(finding.ranks)),
        *rejected_lines(finding.ranks, verbose=verbose),
        *quality_lines(finding.quality, verbose=verbose),
    ]
    if verbose:
        lines += [(f"{finding.unit} {p.number}", _point(p.at_ns, p.step_ns, p.ranks)) for p in finding.points]
    return [*lines, *(("note", plain(note)) for note in finding.notes)]


def _point(at_ns: int, step_ns: float, ranks: int) -> str:
    return f"after {time_text(at_ns)}: {ms(step_ns):.2f} ms a step, {ranks} ranks"


def _rank_lines(finding: TrendFinding, *, verbose: bool) -> list[Line]:
    """Return lines of ranks that get slower than their peers, and of ranks with a change that the step would feel."""
    felt = CHANGES_SHOWN * finding.step.level_ns
    ranks = [
        r for r in finding.by_rank if verbose or r.slower or (_proven(r.trend) and r.trend.rise_ns >= felt)
    ]
    shown = ranks[: None if verbose else ROWS_SHOWN]
    if not shown:
        return [("rank", "no rank is proven to get slower than its peers")] if finding.by_rank else []
    left = len(ranks) - len(shown)
    more = [("", f"… {left} more")] if left else []
    head = f"{'ms beyond its peers':{NAME_CHARACTERS}} {'drift':>10} {'now':>10} {'highest':>10}"
    return [("rank", head), *(("", _rank(r)) for r in shown), *more]


def _rank(rank: RankTrend) -> str:
    t = rank.trend
    where = ", ".join(f"{axis} {index}" for axis, index in rank.coords.items())
    grows = f", {rank.part} grows" if rank.slower else ""
    host = f", {plain(rank.host)}" if rank.host else ""
    return f"{_row(f'rank {rank.rank}', t)}  {where}{host}{grows}"


def _part_lines(finding: TrendFinding, *, verbose: bool) -> list[Line]:
    """The lines on parts of the step with a change that matters to it; all if `verbose`."""
    felt = CHANGES_SHOWN * finding.step.level_ns
    shown = [t for t in finding.parts if verbose or max(abs(t.change_ns), abs(t.drift_ns)) >= felt]
    if not shown:
        return []
    head = f"{'ms beyond the first':{NAME_CHARACTERS}} {'drift':>10} {'now':>10} {'highest':>10}"
    return [("part", head), *(("", _row(t.what, t)) for t in shown)]


def _row(name: str, t: Trend) -> str:
    """The row of a trend: drift, last level and highest level, marked where no change is proven."""
    times = f"{ms(t.drift_ns):+10.2f} {ms(t.change_ns):+10.2f} {ms(t.rise_ns):+10.2f}"
    doubt = "" if _proven(t) else "  not proven"
    return f"{plain(name)[:NAME_CHARACTERS]:<{NAME_CHARACTERS}} {times}{doubt}"


def _proven(t: Trend) -> bool:
    return t.shape != "none"


def _p(p: float | None) -> str:
    if p is None:
        return "unknown: too few"
    return f"{p:.2g}" if p else "below 1e-09"


def time_text(ns: float) -> str:
    """Return a time in the largest unit that leaves a number above one."""
    for unit, name in ((NS_PER_DAY, "days"), (NS_PER_HOUR, "h"), (NS_PER_S, "s")):
        if ns >= unit:
            return f"{ns / unit:.1f} {name}"
    return f"{ms(ns):.1f} ms"


def changes_of(trends: Sequence[Trend]) -> list[tuple[str, ...]]:
    """Return the rows of a table of trends: name, level, drift with interval, change, highest, probabilities, shape."""
    return [
        (
            t.what, f"{ms(t.level_ns):.3f}", f"{ms(t.drift_ns):+.3f}",
            f"{ms(t.low_ns):+.3f} to {ms(t.high_ns):+.3f}", f"{ms(t.change_ns):+.3f}", f"{ms(t.rise_ns):+.3f}",
            _p(t.p_drift), _p(t.p_change), {"none": "not proven"}.get(t.shape, t.shape),
        )
        for t in trends
    ]  # fmt: skip

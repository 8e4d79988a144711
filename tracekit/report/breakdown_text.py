"""The breakdown as text: parts of the step, ranks, communication, volumes; tables of at most 80 columns."""

from typing import Final

from tracekit.findings import BreakdownFinding, RankBreakdown, Share, Traffic, Volume
from tracekit.report.shared_text import (
    Line,
    ground_lines,
    laid_out,
)
from tracekit.text import plain
from tracekit.thresholds.report import ROWS_SHOWN
from tracekit.units import ms

_UNITS: Final = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B"))


def breakdown_text(finding: BreakdownFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all ranks, kinds, quality rows and assumptions."""
    lines: list[Line] = [("BREAKDOWN", headline(finding)), *_share_lines(finding)]
    lines += _rank_lines(finding, verbose=verbose)
    lines += _traffic_lines(finding, verbose=verbose)
    lines += _volume_lines(finding, verbose=verbose)
    return laid_out(lines + foundations(finding, verbose=verbose))


def headline(finding: BreakdownFinding) -> str:
    """Return the mean length of a step, in words."""
    steps = len(finding.cells)
    mean = ms(finding.total.step_ns / max(steps, 1))
    return f"{mean:.3f} ms a step (mean of {steps} steps of ranks)"


def foundations(finding: BreakdownFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on what the answer rests on, as pairs of label and text."""
    return ground_lines(finding, verbose=verbose)


def _share_lines(finding: BreakdownFinding) -> list[Line]:
    """The lines on the parts of the step, one each."""
    head = f"{'ms a step':>12} {'share':>7}  by rank: least, median, most"
    return [("part", head), *((plain(s.part), _share(s)) for s in finding.shares)]


def _share(share: Share) -> str:
    spread = f"{share.least:7.1%} {share.median:7.1%} {share.most:7.1%}"
    return f"{ms(share.mean_ns):12.3f} {share.share:7.1%}  {spread}"


def _rank_lines(finding: BreakdownFinding, *, verbose: bool) -> list[Line]:
    """The lines on ranks, the rank that waited least first; only the first ones unless `verbose`."""
    shown = finding.by_rank[: None if verbose else ROWS_SHOWN]
    head = " compute waiting  moving  bubble    host    idle unknown"
    left = len(finding.by_rank) - len(shown)
    more = [("", f"… {left} more; those above waited least")] if left else []
    return [("rank", head), *((f"{r.rank}", _rank(r)) for r in shown), *more]


def _rank(rank: RankBreakdown) -> str:
    p = rank.parts
    spent = (
        p.compute_ns,
        p.waiting_ns,
        p.transfer_ns,
        p.bubble_ns,
        p.host_ns,
        p.idle_ns,
        p.open_ns + p.unknown_ns,
    )
    return "".join(f"{ns / max(p.step_ns, 1):8.1%}" for ns in spent)


def _traffic_lines(finding: BreakdownFinding, *, verbose: bool) -> list[Line]:
    """Return a line for each kind of communication; unless `verbose`, only the kinds with the longest exposed time."""
    shown = finding.traffic[: None if verbose else ROWS_SHOWN]
    head = f"{'':14}{'calls':>7}{'moved':>10}{'exposed':>11}{'alg.':>8}{'bus GB/s':>9}"
    return [("axis", head), *((plain(t.axis), _traffic(t)) for t in shown)] if shown else []


def _traffic(traffic: Traffic) -> str:
    calls, moved, exposed, algorithm, bus = traffic_cells(traffic)
    return f"{plain(traffic.op):<14.14}{calls:>7}{moved:>10}{exposed + ' ms':>11}{algorithm:>8}{bus:>9}"


def traffic_cells(traffic: Traffic) -> tuple[str, str, str, str, str]:
    """The line on one kind: calls, bytes and exposed ms of a rank's step, and both bandwidths, GB/s."""
    each = max(traffic.rank_steps, 1)
    moved = _size(traffic.moved_bytes / each) if traffic.unsized < traffic.calls else "?"
    speeds = _speed(traffic.algorithm_gb_s), _speed(traffic.bus_gb_s)
    return f"{traffic.calls / each:.1f}", moved, f"{ms(traffic.exposed_ns / each):.4g}", *speeds


def _speed(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _size(count: float) -> str:
    """The bytes in the largest unit that leaves a whole number before the point."""
    unit, name = next((u for u in _UNITS if count >= u[0]), _UNITS[-1])
    return f"{count / unit:.1f} {name}"


def _volume_lines(finding: BreakdownFinding, *, verbose: bool) -> list[Line]:
    """Return what was sent beside what formulas give: only the formulas that fit, if any; all if `verbose`."""
    fitting = {v.axis for v in finding.volumes if v.fits}
    shown = [v for v in finding.volumes if verbose or v.fits is not False or v.axis not in fitting]
    lines: list[Line] = []
    for v in shown:
        lines.append((f"{plain(v.axis)} {v.what}", sent_text(v)))
        lines.append(("", f"{plain(v.formula)}: {plain(v.scheme)}"))
    return lines


def sent_text(volume: Volume) -> str:
    """The recorded volume as a multiple of the formula."""
    return f"{volume.recorded:.4g} elements a step = {volume.times:.4g} × {plain(volume.formula)}, Φ {volume.phi}"

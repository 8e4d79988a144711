"""The floor as text: the parts of the step with what each brings, then the step under each assumption."""

from tracekit.findings.floor import FloorFinding, FloorLimit, FloorPart, KernelClass
from tracekit.report.shared_text import (
    Line,
    ground_lines,
    laid_out,
)
from tracekit.text import plain
from tracekit.thresholds.floor import CLASSES_SHOWN, LEAST_SAVING


def floor_text(finding: FloorFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all parts, classes, quality rows and assumptions."""
    lines: list[Line] = [("FLOOR", headline(finding)), *_part_lines(finding, verbose=verbose)]
    lines += [(words(limit.limit), _limit(limit)) for limit in finding.limits]
    lines += [("unknown", _unknown_words(u.part, u.inside, u.needs)) for u in finding.unknown]
    lines += _class_lines(finding, verbose=verbose)
    return laid_out(lines + foundations(finding, verbose=verbose))


def headline(finding: FloorFinding) -> str:
    """Return the step, what it achieves of the peak, and the part that brings most."""
    step = f"{finding.step_ms:.1f} ms a step"
    if finding.reached:
        step += f" at {finding.reached}"
    best = best_part(finding)
    if best is None:
        return f"{step}; no part that the traces show brings {LEAST_SAVING:.0%} of it"
    return f"{step}; {finding.step_ms - (best.brings_ms or 0.0):.1f} ms without {words(best.part)}, the largest gain"


def best_part(finding: FloorFinding) -> FloorPart | None:
    """Return the part that brings most; None where none brings enough to recommend."""
    enough = [p for p in finding.parts if worth(p, finding)]
    return max(enough, key=lambda p: p.brings_ms or 0.0, default=None)


def worth(part: FloorPart, finding: FloorFinding) -> bool:
    """Whether a part brings enough to recommend its remedy."""
    return part.brings_ms is not None and part.brings_ms > max(
        LEAST_SAVING * finding.step_ms, finding.residual_ms
    )


def words(name: str) -> str:
    """Return the name of a part or a limit as words; axes keep their names, as in `cp_dp transfer`."""
    return plain(name) if " " in name else plain(name).replace("_", " ")


def foundations(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return the lines on what the answer rests on, as pairs of label and text."""
    lines: list[Line] = []
    if finding.flops is not None:
        what = "of the model" if finding.flops_from == "given" else "of products, by their recorded shapes"
        lines.append(("flops", f"{finding.flops:.4g} a step of the job, {what}"))
    if finding.peak_tflops is not None:
        lines.append(("peak", f"{finding.peak_tflops:g} TFLOP/s a device{_peak_source(finding)}"))
    lines.append(("replay", f"misses the recorded step by {finding.residual_ms:.1f} ms with nothing changed"))
    return lines + ground_lines(finding, verbose=verbose)


def _peak_source(finding: FloorFinding) -> str:
    """Return the device that the peak is of, where no option gives the peak."""
    if finding.peak_from != "device":
        return ""
    return f": the dense 16-bit peak of {plain(finding.device or '')}, which the traces name (--hardware overrides it)"


def class_cells(kernel: KernelClass) -> tuple[str, str, str, str, str]:
    """Return calls, mean ms, best ms, the rank with the best, and the ms lost, of a class of kernel in a step."""
    lost = f"{kernel.lost_ms:.3f}"
    return f"{kernel.calls}", f"{kernel.mean_ms:.3f}", f"{kernel.best_ms:.3f}", f"{kernel.best_rank}", lost


def _part_lines(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return a line for each part that takes time, or all, and the remedies that bring enough."""
    lines: list[Line] = [("part", f"{'ms a step':>12} {'share':>7}  brings at most")]
    for part in finding.parts:
        if part.ns or verbose:
            lines.append((words(part.part), _part(part)))
        if part.remedy and (verbose or worth(part, finding) or _open(part)):
            lines.append(("", f"  → {part.remedy}"))
    return lines


def _open(part: FloorPart) -> bool:
    """Whether a large part has a remedy, and nothing shows what that brings."""
    return part.brings_ms is None and part.share > LEAST_SAVING


def _part(part: FloorPart) -> str:
    brings = "" if part.brings_ms is None else f"{part.brings_ms:9.1f} ms"
    return f"{part.mean_ms:12.3f} {part.share:7.1%}  {brings}".rstrip()


def _limit(limit: FloorLimit) -> str:
    if limit.step_ms is None:
        return f"unknown; give {limit.needs}"
    return f"{limit.step_ms:12.3f} ms  {plain(limit.meaning)}"


def _unknown_words(part: str, inside: str, needs: str) -> str:
    return f"{words(part)}, inside {words(inside)}; needs {needs}"


def _class_lines(finding: FloorFinding, *, verbose: bool) -> list[Line]:
    """Return the classes of kernel that lose most beside their best rate."""
    shown = [k for k in finding.kernels if k.lost_ms > 0][: None if verbose else CLASSES_SHOWN]
    if not shown:
        return []
    rows = [(f"stage {k.stage}", _class(k)) for k in shown]
    return [("kernels", f"{'calls':>7} {'mean ms':>10} {'best ms':>10}  rank {'lost ms':>10}"), *rows]


def _class(kernel: KernelClass) -> str:
    calls, mean, best, rank, lost = class_cells(kernel)
    return f"{calls:>7} {mean:>10} {best:>10} {rank:>5} {lost:>10}  {plain(kernel.name):.60}"

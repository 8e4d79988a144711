"""The advice as text and as JSON (`numerics.advise/1`)."""

from numerics.precision.advise import ADVICE_SCHEMA, Advice, Buffer
from numerics.report.documents import AdviceDocument
from numerics.report.ladder import number
from numerics.thresholds.report import BUFFERS_SHOWN
from tracekit.text import plain


def advice_text(advice: Advice, *, verbose: bool = False) -> str:
    """Return the advice as lines for a terminal, with a newline at the end."""
    flagged = advice.flagged
    rule = f"{advice.budget:g} times as much as one rounding does"
    lines = [
        f"{len(flagged)} of {len(advice.buffers)} gradient buffers need FP32: in BF16 they err more than {rule}"
        if flagged
        else f"none of {len(advice.buffers)} gradient buffers needs FP32: in BF16 none errs more than {rule}"
    ]
    if flagged:
        worst = max(buffer.in_fp32 for buffer in flagged)
        lines.append(
            f"in FP32 the same addends err by {worst:.1e} at most; it costs {_bytes(advice.extra_bytes)} on the rank "
            "that holds most"
        )
    shown = advice.buffers if verbose else advice.buffers[:BUFFERS_SHOWN]
    lines.append(
        f"{'gradient buffer':<46}{'m':>5}{'measured':>11}{'predicted':>11}{'p/m':>6}{'rounded':>10}{'in FP32':>10}"
        f"{'memory':>10}"
    )
    lines += [_row(buffer) for buffer in shown]
    if len(shown) < len(advice.buffers):
        lines.append(f"… and {len(advice.buffers) - len(shown)} more (--verbose)")
    lines += [f"note: {note}" for note in advice.notes]
    return "".join(plain(line, "?") + "\n" for line in lines)


def _row(buffer: Buffer) -> str:
    mark = "*" if buffer.needs_fp32 else " "
    return (
        f"{mark} {buffer.tensor:<44}{buffer.micro_batches:>5}{buffer.measured:>11.2e}{buffer.predicted:>11.2e}"
        f"{buffer.agreement:>6.2f}{buffer.rounded_once:>10.2e}{buffer.in_fp32:>10.1e}{_bytes(buffer.extra_bytes):>10}"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count / 2**10:.1f} KiB"


def advice_document(advice: Advice) -> AdviceDocument:
    """Return the advice as a JSON-ready dict; memory in bytes."""
    return {
        "schema": ADVICE_SCHEMA,
        "run": advice.run,
        "ranks": advice.ranks,
        "steps": advice.steps,
        "budget": advice.budget,
        "need_fp32": [buffer.tensor for buffer in advice.flagged],
        "extra_bytes": advice.extra_bytes,
        "buffers": [
            {
                "tensor": buffer.tensor,
                "kept": buffer.kept,
                "micro_batches": buffer.micro_batches,
                "measured": number(buffer.measured),
                "predicted": number(buffer.predicted),
                "rounded_once": number(buffer.rounded_once),
                "in_fp32": number(buffer.in_fp32),
                "extra_bytes": buffer.extra_bytes,
                "needs_fp32": buffer.needs_fp32,
            }
            for buffer in advice.buffers
        ],
        "notes": list(advice.notes),
    }

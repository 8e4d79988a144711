"""`numerics advise`: validate, judge, render."""

from pathlib import Path

import click

from numerics.precision.advise import advise as judge
from numerics.report.advise import advice_document, advice_text
from numerics.report.json import dumps
from numerics.thresholds.precision import BUDGET, MOST_BUDGET

from ..output import FOLDER, JSON, FiniteRange, emit


@click.command()
@click.argument("run", type=FOLDER)
@click.option(
    "--budget",
    type=FiniteRange(1, MOST_BUDGET),
    default=BUDGET,
    show_default=True,
    help="A buffer needs FP32 when its error exceeds so many times that of a single rounding.",
)
@JSON
@click.option("--verbose", is_flag=True, help="All buffers.")
def advise(run: Path, budget: float, json_to: str | None, verbose: bool) -> None:
    """Say which gradient buffers of RUN need FP32: measured and predicted error, memory cost, and gain.

    RUN holds shadow sums: each micro-batch's gradients added up in BF16, FP32 and FP64 side by side.

    \b
    reftrain run --set evidence.shadow_gradients=true --out run
    numerics advise run
    """
    advice = judge(run, budget)
    emit(advice_text(advice, verbose=verbose), lambda: dumps(advice_document(advice)), json_to)

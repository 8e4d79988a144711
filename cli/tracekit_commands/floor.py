"""The command `tracekit floor`: validate, analyse, render."""

from pathlib import Path

import click

from tracekit.analysis.floor.analyse import floor as analyse
from tracekit.analysis.floor.given import bounded, given_numbers, parse_model, parse_peak, read_plan
from tracekit.errors import UsageError
from tracekit.page.shell import date_text
from tracekit.report.floor import floor_document, floor_text
from tracekit.report.html.floor import floor_html
from tracekit.report.markdown import fenced_markdown
from tracekit.report.slowrank_json import dumps

from .. import options
from ..completion import machines, one_of
from ..output import A_FILE
from ..source import Source, source


@click.command()
@click.option(
    "--model",
    metavar="parameters=8e9,tokens=4M",
    help="The model's FLOPs: active parameters and tokens of a step, 8b,tokens=4M,seq=8192, or flops=2e17.",
)
@click.option(
    "--hardware",
    metavar="NAME|FILE|peak_tflops=989",
    shell_complete=one_of(machines),
    help="The device's peak: a machine of reftrain plan, its .toml file, or the number.",
)
@click.option(
    "--plan", type=A_FILE, help="An answer of reftrain plan --json for this model and these devices."
)
@options.cut()
@options.html()
@options.answer()
@source()
def floor(
    source: Source,
    model: str | None,
    hardware: str | None,
    plan: Path | None,
    cut: options.Cut,
    html_to: str | None,
    answer: options.Answer,
) -> int:
    """Show what keeps a step from peak FLOP/s, part by part, also where all ranks are equally slow.

    The parts add up to the step; each has one remedy and the most that it could save. Then the step without
    waiting, with hidden communication, at the best rates seen, at the roofline, and with the best plan. TRACES are
    as for `tracekit slowrank`.

    \b
    tracekit floor traces/
    tracekit floor traces/ --model parameters=8e9,tokens=4M --hardware h100
    """
    flops, peak = None if model is None else _flops(model), None if hardware is None else _peak(hardware)
    if plan:
        read_plan(str(plan))  # refused before traces are read
    with source.analysed() as (run, progress):
        finding = analyse(
            run, cut.mesh, cut.order, cut.steps, progress, flops, peak, str(plan) if plan else None
        )
        recorded = run.last_ns() if html_to else 0
    text = floor_text(finding, verbose=answer.verbose)
    answer.emit(
        text,
        lambda: dumps(floor_document(finding)),
        lambda: fenced_markdown(text),
        (lambda: floor_html(finding, options.page_foot(source.inputs, date_text(recorded))), html_to),
    )
    return 0


def _flops(text: str) -> float:
    """Return the FLOPs of a step; of a preset of reftrain by its shapes, else as the numbers say."""
    name, _, rest = text.partition(",")
    if "=" in name:
        return parse_model(text)
    from reftrain.config.file import load
    from reftrain.model.flops import flops_per_token

    keys = ("tokens", "seq")
    numbers = given_numbers(rest, "--model", keys) if rest else {}
    if set(numbers) != set(keys):
        raise UsageError(
            f"--model: a preset needs tokens of a step and of a sequence, as in {name[:40]},tokens=4M,seq=8K"
        )
    shapes = load(None, {"model": {"preset": name.strip()}}).model
    return bounded(flops_per_token(shapes, int(numbers["seq"])) * numbers["tokens"])


def _peak(text: str) -> float:
    """Return the peak of a device, TFLOP/s, as a number, of a known machine, or of a file."""
    if "=" in text:
        return parse_peak(text)
    from reftrain.cost.hardware import load_hardware

    return load_hardware(text).device.peak_tflops

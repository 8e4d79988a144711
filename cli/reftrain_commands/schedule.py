"""`reftrain schedule`: a pipeline schedule's table, time line, bubbles and memory."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Schedule
from reftrain.schedule.costs import parse_costs
from reftrain.schedule.evaluation import Evaluation, evaluate
from reftrain.schedule.generators import check_rounds, generate
from reftrain.schedule.lower import lower
from reftrain.schedule.registry import SCHEMES, default_virtual
from reftrain.schedule.replica_sync import SYNCS, with_syncs
from reftrain.schedule.spec import CONCATENATIONS, ScheduleSpec
from reftrain.thresholds import MOST_ACTIONS, MOST_TABLE_BYTES
from tracekit.small_files import read_small

from .. import streams
from ..completion import one_of, schedules
from ..output import A_FILE, JSON, write_file
from ..progress import waiting

TABLE_SUFFIXES = (".csv", ".txt")
"""Ends of names that are files of a table, not schemes."""
SIZE = click.IntRange(1, MOST_ACTIONS)
"""A number of ranks, micro-batches or steps: no table has more of any."""
HELP = (
    "Show the schedule NAME, or check and show the table in FILE (.csv as torch writes it, or .txt).\n\n\b\n"
    + textwrap.fill(f"Names: {', '.join(SCHEMES)}.", width=84)
)


@dataclass(frozen=True)
class Outputs:
    """Files that the answer goes to, None where it does not; JSON to `-` is stdout in place of text."""

    json_to: str | None
    svg: Path | None
    csv_to: Path | None
    text_to: Path | None


@click.command(help=HELP)
@click.argument("name", metavar="NAME|FILE", shell_complete=one_of(schedules))
@click.option("--stages", type=SIZE, metavar="P", help="Pipeline ranks (p).")
@click.option("--micro-batches", type=SIZE, metavar="M", help="Micro-batches of a step (m).")
@click.option("--k", type=SIZE, metavar="K", help="Consecutive micro-batches a virtual stage; P if left out.")
@click.option("--virtual", type=SIZE, metavar="V", help="Virtual stages a rank (v).")
@click.option("--pipelines", type=SIZE, default=2, metavar="2F", help="Chimera's pipelines, half of them up.")
@click.option(
    "--concat", type=click.Choice(CONCATENATIONS), default="direct", help="How Chimera goes beyond m = p."
)
@click.option(
    "--steps", type=SIZE, default=1, help="Steps of an asynchronous schedule laid out without a flush."
)
@click.option(
    "--cost", default="", metavar="f=1,b=2,p2p=0", help="Times of an action; also i, w, c, sync, step."
)
@click.option(
    "--zero", type=click.IntRange(0, 3), help="Add messages, and reductions as this ZeRO stage has them."
)
@click.option("--sync", type=click.Choice(SYNCS), help="Where replicas are summed; eager_opt if left out.")
@JSON
@click.option("--svg", type=A_FILE, help="Draw the time line as SVG.")
@click.option("--csv", "csv_to", type=A_FILE, help="Write torch's pipeline CSV.")
@click.option("--text", "text_to", type=A_FILE, help="Write the table as text.")
def schedule(
    name: str,
    stages: int | None,
    micro_batches: int | None,
    k: int | None,
    virtual: int | None,
    pipelines: int,
    concat: str,
    steps: int,
    cost: str,
    zero: int | None,
    sync: str | None,
    json_to: str | None,
    svg: Path | None,
    csv_to: Path | None,
    text_to: Path | None,
) -> None:
    """Show the schedule NAME, or check and show the table in FILE."""
    costs = parse_costs(cost)
    if name.endswith(TABLE_SUFFIXES):
        if stages is not None or micro_batches is not None:
            raise ScheduleError(name, "a table has its own sizes", "leave --stages and --micro-batches out")
        table, spec = read_table(Path(name)), None
    else:
        if stages is None or micro_batches is None:
            raise ScheduleError(name, "the sizes are not given", "give --stages P --micro-batches M")
        chunks = virtual or default_virtual(name)
        spec = ScheduleSpec(name, stages, micro_batches, chunks, k or stages, pipelines, concat, steps)
        table = _laid_out(spec, k_given=k is not None)
    summed = spec is not None and bool(sync or costs.sync)
    table = with_transfers(table, zero, sync or "eager_opt", summed=summed)
    try:
        with waiting("timing the schedule"):
            found = evaluate(table, costs, spec)
    except ScheduleError as error:
        if spec is not None:
            raise
        raise ScheduleError(f"{name}: {error.field}", error.problem, error.remedy) from error
    write(found, micro_batches or table.micro_batches, Outputs(json_to, svg, csv_to, text_to))


def _laid_out(spec: ScheduleSpec, *, k_given: bool) -> Schedule:
    """Return the table of a scheme; raises `ScheduleError` for sizes that it refuses, or a given k without effect."""
    with waiting("laying out the schedule"):
        table = generate(spec)
    if k_given:
        check_rounds(spec)
    return table


def with_transfers(table: Schedule, zero: int | None, sync: str, *, summed: bool) -> Schedule:
    """Return the table with messages and reductions of a ZeRO stage, or with sums over replicas alone, or as it is."""
    if zero is not None:
        return lower(table, zero, sync)
    return with_syncs(table, sync) if summed else table


def read_table(path: Path) -> Schedule:
    """Return the table in a file; raises `ScheduleError` when it cannot be read."""
    from reftrain.schedule.csv_form import from_csv
    from reftrain.schedule.text_form import from_text

    try:
        text = read_small(path, MOST_TABLE_BYTES).decode()
    except OSError as error:
        raise ScheduleError(str(path), f"cannot be read ({error.strerror})", "name a table file") from None
    except UnicodeDecodeError:
        raise ScheduleError(str(path), "is not text", "name a table file") from None
    if path.suffix == ".csv":
        return from_csv(text, str(path), path.stem)
    return from_text(text, str(path))


def write(evaluation: Evaluation, micro_batches: int, outputs: Outputs) -> None:
    """Write the files that were asked for, each under a temporary name first, then JSON or text to stdout."""
    from reftrain.schedule.csv_form import to_csv, torch_cannot
    from reftrain.schedule.svg import to_svg
    from reftrain.schedule.text_form import to_text

    table = evaluation.schedule
    if outputs.svg:
        write_file(outputs.svg, to_svg(evaluation))
    if outputs.csv_to:
        write_file(outputs.csv_to, to_csv(table))
        reason = torch_cannot(table)
        if reason:
            click.echo(f"reftrain: {outputs.csv_to}: torch cannot load this table: {reason}", err=True)
    if outputs.text_to:
        write_file(outputs.text_to, to_text(table))
    if outputs.json_to:
        document = json.dumps(evaluation.document(micro_batches)) + "\n"
        if outputs.json_to == "-":
            click.echo(document, nl=False)
            return
        write_file(Path(outputs.json_to), document)
    if streams.is_closed() and any((outputs.json_to, outputs.svg, outputs.csv_to, outputs.text_to)):
        return
    from rich.console import Console

    from .schedule_picture import show

    show(evaluation, Console(soft_wrap=False))

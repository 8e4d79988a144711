"""`reftrain schedule`: a pipeline schedule's table, time line, bubbles and memory."""

import json
from pathlib import Path

import click

from reftrain.errors import MachineError, ScheduleError
from reftrain.schedule.actions import Schedule
from reftrain.schedule.answer import Answer, answer
from reftrain.schedule.costs import parse_costs
from reftrain.schedule.generators import DEFAULT_VIRTUAL, generate
from reftrain.schedule.lower import lower
from reftrain.schedule.replica_sync import SYNCS
from reftrain.schedule.request import CONCATENATIONS, Request

MOST_BYTES = 64_000_000


@click.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--stages", type=int, metavar="P", help="Pipeline ranks (p).")
@click.option("--micro-batches", type=int, metavar="M", help="Micro-batches of a step (m).")
@click.option("--k", type=int, metavar="K", help="Consecutive micro-batches a virtual stage; P if left out.")
@click.option("--virtual", type=int, metavar="V", help="Virtual stages a rank (v).")
@click.option("--pipelines", type=int, default=2, metavar="2F", help="Chimera's pipelines, half of them up.")
@click.option(
    "--concat", type=click.Choice(CONCATENATIONS), default="direct", help="How Chimera goes beyond m = p."
)
@click.option(
    "--steps", type=int, default=1, help="Steps of an asynchronous schedule laid out without a flush."
)
@click.option(
    "--cost", default="", metavar="f=1,b=2,p2p=0", help="Times of an action; also i, w, c, sync, step."
)
@click.option(
    "--zero", type=click.IntRange(0, 3), help="Add messages, and reductions as this ZeRO stage has them."
)
@click.option(
    "--sync", type=click.Choice(SYNCS), default="eager_opt", help="Where replicas are summed, with --zero."
)
@click.option(
    "--json", "json_to", metavar="FILE|-", help="Write the answer as JSON; - is stdout, in place of text."
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the time line as SVG.")
@click.option(
    "--csv", "csv_to", type=click.Path(path_type=Path, dir_okay=False), help="Write torch's pipeline CSV."
)
@click.option(
    "--text", "text_to", type=click.Path(path_type=Path, dir_okay=False), help="Write the table as text."
)
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
    sync: str,
    json_to: str | None,
    svg: Path | None,
    csv_to: Path | None,
    text_to: Path | None,
) -> None:
    """Show the schedule NAME, or check and show the table in FILE (.csv as torch writes it, or .txt).

    \b
    Names: gpipe, 1f1b, interleaved, flexible, breadth_first, afab, gems, pipedream,
    pipedream_2bw, chimera, zb_h1, dualpipe_v.
    """
    costs = parse_costs(cost)
    request = None
    if name.endswith((".csv", ".txt")):
        if stages is not None or micro_batches is not None:
            raise ScheduleError(name, "a table has its own sizes", "leave --stages and --micro-batches out")
        table = read_table(Path(name))
    else:
        if stages is None or micro_batches is None:
            raise ScheduleError(name, "the sizes are not given", "give --stages P --micro-batches M")
        request = Request(
            name,
            stages,
            micro_batches,
            virtual or DEFAULT_VIRTUAL.get(name, 1),
            k or max(stages, 1),
            pipelines,
            concat,
            steps,
        )
        table = generate(request)
    if zero is not None:
        table = lower(table, zero, sync)
    write(answer(table, costs, request), micro_batches or table.micro_batches, json_to, svg, csv_to, text_to)


def read_table(path: Path) -> Schedule:
    """Read a table file; raises `ScheduleError` when it cannot be read."""
    from reftrain.schedule.csv_form import from_csv
    from reftrain.schedule.text_form import from_text

    try:
        if path.stat().st_size > MOST_BYTES:
            raise ScheduleError(str(path), f"larger than {MOST_BYTES} bytes", "give a smaller table")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScheduleError(str(path), f"cannot be read ({error.strerror})", "name a table file") from None
    except UnicodeDecodeError:
        raise ScheduleError(str(path), "is no text", "name a table file") from None
    if path.suffix == ".csv":
        return from_csv(text, str(path), path.stem)
    return from_text(text, str(path))


def save(path: Path, text: str) -> None:
    """Write a file under a temporary name first; raises `MachineError` when it cannot be written."""
    from tracekit.errors import UsageError

    from .output import write_file

    try:
        write_file(path, text)
    except UsageError as error:
        raise MachineError(str(error)) from None


def write(
    got: Answer,
    micro_batches: int,
    json_to: str | None,
    svg: Path | None,
    csv_to: Path | None,
    text_to: Path | None,
) -> None:
    """Write what was asked for; files under a temporary name first."""
    from reftrain.schedule.csv_form import to_csv, torch_cannot
    from reftrain.schedule.svg import to_svg
    from reftrain.schedule.text_form import to_text

    if svg:
        save(svg, to_svg(got))
    if csv_to:
        save(csv_to, to_csv(got.schedule))
        reason = torch_cannot(got.schedule)
        if reason:
            click.echo(f"reftrain: {csv_to}: torch cannot load this table: {reason}", err=True)
    if text_to:
        save(text_to, to_text(got.schedule))
    if json_to:
        document = json.dumps(got.document(micro_batches)) + "\n"
        if json_to == "-":
            click.echo(document, nl=False)
            return
        save(Path(json_to), document)
    from rich.console import Console

    from .schedule_picture import show

    show(got, Console(soft_wrap=False))

"""`numerics replay` and `numerics plan`: validate, call, render."""

from collections.abc import Sequence
from pathlib import Path

import click

from numerics.order.plan_finding import plan_finding
from numerics.order.replayer import make_replay
from numerics.report.json import dumps
from numerics.report.plan import plan_document, plan_text
from numerics.thresholds.reading import MOST_STEPS
from tracekit.text import plain

from .. import exit_codes
from ..output import FOLDER, JSON, emit


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--out", type=FOLDER, metavar="DIR", help="Folder of the replay; RUN/replay if left out.")
@click.option("--level", type=click.Choice(["digest", "tensors"]), help="As the run's capture if left out.")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="WHERE=FORMAT",
    help="Test a hypothesis about formats: rope, reduce, accumulate or compute = bf16, fp32, ...; repeatable.",
)
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), help="Replay only the first steps.")
@click.option(
    "--baseline",
    type=click.Choice(["matched", "2d"]),
    default="matched",
    help="matched: the run's own order of sums; 2d: its dp x tp ranks with its micro-batches, without pp and cp.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def replay(
    run: Path,
    out: Path | None,
    level: str | None,
    variants: Sequence[str],
    steps: int | None,
    baseline: str,
    *,
    quiet: bool,
) -> int:
    """Build the matched sequential baseline of RUN: no ranks, whole weights, the run's own order of sums.

    RUN must hold a capture and its order plan (reftrain run --capture digest). The baseline does as declared
    what the run skipped, doubled, or did with a wrong scale or format.

    \b
    numerics replay run_a --out run_b
    numerics replay run_a --variant rope=bf16 --out hypothesis
    numerics replay run_a --baseline 2d --out run_2d      (then compare --baseline run_2d)

    Exit codes: 0 replayed; 3 unreadable, or no replay of this run is possible.
    """
    talk = None if quiet else (lambda line: click.echo(plain(f"numerics: replayed {line}"), err=True))
    if baseline == "2d" and out is None:
        raise click.UsageError("--baseline 2d needs --out: RUN/replay is the matched replay's place")
    if baseline == "2d" and (variants or steps):
        raise click.UsageError(
            "--variant and --steps belong to the matched replay; leave them or --baseline 2d out"
        )
    made = make_replay(
        run, out, level=level, variants=variants, steps=steps, baseline=baseline, progress=talk
    )
    click.echo(str(made))
    return exit_codes.OK


@click.command()
@click.argument("run", type=FOLDER)
@click.argument("other", type=FOLDER)
@JSON
@click.option("--verbose", is_flag=True, help="All differences.")
def plan(run: Path, other: Path, json_to: str | None, *, verbose: bool) -> int:
    """Compare the order plans of RUN and OTHER: every reduction's operands, order, format, scale and group.

    Lists the tensors that may differ because of it; a difference in any other tensor is a bug, and no rerun is
    needed to know it.

    \b
    numerics plan run_a run_b
    numerics plan run_a run_a/replay       (recorded against declared)

    Exit codes: 0 answered; 3 unreadable.
    """
    finding = plan_finding(run, other)
    emit(plan_text(finding, verbose=verbose), lambda: dumps(plan_document(finding)), json_to)
    return exit_codes.OK
